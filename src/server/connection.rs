//! One connection from its first byte to its last. It drives the HTTP library, and ends it where it would wait for ever.

use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::server::ServerConfig;
use tokio::net::TcpStream;

use super::client_io::ClientIo;
use super::connection_limits::ConnectionPermit;
use super::connection_state::{CloseReason, ConnectionState, End};
use super::connections::Connections;
use super::{Acceptor, ConnectedClient, Handler, HeadError, IncomingRequest, TlsPeer};
use crate::net::ClientStream;
use crate::reason::Reason;

/// Serves one connection to its end.
pub(super) async fn serve<C, H>(
    stream: TcpStream,
    client: ConnectedClient,
    acceptor: Acceptor<C>,
    tls: Option<Arc<ServerConfig>>,
    (registration, state): (Registration, Rc<ConnectionState>),
) where
    C: Fn(&ConnectedClient) -> H + Clone + 'static,
    H: Handler,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let mut connection = Connection { stream: ClientStream::new(stream), client, state };
    if let Some(config) = tls
        && connection.start_tls(config, &acceptor).await.is_break()
    {
        return;
    }
    while connection.rest().await.is_continue() {
        // The state of the HTTP library is large. In a box it takes no memory while the connection rests.
        if Box::pin(connection.serve_requests(&acceptor)).await.is_break() {
            break;
        }
    }
    let Connection { stream, state, .. } = connection;
    if !state.is_unsent() {
        linger(&stream, state.is_in_body()).await;
        // With TLS, a client could not tell otherwise whether the last response is complete (RFC 8446, section 6.1).
        stream.finish();
    }
    drop(stream);
    drop(registration);
}

/// The parts of a connection that it keeps while it rests.
struct Connection {
    stream: ClientStream,
    client: ConnectedClient,
    state: Rc<ConnectionState>,
}

impl Connection {
    /// Shakes hands with a client that begins to. A client that does not, or takes too long, is left.
    async fn start_tls<C>(&mut self, config: Arc<ServerConfig>, acceptor: &Acceptor<C>) -> ControlFlow<()> {
        self.rest().await?;
        self.state.begins_handshake();
        let Self { stream, client, state } = self;
        let shaken = {
            let mut handshake = pin!(stream.start_tls(config));
            poll_fn(|cx| match state.poll_end(cx) {
                Some(End::Now(_)) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                _ => handshake.as_mut().poll(cx),
            })
            .await
        };
        acceptor.tls.count(&shaken);
        if let Err(error) = shaken {
            tracing::debug!(%error, peer = %client.address, "no TLS handshake");
            return ControlFlow::Break(());
        }
        client.tls = stream.of_tls(TlsPeer::of).map(Rc::new);
        state.ends_handshake();
        ControlFlow::Continue(())
    }

    /// Waits, with nothing but the socket, until the client sends something or the connection has to end.
    async fn rest(&self) -> ControlFlow<()> {
        self.state.rests();
        poll_fn(|cx| match self.state.poll_end(cx) {
            Some(End::Now(_)) => Poll::Ready(ControlFlow::Break(())),
            Some(End::AfterRequest) if !self.stream.has_more() => Poll::Ready(ControlFlow::Break(())),
            Some(End::AfterRequest) => Poll::Ready(ControlFlow::Continue(())),
            // The next read finds an error, if there is one.
            None => self.stream.poll_readable(cx).map(ControlFlow::Continue),
        })
        .await
    }

