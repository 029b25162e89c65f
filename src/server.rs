//! The client's side: connections with their time limits, and draining.
//!
//! Each worker has its own socket for every address, and the kernel spreads connections over the workers. This module
//! passes requests to a handler and does not know what the handler does with them.

mod connection;
mod connections;
mod framing_check;
mod file_handles;
mod connection_limits;
mod date_header;
mod worker_state;
mod time_limits;
mod connection_state;
mod request_guard;
mod client_io;
mod tunnel;
mod http1;
mod frames;
mod trailer_check;
mod frame_check;
mod http2_errors;
mod http2_head;
mod http2_response;
mod streams;
mod multiplexed_io;
mod http2;
mod send_window;
mod stream_tunnel;
mod interim_responses;
mod client_body;
mod unread_body;
mod http2_stream;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body::Body;
use rustls::server::ServerConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_local};

pub use client_body::{ClientBody, ClientBodyError};
pub use connection_limits::{ConnectionCounts, ConnectionLimits};
pub use file_handles::{connections as connections_for, raise as raise_handles};
pub use http2_errors::Http2Errors;
pub use interim_responses::InterimResponses;
pub use request_guard::RequestGuard;
pub use send_window::poll_granted;
pub use tunnel::{Tunnel, TunnelStream};

use connection::{Registration, serve};
use connection_limits::ConnectionPermit;
use connections::Connections;

use crate::reason::Reason;
use crate::tls::{ClientCertificate, ListenerTls};

/// The pause after a failed accept, since it mostly fails because file handles or memory are exhausted.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(20);

/// The smallest size of the HTTP library's buffers: its default. A whole head has to fit.
const LEAST_BUFFER: usize = 408 << 10;

/// A request as it came. It is large, so the handler borrows it.
pub struct IncomingRequest {
    /// Everything but the body.
    pub head: Parts,
    /// The body. `None` if the request has none, and once it was taken.
    pub body: Option<ClientBody>,
    /// Why the request can be read in two ways, if it can. Then it must not be served.
    pub ambiguity: Option<&'static str>,
    /// Whether the client asks for a WebSocket.
    pub asks_for_websocket: bool,
    /// Where interim responses go; `None` if the client cannot be sent any.
    pub interim: Option<InterimResponses>,
    /// What becomes of the connection after the response: the handler sets it if its response accepts a WebSocket.
    pub tunnel: Option<Tunnel>,
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct ConnectedClient {
    /// Its address: that of the other side, or the one that the PROXY protocol names.
    pub address: SocketAddr,
    /// What TLS says about it, if the connection uses TLS.
    pub tls: Option<Rc<TlsPeer>>,
}

/// What TLS says about a client.
#[derive(Debug)]
pub struct TlsPeer {
    /// The certificate that it has shown, and that was verified.
    pub certificate: Option<ClientCertificate>,
}

impl TlsPeer {
    fn of(connection: &ServerConnection) -> Self {
        let first = connection.peer_certificates().and_then(<[_]>::first);
        Self { certificate: first.and_then(ClientCertificate::read) }
    }
}

/// A listening socket and its protocol.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: std::net::TcpListener,
    /// Whether its connections use TLS.
    pub is_tls: bool,
}

/// Answers the requests of one connection.
pub trait Handler: 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Default + Unpin + 'static;

    /// Answers a request: it fills `response`, which is empty at first and too large to be moved. The request is in flight
    /// until `guard` is dropped, which has to happen when the body of the response has been sent, or cannot be sent any
    /// more.
    fn handle(
        &self,
        request: &mut IncomingRequest,
        response: &mut Response<Self::Body>,
        guard: RequestGuard,
    ) -> impl Future<Output = ()>;

    /// Records that the client has sent something that is not a request. Returns the bytes of the response, which are
    /// sent if the connection has sent no other response to it.
    fn refused(&self, refusal: &HeadError) -> Vec<u8>;
}

/// Why the HTTP library could not read a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadError {
    /// The status of the response.
    pub status: StatusCode,
    /// The reason for logs and metrics.
    pub reason: Reason,
    /// The time since the first byte came, as coarse as the time limits of connections.
    pub took: Duration,
}

/// The stages in the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It serves requests.
    Running,
    /// It accepts no connections, and finishes the requests in flight.
    Draining,
    /// It waits for no request any more.
    Over,
}

