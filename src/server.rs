//! Where clients come in: listening sockets, connections with their time limits, and draining.
//!
//! Each worker has a socket of its own for every address, and the kernel spreads connections over them.
//! Requests are handed to a handler; what becomes of them is not known here.

mod connection;
mod connections;
mod framing_check;
mod file_handles;
mod connection_limits;
mod worker_state;
mod connection_state;
mod client_io;

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
use hyper::body::Incoming;
use hyper::server::conn::http1;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_local};

pub use connection_limits::{ConnectionCounts, ConnectionLimits};
pub use connection_state::RequestGuard;
pub use file_handles::{connections as connections_for, raise as raise_handles};

use connection::{Registration, serve};
use connection_limits::ConnectionPermit;
use connections::Connections;

use crate::reason::Reason;

/// A pause after an accept that failed for want of file handles or memory, which the next one would too.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(20);

/// The least that the HTTP library may keep of what it reads, or has to write, at a time: its default. A head has to fit.
const LEAST_BUFFER: usize = 408 << 10;

/// A request as it came. It is large: who handles it borrows it.
#[derive(Debug)]
pub struct IncomingRequest {
    /// Everything but the body.
    pub head: Parts,
    /// The body. `None` if the request has none, and once it was taken.
    pub body: Option<Incoming>,
    /// Whether a head on this connection could be read in two ways: then this one is not to be served.
    pub is_ambiguous: bool,
}

/// What becomes of the requests of one connection.
pub trait Handler: 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static;

    /// Answers a request, which is under way until `guard` is dropped: when its body has gone out or cannot any more.
    fn handle(&self, request: &mut IncomingRequest, guard: RequestGuard) -> impl Future<Output = Response<Self::Body>>;

    /// What the client has sent never became a request. Returns the answer as it goes out, where nothing else has yet.
    fn refused(&self, refusal: &HeadError) -> Vec<u8>;
}

/// Why something never became a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadError {
    /// What it is answered.
    pub status: StatusCode,
    /// Why.
    pub reason: Reason,
    /// How long it took, as far as the time limits of connections tell.
    pub took: Duration,
}

/// How far the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Serving.
    Running,
    /// No new connections; requests under way are finished.
    Draining,
    /// No waiting any more.
    Over,
}

/// Accepts connections and serves each with what `connected` makes of its peer's address, until told to drain, then
/// until the last is gone or all is over. Returns how many requests were under way then.
///
/// Must run on a thread's local runtime.
///
/// # Errors
/// When a listener cannot be registered with the runtime, or one of the tasks that accept and watch connections panics.
pub async fn run<C, H>(
    listeners: Vec<std::net::TcpListener>,
    limits: Arc<ConnectionLimits>,
    mut stage: watch::Receiver<Stage>,
    connected: C,
) -> io::Result<usize>
where
    C: Fn(SocketAddr) -> H + Clone + 'static,
    H: Handler,
{
    let connections = Connections::new(limits.clone());
    let (watching, heeding) = (connections.clone(), connections.clone());
    let mut beside = JoinSet::new();
    beside.spawn_local(async move { watching.watch().await });
    beside.spawn_local(async move { heeding.heed().await });
    let mut builder = http1::Builder::new();
    // One write per response: the head and a small body go out together. The connection's task and its state decide what
    // becomes of a client that sends no more.
    let max_header_size = limits.server().max_header_size;
    builder.max_header_size(max_header_size).max_buf_size(max_header_size.max(LEAST_BUFFER));
    builder.writev(false).half_close(true);
    let acceptor = Acceptor { builder: Rc::new(builder), connections: connections.clone(), limits, connected };

    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn_local(accept(TcpListener::from_std(listener)?, acceptor.clone(), stage.clone()));
    }
    // A sender that is gone means the same as being told.
    tokio::select! {
        _ = stage.wait_for(|stage| *stage >= Stage::Draining) => {}
        error = panicked(&mut accepting) => return Err(error),
        error = panicked(&mut beside) => return Err(error),
    }
    while accepting.join_next().await.is_some() {}
    tokio::select! {
        () = connections.drain() => Ok(0),
        _ = stage.wait_for(|stage| *stage == Stage::Over) => Ok(connections.requests()),
    }
}

/// Ready when one of `tasks` panics, which a worker cannot do without.
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
    builder: Rc<http1::Builder>,
    connections: Rc<Connections>,
    limits: Arc<ConnectionLimits>,
    connected: C,
}

impl<C, H> Acceptor<C>
where
    C: Fn(SocketAddr) -> H + Clone + 'static,
    H: Handler,
{
    /// Has a new connection served. It is on the register before its task runs: a drain must know of it.
    fn open(&self, stream: TcpStream, peer: SocketAddr, place: ConnectionPermit) {
        let (index, state) = self.connections.enter();
        let registration = Registration::new(self.connections.clone(), index, place);
        spawn_local(serve(stream, peer, self.clone(), (registration, state)));
    }
}

async fn accept<C, H>(listener: TcpListener, acceptor: Acceptor<C>, mut stage: watch::Receiver<Stage>)
where
    C: Fn(SocketAddr) -> H + Clone + 'static,
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
                // Where it drains there may be no place for it.
                if place.take() {
                    acceptor.open(stream, peer, place);
                }
                if drains {
                    break;
                }
            }
            Err(error) => match error.kind() {
                // The client went away before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {}
                _ => {
                    acceptor.connections.exhausted(&error);
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
        }
    }
    // Those that the kernel has taken in already would be reset when the socket closes. It is asked directly: the
    // runtime may not know of them yet.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let Some(mut place) = ConnectionPermit::new(&acceptor.limits, peer.ip()) else { continue };
        if !place.take() {
            continue;
        }
        match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            Ok(stream) => acceptor.open(stream, peer, place),
            Err(error) => tracing::error!(%error, "cannot serve a connection"),
        }
    }
}

#[cfg(test)]
mod tests;
