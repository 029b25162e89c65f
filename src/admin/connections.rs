//! The connections of the admin listener: how many there are, and how long each may take.
//!
//! Each limit ends a way to keep the others out: connections that send nothing, heads or bodies that come slowly, and
//! clients that do not read.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;
use tokio_util::either::Either;

/// The listening socket.
#[derive(Debug)]
pub enum AdminListener {
    /// Of TCP.
    Tcp(std::net::TcpListener),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// What changes about the listening socket.
#[derive(Debug)]
pub enum AdminChange {
    /// It is this one from now on.
    Open(AdminListener),
    /// There is none any more.
    Close,
}

/// Time to send a request head, and to wait for the next one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time a connection takes no further request.
const LIFETIME: Duration = Duration::from_secs(60);
/// After this further time the connection is cut off. A reload may take a minute.
const GRACE: Duration = Duration::from_secs(75);
/// The most connections at once. If there are more the oldest is closed, so that probes always get through.
const MAX_CONNECTIONS: usize = 32;
/// The pause after a failed accept, since it mostly fails because file handles or memory are exhausted.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// Answers requests with `respond`, on the listener that has come last from `listeners`, until that channel is closed. It has to
/// run on a thread's local runtime.
pub(super) async fn serve<F>(
    mut listeners: mpsc::UnboundedReceiver<AdminChange>,
    respond: impl Fn(Request<Incoming>) -> F + 'static,
) where
    F: Future<Output = Response<Full<Bytes>>> + 'static,
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
            Ok(stream) => open.begin(stream, &respond),
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

type RegisteredListener = Either<TcpListener, UnixListener>;

impl AdminListener {
    /// Registers it with the runtime.
    fn register(self) -> Option<RegisteredListener> {
        let registered = match self {
            Self::Tcp(listener) => TcpListener::from_std(listener).map(Either::Left),
            Self::Unix(listener) => UnixListener::from_std(listener).map(Either::Right),
        };
        registered.inspect_err(|error| tracing::error!(%error, "cannot use the admin listener")).ok()
    }
}

/// The next connection. Without a listener there is never one.
async fn accept(listener: Option<&RegisteredListener>) -> io::Result<Either<TcpStream, UnixStream>> {
    match listener {
        Some(Either::Left(listener)) => listener.accept().await.map(|(stream, _)| Either::Left(stream)),
        Some(Either::Right(listener)) => listener.accept().await.map(|(stream, _)| Either::Right(stream)),
        None => pending().await,
    }
}

/// The open connections, the oldest first.
struct Open(VecDeque<AbortHandle>);

impl Open {
    fn begin<S, R, F>(&mut self, stream: S, respond: &Rc<R>)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
        R: Fn(Request<Incoming>) -> F + 'static,
        F: Future<Output = Response<Full<Bytes>>> + 'static,
    {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() == MAX_CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        let respond = respond.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let response = respond(request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        self.0.push_back(spawn_local(serve_connection(connection, LIFETIME, GRACE)).abort_handle());
    }
}

/// Serves a connection for a bounded time, since a client that does not read would occupy it for ever.
async fn serve_connection<I, S>(connection: http1::Connection<I, S>, lifetime: Duration, grace: Duration)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S: HttpService<Incoming, ResBody = Full<Bytes>, Error = Infallible>,
{
    let mut connection = pin!(connection);
    if timeout(lifetime, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(grace, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    fn connection(room: usize) -> (impl Future, tokio::io::DuplexStream) {
        let (client, server) = tokio::io::duplex(room);
        let large = || Response::new(Full::new(Bytes::from(vec![b'x'; 1 << 20])));
        let service = service_fn(move |_: Request<Incoming>| async move { Ok::<_, Infallible>(large()) });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        (serve_connection(connection, Duration::from_millis(50), Duration::from_millis(50)), client)
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
        // The connection is closed, so a further request may fail to be sent.
        let _ = client.write_all(ask).await;
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.windows(12).filter(|text| text == b"HTTP/1.1 200").count(), 1);
    }
}