    /// Serves requests until the connection rests or ends.
    async fn serve_requests<C, H>(&self, acceptor: &Acceptor<C>) -> ControlFlow<()>
    where
        C: Fn(&ConnectedClient) -> H + Clone + 'static,
        H: Handler,
    {
        let Self { stream, client, state } = self;
        state.wakes();
        let handler = Rc::new((acceptor.connected)(client));
        let peer = client.address;
        let (asked, requests) = (handler.clone(), state.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (head, body) = request.into_parts();
            let body = (!body.is_end_stream()).then_some(body);
            let mut incoming = IncomingRequest { head, body, is_ambiguous: requests.is_ambiguous() };
            let (handler, state, guard) = (handler.clone(), requests.clone(), requests.begin());
            async move {
                let response = handler.handle(&mut incoming, guard).await;
                state.answers();
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let io = ClientIo::new(stream.clone(), state.clone());
        let mut connection = pin!(acceptor.builder.serve_connection(io, service));
        // The library drops the requests that it holds only after this.
        match until_ended(connection.as_mut(), stream, state).await {
            ConnectionEnd::Rests => return ControlFlow::Continue(()),
            ConnectionEnd::Closed | ConnectionEnd::Cut(CloseReason::Idle | CloseReason::Gone) => {}
            ConnectionEnd::Cut(CloseReason::SlowHead) => {
                let why = (StatusCode::REQUEST_TIMEOUT, Reason::HeaderTimeout);
                refuse(&*asked, stream, state, why, false);
            }
            ConnectionEnd::Cut(CloseReason::NotReading) => {
                acceptor.limits.stalled();
                tracing::debug!(%peer, "the client does not read what is sent to it");
            }
            ConnectionEnd::Failed(error) => match refusal(&error) {
                Some(why) => refuse(&*asked, stream, state, why, state.is_answered()),
                None => tracing::debug!(%error, %peer, "connection failed"),
            },
        }
        ControlFlow::Break(())
    }
}

/// How the work on a connection ended.
enum ConnectionEnd {
    /// The HTTP library has closed it.
    Closed,
    /// The HTTP library has returned an error.
    Failed(hyper::Error),
    /// The gateway ends it.
    Cut(CloseReason),
    /// The connection stays open and rests: no request is in flight, and none has come for a while.
    Rests,
}

/// Drives a connection until it ends, its client has gone, or its state says that it has to end or to rest.
async fn until_ended<S, B>(
    mut connection: Pin<&mut http1::Connection<TokioIo<ClientIo>, S>>,
    stream: &ClientStream,
    state: &ConnectionState,
) -> ConnectionEnd
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut told = false;
    let mut broken = pin!(gone(stream, state));
    poll_fn(|cx| {
        loop {
            let last = match state.poll_end(cx) {
                Some(End::Now(cause)) => return Poll::Ready(ConnectionEnd::Cut(cause)),
                Some(End::AfterRequest) => !told,
                None => false,
            };
            if last && state.is_busy() {
                told = true;
                connection.as_mut().graceful_shutdown();
            } else if last && !stream.has_more() {
                return Poll::Ready(ConnectionEnd::Closed);
            } else if state.is_to_rest() {
                return Poll::Ready(ConnectionEnd::Rests);
            }
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() && state.is_in_flight() && broken.as_mut().poll(cx).is_ready() {
                return Poll::Ready(ConnectionEnd::Cut(CloseReason::Gone));
            }
            // The last request may have begun just now, or may have ended already.
            let waits = !state.is_busy() && last && stream.has_more();
            if polled.is_ready() || !last || told || waits {
                return polled.map(|ended| ended.map_or_else(ConnectionEnd::Failed, |()| ConnectionEnd::Closed));
            }
        }
    })
    .await
}

/// Returns when the connection has broken. If the client closes only its side before that, the state records it.
async fn gone(stream: &ClientStream, state: &ConnectionState) {
    if !stream.closed().await {
        state.half_closed();
        stream.broken().await;
    }
}

/// The status and the reason if the error says that the client has sent something that is not a request.
fn refusal(error: &hyper::Error) -> Option<(StatusCode, Reason)> {
    if error.is_parse_too_large() {
        // Only the text of the error says whether the target or the fields are too large.
        let target = error.to_string().starts_with("URI");
        let status = if target { StatusCode::URI_TOO_LONG } else { StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE };
        Some((status, Reason::MaxHeaderSize))
    } else {
        error.is_parse().then_some((StatusCode::BAD_REQUEST, Reason::BadHead))
    }
}

/// Records that the client has sent something that is not a request, and responds unless a response was sent.
fn refuse<H: Handler>(
    handler: &H,
    stream: &ClientStream,
    state: &ConnectionState,
    (status, reason): (StatusCode, Reason),
    is_answered: bool,
) {
    let answer = handler.refused(&HeadError { status, reason, took: state.age() });
    if !is_answered && !state.is_unsent() {
        // The response is short. If the system does not take all of it at once, the client does not read.
        let _ = stream.try_write(&answer);
    }
}

/// If the client still sends when the socket is closed, the system resets the connection, and the client may lose the
/// response. So what it sends is discarded for a while, until it has noticed that the gateway sends no more.
async fn linger(stream: &ClientStream, is_in_body: bool) {
    const LONGEST: Duration = Duration::from_secs(2);
    if is_in_body || stream.has_more() {
        stream.finish();
        let _ = tokio::time::timeout(LONGEST, stream.discard()).await;
    }
}

/// Removes a connection from those of its worker and frees its place, however its task ends.
pub(super) struct Registration {
    connections: Rc<Connections>,
    index: usize,
    _place: ConnectionPermit,
}

impl Registration {
    /// For the connection with this index.
    pub(super) fn new(connections: Rc<Connections>, index: usize, place: ConnectionPermit) -> Self {
        Self { connections, index, _place: place }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.leave(self.index);
    }
}
