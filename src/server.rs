//! The client's side: connections with their time limits, and draining. Requests go to a [`Handler`].
//!
//! Each worker has its own socket for every address, and the kernel spreads connections over the workers. The handler borrows
//! the request and fills the response in place: the HTTP library moves both several times between its layers, and moving
//! 200 bytes that were just written costs about 0.4 % of a refused request.

mod connection;
mod connections;
mod listeners;
mod connection_limits;
mod worker_state;
mod time_limits;
mod lifecycle;
mod connection_state;
mod http1;
mod http2_errors;
mod http2;
mod client_body;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body::Body;
use rustls::server::ServerConnection;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_local};

pub use client_body::{ClientBody, ClientBodyError};
pub use connection_limits::{ConnectionCounts, TrafficLimits, connections_for, raise_handles};
pub use connection_state::RequestGuard;
#[cfg(any(test, fuzzing))]
pub(crate) use http1::check_framing;
#[cfg(any(test, fuzzing))]
pub(crate) use http2::check_frames;
pub use http2::{
    Frames, InterimResponses, Piece, ReceivedBodies, ReceivedBody, Windows, flag as frame_flag, kind as frame_kind,
    poll_granted,
};
pub use http2_errors::Http2Errors;
pub use listeners::{Listener, ListenerChange};

use connection::{Registration, serve};
use connection_limits::ConnectionPermit;
use connections::Connections;
use listeners::Listeners;

use crate::base::reason::Reason;
use crate::net::tls::{ClientCertificate, ListenerTls};
use crate::net::{Duplex, Traffic};
use crate::sources::acme::Challenges;

/// The smallest size of the HTTP library's buffers: its default. A whole head must fit.
const LEAST_BUFFER: usize = 408 << 10;

/// The handler borrows a request, because it is large.
pub struct IncomingRequest {
    pub head: Parts,
    /// `None` if the request has no body, and once it was taken.
    pub body: Option<ClientBody>,
    /// Why the request can be read in two ways, if it can. Then it must not be served.
    pub ambiguity: Option<&'static str>,
    pub asks_for_websocket: bool,
    /// `None` if the client must not get interim responses.
    pub interim: Option<InterimResponses>,
    /// What becomes of the connection after the response. The handler sets it if its response accepts a WebSocket.
    pub tunnel: Option<Tunnel>,
    /// The handler sets this if the client gets no response, for clients that do not even get a refusal. In HTTP/1.1 the
    /// connection is closed after the responses to earlier requests. In HTTP/2 the stream is reset.
    pub is_unanswered: bool,
}

/// What a handler does with the client's stream once its response has accepted a tunnel. Then both sides have agreed on another
/// protocol, and only bytes pass.
pub type Tunnel = Box<dyn FnOnce(TunnelStream) -> Pin<Box<dyn Future<Output = ()>>>>;

pub type TunnelStream = Box<dyn Duplex>;

#[derive(Clone, Debug)]
pub struct ConnectedClient {
    /// The other side of the connection, or the client that the PROXY protocol names.
    pub address: SocketAddr,
    pub tls: Option<Rc<TlsPeer>>,
    pub traffic: Traffic,
}

#[derive(Debug)]
pub struct TlsPeer {
    /// Only if it was verified.
    pub certificate: Option<ClientCertificate>,
    /// Such as `TLSv1.3`.
    pub version: &'static str,
}

impl TlsPeer {
    fn of(connection: &ServerConnection) -> Self {
        let first = connection.peer_certificates().and_then(<[_]>::first);
        let version = connection.protocol_version().and_then(|version| version.as_str()).unwrap_or_default();
        Self { certificate: first.map(ClientCertificate::read), version }
    }
}

pub trait Handler: 'static {
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Default + Unpin + 'static;

    /// Answers a request by filling `response`, which is empty at first and too large to be moved. The request is in flight
    /// until `guard` is dropped, which must happen when the body of the response has been sent, or cannot be sent any more.
    fn handle(
        &self,
        request: &mut IncomingRequest,
        response: &mut Response<Self::Body>,
        guard: RequestGuard,
    ) -> impl Future<Output = ()>;

    /// Records that the client has sent something that is not a request. Returns the response, which is sent unless the
    /// connection has already sent one.
    fn refused(&self, refusal: &HeadError) -> Vec<u8>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadError {
    pub status: StatusCode,
    pub reason: Reason,
    /// Since the first byte, as coarse as the time limits of connections.
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Running,
    /// Accepts no connections, and finishes the requests in flight.
    Draining,
    /// Waits for no request.
    Over,
}

