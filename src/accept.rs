//! Where clients come in: listening sockets, connections with their time limits, and draining.
//!
//! Each worker has a socket of its own for every address, and the kernel spreads connections over them.
//! Requests are handed to a handler; what becomes of them is not known here.

mod connections;
mod framing;
mod handles;
mod limits;
mod listen;
mod recording;
mod stream;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_local};

pub use handles::{connections as connections_for, raise as raise_handles};
pub use limits::{ConnectionCounts, ConnectionLimits};
pub use listen::{bind, is_v6_only};

use connections::{Busy, Connections, End, Slot};
use limits::Place;
use stream::{Noting, Shared, Watched};

use crate::clock::Time;

/// A pause after an accept that failed for want of file handles or memory, which the next one would too.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(20);

/// A request as it came. It is large: who handles it borrows it.
#[derive(Debug)]
pub struct Arrival {
    /// Everything but the body.
    pub head: Parts,
    /// The body, for whoever takes it; `None` if nothing is to come.
    pub body: Option<Incoming>,
    /// Whether a head on this connection could be read in two ways: then this one is not to be served.
    pub is_ambiguous: bool,
    /// Whether its bytes are kept, and are to be those of its answer.
    pub is_kept: bool,
    /// Set by the handler: the very same answer might be given to the same bytes, if they come next. Where they are kept
    /// it is asked then.
    pub may_repeat: bool,
}

/// What becomes of the requests of one connection.
pub trait Handler: 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin + 'static;

    /// Answers a request.
    fn handle(&self, request: &mut Arrival) -> impl Future<Output = Response<Self::Body>>;

    /// The last request has come again at `now`, byte for byte, after an answer that might be given again, and in the
    /// second that this is dated with. Whether it is given again: then the request is over with that.
    fn repeats(&self, now: Time) -> bool;
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
/// until the last is gone or all is over. Returns how many of them had a request under way then.
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
    let heeded = limits.clone();
    beside.spawn_local(async move { heeded.heed(&heeding).await });
    let mut builder = http1::Builder::new();
    // Not `pipeline_flush`: between requests a recording relies on what was answered being out once it is flushed.
    // One write per response: the head and a small body go out together. What becomes of clients that send no more is
    // decided by `poll_gone` and the register.
    builder.max_header_size(limits.server().max_header_size).writev(false).half_close(true);
    let door = Door { builder: Rc::new(builder), connections: connections.clone(), limits, connected };

    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn_local(accept(TcpListener::from_std(listener)?, door.clone(), stage.clone()));
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
        _ = stage.wait_for(|stage| *stage == Stage::Over) => Ok(connections.busy()),
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
struct Door<C> {
    builder: Rc<http1::Builder>,
    connections: Rc<Connections>,
    limits: Arc<ConnectionLimits>,
    connected: C,
}

impl<C, H> Door<C>
where
    C: Fn(SocketAddr) -> H + Clone + 'static,
    H: Handler,
{
    /// Has a new connection served. It is on the register before its task runs: a drain must know of it.
    fn open(&self, stream: TcpStream, peer: SocketAddr, place: Place) {
        let (index, slot) = self.connections.enter();
        let leaving = Leaving { connections: self.connections.clone(), index, _place: place };
        spawn_local(serve(stream, peer, self.clone(), (leaving, slot)));
    }
}

async fn accept<C, H>(listener: TcpListener, door: Door<C>, mut stage: watch::Receiver<Stage>)
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
                let Some(mut place) = Place::new(&door.limits, peer.ip()) else { continue };
                let drains = tokio::select! {
                    biased;
                    () = door.limits.wait_for(&mut place, &door.connections) => false,
                    _ = &mut draining => true,
                };
                // Where it drains there may be no place for it.
                if place.take() {
                    door.open(stream, peer, place);
                }
                if drains {
                    break;
                }
            }
            Err(error) => match error.kind() {
                // The client went away before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {}
                _ => {
                    door.limits.exhausted(&error, &door.connections);
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
        }
    }
    // Those that the kernel has taken in already would be reset when the socket closes. It is asked directly: the
    // runtime may not know of them yet.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, peer)) = listener.accept() {
        let Some(mut place) = Place::new(&door.limits, peer.ip()) else { continue };
        if !place.take() {
            continue;
        }
        match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            Ok(stream) => door.open(stream, peer, place),
            Err(error) => tracing::error!(%error, "cannot serve a connection"),
        }
    }
}