/// Accepts connections and serves each with the handler that `connected` makes for the address of its peer. At
/// [`Stage::Draining`] it stops to accept connections, and returns when the last connection has ended or at
/// [`Stage::Over`]. Returns how many requests were in flight then.
///
/// It has to run on a thread's local runtime.
///
/// # Errors
/// When a listener cannot be registered with the runtime, or one of the tasks that accept and watch connections panics.
pub async fn run<C, H>(
    listeners: Vec<Listener>,
    tls: Arc<ListenerTls>,
    limits: Arc<ConnectionLimits>,
    mut stage: watch::Receiver<Stage>,
    connected: C,
) -> io::Result<usize>
where
    C: Fn(&ConnectedClient) -> H + Clone + 'static,
    H: Handler,
{
    let connections = Connections::new(limits.clone());
    let mut background = JoinSet::new();
    let watched = connections.clone();
    background.spawn_local(async move { watched.watch().await });
    let asked = connections.clone();
    background.spawn_local(async move { asked.make_room_for_others().await });
    let mut builder = hyper::server::conn::http1::Builder::new();
    // One write per response: the head and a small body go out together. The connection's task and its state decide what
    // becomes of a client that sends no more.
    let max_header_size = limits.server().max_header_size;
    builder.max_header_size(max_header_size).max_buf_size(max_header_size.max(LEAST_BUFFER));
    builder.writev(false).half_close(true);
    let acceptor = Acceptor { http1: Rc::new(builder), connections: connections.clone(), tls, limits, connected };

    let mut accepting = JoinSet::new();
    for listener in listeners {
        let socket = TcpListener::from_std(listener.socket)?;
        accepting.spawn_local(accept(socket, listener.is_tls, acceptor.clone(), stage.clone()));
    }
    // If the sender is gone, nothing will ever end the worker, so it drains then as well.
    tokio::select! {
        _ = stage.wait_for(|stage| *stage >= Stage::Draining) => {}
        error = panicked(&mut accepting) => return Err(error),
        error = panicked(&mut background) => return Err(error),
    }
    while accepting.join_next().await.is_some() {}
    tokio::select! {
        () = connections.drain() => Ok(0),
        _ = stage.wait_for(|stage| *stage == Stage::Over) => Ok(connections.requests()),
    }
}

/// Ready when one of `tasks` panics. A worker needs all of them.
pub async fn panicked(tasks: &mut JoinSet<()>) -> io::Error {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            return io::Error::other(error);
        }
    }
    std::future::pending().await
}

/// What every connection of a worker needs.
#[derive(Clone)]
struct Acceptor<C> {
    http1: Rc<hyper::server::conn::http1::Builder>,
    connections: Rc<Connections>,
    tls: Arc<ListenerTls>,
    limits: Arc<ConnectionLimits>,
    connected: C,
}

impl<C, H> Acceptor<C>
where
    C: Fn(&ConnectedClient) -> H + Clone + 'static,
    H: Handler,
{
    /// Serves a new connection in its own task. The connection is registered before its task runs, so that a drain waits
    /// for it.
    fn open(&self, stream: TcpStream, address: SocketAddr, is_tls: bool, place: ConnectionPermit) {
        let tls = if is_tls { self.tls.current() } else { None };
        if is_tls && tls.is_none() {
            // A request for a TLS listener must not be answered without TLS.
            return;
        }
        let client = ConnectedClient { address, tls: None };
        let (index, state) = self.connections.enter();
        let registration = Registration::new(self.connections.clone(), index, place);
        spawn_local(serve(stream, client, self.clone(), tls, (registration, state)));
    }
}

async fn accept<C, H>(listener: TcpListener, is_tls: bool, acceptor: Acceptor<C>, mut stage: watch::Receiver<Stage>)
where
    C: Fn(&ConnectedClient) -> H + Clone + 'static,
    H: Handler,
{
    let mut draining = pin!(async move { stage.wait_for(|stage| *stage >= Stage::Draining).await.is_ok() });
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut draining => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(mut place) = ConnectionPermit::new(&acceptor.limits, peer.ip()) else { continue };
                let drains = tokio::select! {
                    biased;
                    () = acceptor.connections.wait_for_place(&mut place) => false,
                    _ = &mut draining => true,
                };
                // During a drain there may be no place for it.
                if place.take() {
                    acceptor.open(stream, peer, is_tls, place);
                }
                if drains {
                    break;
                }
            }
            Err(error) => match error.kind() {
                // The client has closed the connection before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {}
                _ => {
                    acceptor.connections.exhausted(&error);
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
        }
    }
    // The kernel may have accepted further connections, and would reset them when the socket is closed. It is asked
    // directly, because the runtime may not know of them yet.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let Some(mut place) = ConnectionPermit::new(&acceptor.limits, peer.ip()) else { continue };
        if !place.take() {
            continue;
        }
        match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            Ok(stream) => acceptor.open(stream, peer, is_tls, place),
            Err(error) => tracing::error!(%error, "cannot serve a connection"),
        }
    }
}

#[cfg(test)]
mod tests;