/// Accepts connections and serves each with the handler that `connected` makes for its client. There are no listeners before
/// `changes` open some. At [`Stage::Draining`] it stops accepting, and returns when the last connection has ended or at
/// [`Stage::Over`], with the number of requests that were in flight then.
///
/// Must run on a thread's local runtime. Fails when one of the tasks that accept and watch connections panics.
pub async fn run<H: Handler>(
    mut changes: mpsc::UnboundedReceiver<ListenerChange>,
    tls: Arc<ListenerTls>,
    challenges: Arc<Challenges>,
    limits: TrafficLimits,
    mut stage: watch::Receiver<Stage>,
    connected: impl Fn(&ConnectedClient) -> H + 'static,
) -> io::Result<usize> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    // One write per response: the head and a small body go out together. `half_close` leaves it to the connection's task and
    // state what becomes of a client that sends no more.
    let max_header_size = limits.of(Traffic::Requests).server().max_header_size;
    builder.max_header_size(max_header_size).max_buf_size(max_header_size.max(LEAST_BUFFER));
    builder.writev(false).half_close(true);
    let connected: Rc<dyn Fn(&ConnectedClient) -> H> = Rc::new(connected);
    let acceptors = [Traffic::Requests, Traffic::Decisions].map(|traffic| {
        Rc::new(Acceptor {
            http1: builder.clone(),
            connections: Connections::new(limits.of(traffic).clone()),
            tls: tls.clone(),
            challenges: challenges.clone(),
            traffic,
            connected: connected.clone(),
        })
    });
    let mut background = JoinSet::new();
    for acceptor in &acceptors {
        let (watched, asked) = (acceptor.connections.clone(), acceptor.connections.clone());
        background.spawn_local(async move { watched.watch().await });
        background.spawn_local(async move { asked.make_room_for_others().await });
    }
    let mut listeners = Listeners::new(acceptors.clone(), stage.clone());
    loop {
        tokio::select! {
            biased;
            // Even if the gateway is about to stop, clients may already be connected to a new listener.
            Some(change) = changes.recv() => listeners.change(change),
            // Without a sender nothing would ever end the worker, so it drains then, too.
            _ = stage.wait_for(|stage| *stage >= Stage::Draining) => break,
            error = panicked(&mut listeners.accepting) => return Err(error),
            error = panicked(&mut background) => return Err(error),
        }
    }
    while listeners.accepting.join_next().await.is_some() {}
    let [requests, decisions] = acceptors.map(|acceptor| acceptor.connections.clone());
    tokio::select! {
        ((), ()) = async { tokio::join!(requests.drain(), decisions.drain()) } => Ok(0),
        _ = stage.wait_for(|stage| *stage == Stage::Over) => {
            let in_flight = requests.requests() + decisions.requests();
            // What has passed of their bodies is charged while the store still takes it.
            tokio::join!(requests.cut_off(), decisions.cut_off());
            Ok(in_flight)
        }
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

struct Acceptor<H> {
    http1: hyper::server::conn::http1::Builder,
    connections: Rc<Connections>,
    tls: Arc<ListenerTls>,
    challenges: Arc<Challenges>,
    traffic: Traffic,
    connected: Rc<dyn Fn(&ConnectedClient) -> H>,
}

impl<H: Handler> Acceptor<H> {
    /// The place of a connection from this peer, see [`ConnectionPermit::new`]. Other proxies that ask for decisions speak for
    /// several clients, so they send no preamble.
    fn permit(&self, peer: SocketAddr) -> Option<ConnectionPermit> {
        let limits = self.connections.limits();
        let expects_preamble = self.traffic == Traffic::Requests && limits.server().proxy_protocol;
        ConnectionPermit::new(limits, peer.ip(), expects_preamble)
    }

    /// Serves a new connection in its own task. The connection is registered before its task runs, so that a drain waits for it.
    fn open(
        self: &Rc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        listener: usize,
        is_tls: bool,
        place: ConnectionPermit,
    ) {
        let tls = if is_tls { self.tls.current(self.traffic) } else { None };
        if is_tls && tls.is_none() {
            // A TLS listener must not answer without TLS.
            return;
        }
        let client = ConnectedClient { address, tls: None, traffic: self.traffic };
        let (index, state) = self.connections.enter(listener);
        let registration = Registration { connections: self.connections.clone(), index, place };
        let task = spawn_local(serve(stream, client, self.clone(), tls, registration, state));
        self.connections.set_task(index, task.abort_handle());
    }
}

#[cfg(test)]
mod tests;