async fn serve<C, H>(stream: TcpStream, peer: SocketAddr, door: Door<C>, (leaving, slot): (Leaving, Rc<Slot>))
where
    C: Fn(SocketAddr) -> H + Clone + 'static,
    H: Handler,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let requests = slot.clone();
    let handler = Rc::new((door.connected)(peer));
    let asked = handler.clone();
    let room = Rc::new(RefCell::new(None));
    let service = service_fn(move |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let body = (!body.is_end_stream()).then_some(body);
        let (is_ambiguous, is_kept) = (requests.is_ambiguous(), requests.is_kept());
        let mut arrival = Arrival { head, body, is_ambiguous, is_kept, may_repeat: false };
        let busy = requests.begin();
        let (handler, room) = (handler.clone(), room.clone());
        // Called where it is awaited: what it returns is large, and moved it would be copied.
        async move {
            let response = handler.handle(&mut arrival).await.map(|body| {
                busy.may_repeat(arrival.may_repeat);
                Tracked::new(body, room, busy)
            });
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let stream = Rc::new(RefCell::new(stream));
    let connection = door.builder.serve_connection(Noting::wrap(stream.clone(), slot.clone(), asked), service);
    if let Err(error) = until_ended(connection, &stream, &slot).await {
        tracing::debug!(%error, %peer, "connection failed");
    }
    drop(leaving);
}

/// Drives a connection until it is over, its client has gone, or its slot says that it is to end.
async fn until_ended<H, S, B>(
    connection: http1::Connection<Watched<H>, S>,
    stream: &Shared,
    slot: &Slot,
) -> hyper::Result<()>
where
    H: Handler,
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut connection = pin!(connection);
    let mut told = false;
    poll_fn(|cx| {
        loop {
            let last = match slot.poll_end(cx) {
                Some(End::Now(_)) => return Poll::Ready(Ok(())),
                Some(End::AfterRequest) => !told,
                None => false,
            };
            if last && slot.is_busy() {
                told = true;
                connection.as_mut().graceful_shutdown();
            } else if last && !stream::has_more(stream) {
                return Poll::Ready(Ok(()));
            }
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() && stream::poll_gone(stream, slot, cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            // The last request may have begun just now, or be over already.
            let waits = !slot.is_busy() && last && stream::has_more(stream);
            if polled.is_ready() || !last || told || waits {
                return polled;
            }
        }
    })
    .await
}

/// Takes a connection off the register however its task ends, and gives its place back.
struct Leaving {
    connections: Rc<Connections>,
    index: usize,
    _place: Place,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.connections.leave(self.index);
    }
}

/// A response body; the request is under way until it is dropped.
///
/// Bodies are large, and the HTTP library moves them several times. So they stay in the room that their connection has
/// for one, and this is only the key to it.
struct Tracked<B> {
    room: Rc<RefCell<Option<B>>>,
    _busy: Busy,
}

impl<B> Tracked<B> {
    fn new(body: B, room: Rc<RefCell<Option<B>>>, busy: Busy) -> Self {
        *room.borrow_mut() = Some(body);
        Self { room, _busy: busy }
    }
}

impl<B> Drop for Tracked<B> {
    fn drop(&mut self) {
        *self.room.borrow_mut() = None;
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match &mut *self.room.borrow_mut() {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.room.borrow().as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.room.borrow().as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

#[cfg(test)]
mod tests;
