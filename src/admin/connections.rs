//! The connections of the admin listener: how many there are, and how long each may take.
//!
//! Each limit stops one way to keep other clients out: connections that send nothing, slow heads or bodies, and clients that do
//! not read.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either as EitherStream;

use super::events::{self, EventBody};
use super::guesses::Peer;
use crate::net::network_of;
use crate::net::tls::ListenerTls;

pub(super) type AdminBody = Either<Full<Bytes>, EventBody>;

#[derive(Debug)]
pub enum AdminListener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

#[derive(Debug)]
pub enum AdminChange {
    Open(AdminListener),
    Close,
}

/// For a request head, and for the pause between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a connection takes no further request.
const LIFETIME: Duration = Duration::from_secs(60);
/// The further time after which the gateway cuts off the connection. A reload may take a minute.
const GRACE: Duration = Duration::from_secs(75);
/// How long a client may read nothing of its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// At once, without event streams. A new connection beyond this closes another one, so probes get through.
const MAX_CONNECTIONS: usize = 32;
/// The pause after a failed accept, since it mostly fails because file handles or memory are exhausted.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// Answers requests on the newest of the `listeners`, until their channel closes. Needs the local runtime of a thread.
pub(super) async fn serve<F>(
    mut listeners: mpsc::UnboundedReceiver<AdminChange>,
    tls: Arc<ListenerTls>,
    respond: impl Fn(Peer, Request<Incoming>) -> F + 'static,
) where
    F: Future<Output = Response<AdminBody>> + 'static,
{
    let respond = Rc::new(respond);
    let mut open = Open(VecDeque::with_capacity(MAX_CONNECTIONS));
    let mut listener = None;
    loop {
        let accepted = tokio::select! {
            changed = listeners.recv() => match changed {
                Some(AdminChange::Open(opened)) => {
                    listener = opened.register();
                    continue;
                }
                Some(AdminChange::Close) => {
                    listener = None;
                    continue;
                }
                None => return,
            },
            accepted = accept(listener.as_ref()) => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if open.is_full() {
                    // What a burst of connections has brought is served once before any of it is closed.
                    tokio::task::yield_now().await;
                }
                open.begin(stream, peer, tls.admin(), &respond);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

type RegisteredListener = EitherStream<TcpListener, UnixListener>;

impl AdminListener {
    fn register(self) -> Option<RegisteredListener> {
        let registered = match self {
            Self::Tcp(listener) => TcpListener::from_std(listener).map(EitherStream::Left),
            Self::Unix(listener) => UnixListener::from_std(listener).map(EitherStream::Right),
        };
        registered.inspect_err(|error| tracing::error!(%error, "cannot use the admin listener")).ok()
    }
}

/// The next connection and the address of its client. Without a listener it waits for ever.
async fn accept(listener: Option<&RegisteredListener>) -> io::Result<(EitherStream<TcpStream, UnixStream>, Peer)> {
    match listener {
        Some(EitherStream::Left(listener)) => {
            listener.accept().await.map(|(stream, peer)| (EitherStream::Left(stream), Some(peer.ip())))
        }
        Some(EitherStream::Right(listener)) => {
            listener.accept().await.map(|(stream, _)| (EitherStream::Right(stream), None))
        }
        None => pending().await,
    }
}

/// The oldest first.
struct Open(VecDeque<OpenConnection>);

struct OpenConnection {
    task: AbortHandle,
    /// The network of the client.
    network: Peer,
    /// Whether it has sent a head that is not answered yet.
    is_asking: Rc<Cell<bool>>,
    /// Whether the last response is an event stream. There are few of these, and they last longer.
    is_stream: Rc<Cell<bool>>,
}

impl Open {
    fn begin<S, R, F>(&mut self, stream: S, peer: Peer, tls: Option<Arc<ServerConfig>>, respond: &Rc<R>)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
        R: Fn(Peer, Request<Incoming>) -> F + 'static,
        F: Future<Output = Response<AdminBody>> + 'static,
    {
        self.make_room();
        let is_stream = Rc::new(Cell::new(false));
        let is_asking = Rc::new(Cell::new(false));
        let (respond, becomes_stream, asks) = (respond.clone(), is_stream.clone(), is_asking.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (response, becomes_stream, asks) = (respond(peer, request), becomes_stream.clone(), asks.clone());
            asks.set(true);
            async move {
                let mut response = response.await;
                asks.set(false);
                if matches!(response.body(), Either::Right(_)) {
                    becomes_stream.set(true);
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let stream = Box::pin(stream);
        let is_served_as_stream = is_stream.clone();
        let task = spawn_local(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            let grace = || if is_served_as_stream.get() { events::LIFETIME + GRACE } else { GRACE };
            let Some(tls) = tls else {
                return serve_connection(builder.serve_connection(TokioIo::new(stream), service), LIFETIME, grace)
                    .await;
            };
            if let Ok(Ok(stream)) = timeout(HEADER_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
                serve_connection(builder.serve_connection(TokioIo::new(stream), service), LIFETIME, grace).await;
            }
        });
        let network = peer.map(network_of);
        self.0.push_back(OpenConnection { task: task.abort_handle(), network, is_asking, is_stream });
    }

    /// Event streams do not count here; they have their own limit.
    fn is_full(&mut self) -> bool {
        self.0.retain(|connection| !connection.task.is_finished());
        self.0.iter().filter(|connection| !connection.is_stream.get()).count() >= MAX_CONNECTIONS
    }

    /// If it is full, closes the oldest connection of the network that has the most, if possible one that waits for no answer.
    fn make_room(&mut self) {
        if !self.is_full() {
            return;
        }
        let others = || self.0.iter().enumerate().filter(|(_, connection)| !connection.is_stream.get());
        let mut of_networks: HashMap<Peer, usize> = HashMap::new();
        others().for_each(|(_, connection)| *of_networks.entry(connection.network).or_default() += 1);
        let closed = others().min_by_key(|(_, OpenConnection { network, is_asking, .. })| {
            (Reverse(of_networks.get(network)), is_asking.get())
        });
        if let Some(connection) = closed.map(|(index, _)| index).and_then(|index| self.0.remove(index)) {
            connection.task.abort();
        }
    }
}

/// Serves a connection for a bounded time, because a client that does not read would occupy it for ever. Asks for the `grace`
/// when the `lifetime` is over.
async fn serve_connection<I, S>(connection: http1::Connection<I, S>, lifetime: Duration, grace: impl Fn() -> Duration)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S: HttpService<Incoming, ResBody = AdminBody, Error = Infallible>,
{
    let mut connection = pin!(connection);
    if timeout(lifetime, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(grace(), connection).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    fn connection(room: usize) -> (impl Future, tokio::io::DuplexStream) {
        let (client, server) = tokio::io::duplex(room);
        let large = || Response::new(Either::Left(Full::new(Bytes::from(vec![b'x'; 1 << 20]))));
        let service = service_fn(move |_: Request<Incoming>| async move { Ok::<_, Infallible>(large()) });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        (serve_connection(connection, Duration::from_millis(50), || Duration::from_millis(50)), client)
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_cut_off() {
        let (served, mut client) = connection(1024);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let begun = Instant::now();
        served.await;
        assert!(begun.elapsed() >= Duration::from_millis(100));
    }

    #[tokio::test]
    async fn a_response_is_completed_but_no_further_request_is_taken() {
        let (served, mut client) = connection(2 << 20);
        let ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(ask).await.unwrap();
        served.await;
        // The gateway may have closed the connection already.
        let _ = client.write_all(ask).await;
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.windows(12).filter(|text| text == b"HTTP/1.1 200").count(), 1);
    }
}
