//! One connection of HTTP/2 to an upstream server, and the streams on it.
//!
//! A new one is used when the settings of its server have come and allow a request. Otherwise more requests would be sent on it
//! than the server allows, and would wait in the library for others to end.

mod streams;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use http::uri::Scheme;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{AbortHandle, spawn_local};

use super::clients::ClientRequest;
use super::followed_stream::{Followed, PassedBytes};
use super::keep_alive::{Activity, Check, KeepAlive};
use crate::base::concurrency::ConcurrencyPermit;
use crate::server::{ReceivedBodies, Windows};
use crate::upstream::connection_limits::are_taken;
use crate::upstream::endpoint::{DestinationAddress, Endpoint};
use crate::upstream::error::UpstreamError;
use crate::upstream::stall::StallTimer;
use crate::upstream::stream::UpstreamStream;

pub(in crate::upstream) use streams::OpenStream;
pub(super) use streams::Upload;
use streams::{Cancelled, EndOfCancelled};

/// How many streams of a connection are used, if the server allows as many.
const MOST_STREAMS: usize = 100;
/// How much a server may send ahead of its clients, over all connections to it: on a stream enough for 1 Gbit/s at 20 ms, which
/// is 2.5 MB, and not less than the protocol's initial window.
const WINDOWS: Windows = Windows { largest: 4 << 20, smallest: 64 << 10, budget: 32 << 20 };
/// The largest head of a response, as with HTTP/1.1.
const MAX_HEADER_LIST: u32 = 64 << 10;
/// How many bytes of a request's body may wait in the library for the server, for each stream.
const SEND_BUFFER: usize = 256 << 10;
/// How much memory small frames may take in the library beyond their content, in bytes. Those of bodies are taken out of it, so
/// these come before the body has a reader, or after its stream was reset.
const SMALL_FRAMES: usize = 32 << 20;
/// How long a server may still send frames on a stream that was reset.
const RECENT: Duration = Duration::from_secs(10);
/// How many streams are reset before a connection begins no more: servers defend themselves from some hundreds on.
const MOST_RESETS: usize = 256;
/// How many empty pieces of bodies come before a connection begins no more streams: the library ends it after 100.
const MOST_EMPTY: usize = 50;
/// How much of the window of all bodies must be left for a further one: a frame of the size that every server accepts. Servers
/// grant more at the latest when half of the window is used, and that is at least 32 KiB.
const LEAST_WINDOW: u64 = 16 << 10;
const SPARE_TIMERS: usize = 64;

/// A connection. It ends when nobody refers to it, after its last stream.
#[derive(Debug)]
pub(super) struct Http2Connection {
    requests: SendRequest<Bytes>,
    pub(super) scheme: Scheme,
    pub(super) peer: DestinationAddress,
    endpoint: Arc<Endpoint>,
    /// By the clock of its pool.
    pub(super) connected_at: Instant,
    /// The client to which this connection belongs; `None` if clients share it.
    owner: Cell<Option<SocketAddr>>,
    /// Whether several clients have used it since it was idle last, or may do so.
    is_shared: Cell<bool>,
    state: Rc<State>,
    /// What the pool knows of it since its last check.
    checked: RefCell<Checked>,
    task: AbortHandle,
    pub(super) cancelled: Rc<Cancelled>,
    timers: RefCell<Vec<StallTimer>>,
    /// The places of connections, of which it has one.
    places: Arc<Semaphore>,
    /// Its part of the share of the client for which it was made.
    _share: Option<ConcurrencyPermit>,
}

/// What the task of the connection shares with its streams.
#[derive(Debug, Default)]
struct State {
    /// Open streams.
    streams: Cell<usize>,
    /// Open streams on all connections to the server.
    of_server: Rc<Cell<usize>>,
    /// Streams that the gateway has reset.
    resets: Cell<usize>,
    /// Bodies of requests that are not sent completely.
    uploads: Cell<usize>,
    /// Streams so far.
    begun: Cell<u64>,
    traffic: Rc<PassedBytes>,
    /// Of responses.
    bodies: Rc<ReceivedBodies>,
    is_dead: Cell<bool>,
    /// Whether the server has refused a stream since the last check.
    refuses: Cell<bool>,
    /// Whether it begins no further stream.
    is_retired: Cell<bool>,
}

impl State {
    fn count_reset(&self) {
        self.resets.set(self.resets.get() + 1);
    }
}

/// How well a connection suits a request: the least suits best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Placement {
    /// Nobody else can hold up or break the request there.
    Well,
    /// Another client with many requests could, or one of so many bodies that are being sent.
    Crowded(usize),
    /// The body would wait until the server reads others, or a client with many requests would meet others.
    Badly,
}

#[derive(Debug)]
struct Checked {
    pings: Option<PingPong>,
    keep_alive: KeepAlive,
    begun: u64,
    idle_since: Instant,
}

impl Http2Connection {
    /// Begins to speak HTTP/2 on a stream to `endpoint`, and waits until the server's settings allow a stream. The age of the
    /// connection counts from `now`; its requests have the time limit `timeout`. `of_server` counts the streams on all
    /// connections to the server. Fails when the connection ends before, or the server does not speak HTTP/2.
    pub(super) async fn open(
        stream: UpstreamStream,
        endpoint: Arc<Endpoint>,
        timeout: Duration,
        now: Instant,
        of_server: Rc<Cell<usize>>,
        share: Option<ConcurrencyPermit>,
    ) -> Result<Rc<Self>, UpstreamError> {
        let peer = stream.peer().map_err(UpstreamError::Closed)?;
        let scheme = if stream.is_tls() { Scheme::HTTPS } else { Scheme::HTTP };
        let places = stream.places();
        let state = Rc::new(State { of_server, ..State::default() });
        let followed = Followed::new(stream, state.traffic.clone(), state.bodies.clone());
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(WINDOWS.largest)
            .initial_connection_window_size(WINDOWS.of_connection(MOST_STREAMS))
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(SMALL_FRAMES)
            // All that a connection resets, which are at most the open ones when it begins no more.
            .max_concurrent_reset_streams(MOST_RESETS + MOST_STREAMS)
            .reset_stream_duration(RECENT);
        let (requests, mut connection) = builder.handshake(followed).await.map_err(failure)?;
        let pings = connection.ping_pong();
        let (tell, begun) = oneshot::channel();
        let cancelled = Rc::new(Cancelled::default());
        let end = EndOfCancelled(Rc::downgrade(&cancelled));
        let task = spawn_local(run(connection, state.clone(), tell, end)).abort_handle();
        begun.await.unwrap_or(Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into())))?;
        let keep_alive = KeepAlive::new(timeout, now);
        let checked = RefCell::new(Checked { pings, keep_alive, begun: 0, idle_since: now });
        Ok(Rc::new(Self {
            requests,
            scheme,
            peer,
            endpoint,
            connected_at: now,
            owner: Cell::default(),
            is_shared: Cell::default(),
            state,
            checked,
            task,
            cancelled,
            timers: RefCell::default(),
            places,
            _share: share,
        }))
    }

    /// Whether the connection may begin further streams, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        let polled = self.requests.clone().poll_ready(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Err(_)) = polled {
            // It has ended, or the server has announced that.
            self.retire();
        }
        !self.is_retired()
    }

    /// Whether the connection is open, or has streams that go on or are still to be reset.
    pub(super) fn is_needed(&self) -> bool {
        let has_streams = || !self.is_idle() || self.cancelled.count() > 0;
        self.is_open() || (has_streams() && !self.task.is_finished())
    }

    /// Whether it begins no further stream, as far as was known when [`Self::is_open`] was called last. After too many resets the
    /// server might end the connection, and after too many empty pieces of bodies the library would.
    pub(super) fn is_retired(&self) -> bool {
        let State { is_retired, resets, traffic, .. } = &*self.state;
        is_retired.get() || resets.get() >= MOST_RESETS || traffic.empty.get() >= MOST_EMPTY
    }

    /// Whether it takes no further stream now.
    pub(super) fn is_full(&self) -> bool {
        let State { refuses, streams, .. } = &*self.state;
        let open = streams.get() + self.cancelled.count();
        refuses.get() || self.is_retired() || open >= self.limit()
    }

    /// Whether it has no stream and its server allows none, so that it is of no use.
    pub(super) fn allows_nothing(&self) -> bool {
        self.is_idle() && self.limit() == 0
    }

    /// Begins no further stream until the next check: a server that refuses one is often about to end the connection.
    pub(super) fn refuses(&self) {
        self.state.refuses.set(true);
    }

    /// Begins no further stream.
    pub(super) fn retire(&self) {
        self.state.is_retired.set(true);
    }

    /// How many streams it may have. The server may allow none at times.
    pub(super) fn limit(&self) -> usize {
        self.requests.current_max_send_streams().min(MOST_STREAMS)
    }

    /// For a client that is the `owner` of connections, or shares them if that is `None`.
    pub(super) fn placement(&self, owner: Option<SocketAddr>, has_body: bool) -> Placement {
        if self.is_idle() {
            return Placement::Well;
        }
        let State { uploads, traffic, .. } = &*self.state;
        let (has, uploads) = (self.owner.get(), if has_body { uploads.get() } else { 0 });
        if has.is_some() != owner.is_some() || (has_body && traffic.window() < LEAST_WINDOW) {
            Placement::Badly
        } else if has != owner || (owner.is_none() && uploads > 0) {
            Placement::Crowded(uploads)
        } else {
            Placement::Well
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state.streams.get() == 0
    }

    pub(super) fn is_owned(&self) -> bool {
        !self.is_idle() && self.owner.get().is_some()
    }

    pub(super) fn is_place_wanted(&self) -> bool {
        are_taken(&self.places)
    }

    /// `is_new` says whether the connection was made for this request.
    pub(super) fn begin(self: &Rc<Self>, client: ClientRequest, is_new: bool) -> OpenStream {
        let State { streams, of_server, begun, .. } = &*self.state;
        if self.is_idle() {
            self.owner.set(client.owner);
            self.is_shared.set(client.owner.is_none());
        } else if self.owner.get() != client.owner {
            self.is_shared.set(true);
        }
        streams.set(streams.get() + 1);
        of_server.set(of_server.get() + 1);
        begun.set(begun.get() + 1);
        let stall = self.timers.borrow_mut().pop();
        OpenStream { connection: self.clone(), client, is_new, is_sent: Cell::new(false), sender: None, stall }
    }

    /// Checks whether the server still answers, and whether the connection is used. Returns since when it has no stream;
    /// `None` if it has some.
    pub(super) fn check(&self, now: Instant) -> Option<Instant> {
        let State { streams, begun, traffic, refuses, .. } = &*self.state;
        refuses.set(false);
        self.cancelled.check();
        let mut checked = self.checked.borrow_mut();
        let Checked { pings, keep_alive, .. } = &mut *checked;
        if let Some(pings) = pings {
            let cx = &mut Context::from_waker(Waker::noop());
            let is_answered = matches!(pings.poll_pong(cx), Poll::Ready(Ok(_)));
            let activity = Activity { received: traffic.received.get(), begun: begun.get() };
            match keep_alive.check(now, activity, is_answered, streams.get() > 0) {
                Check::Well => {}
                // If the connection has ended, its task knows already.
                Check::Ask => _ = pings.send_ping(Ping::opaque()),
                Check::Dead => {
                    tracing::debug!(peer = %self.peer, "a connection is ended: the server does not answer a ping");
                    self.state.is_dead.set(true);
                    self.retire();
                    self.task.abort();
                }
            }
        }
        if streams.get() > 0 || begun.get() != checked.begun {
            (checked.begun, checked.idle_since) = (begun.get(), now);
        }
        (streams.get() == 0).then_some(checked.idle_since)
    }

    pub(super) fn why_closed(&self) -> Option<io::Error> {
        let why = || io::Error::new(io::ErrorKind::TimedOut, "the server does not answer a ping");
        self.state.is_dead.get().then(why)
    }
}

/// Lets the library work until the connection ends. Reports when the server's settings allow a stream, or why they do not. `end`
/// is dropped at last.
async fn run(
    mut connection: Connection<impl AsyncRead + AsyncWrite + Unpin, Bytes>,
    state: Rc<State>,
    tell: oneshot::Sender<Result<(), UpstreamError>>,
    end: EndOfCancelled,
) {
    let (mut window, mut tell) = (WINDOWS.largest, Some(tell));
    let ended = poll_fn(|cx| {
        let wanted = WINDOWS.of_stream(state.of_server.get());
        // While the server has not confirmed one change, there can be no other. Its confirmation polls this again.
        if wanted != window && connection.set_initial_window_size(wanted).is_ok() {
            window = wanted;
        }
        let polled = Pin::new(&mut connection).poll(cx);
        // A pending poll has used all frames that have come.
        if polled.is_pending() && state.traffic.has_begun.get() && connection.max_concurrent_send_streams() > 0 {
            // The attempt to connect may have been given up.
            tell.take().map(|tell| tell.send(Ok(())));
        }
        if polled.is_pending() && state.bodies.take() {
            // The library reads on after the tasks of the streams, which may have to take heads before bodies.
            cx.waker().wake_by_ref();
        }
        polled
    });
    let ended = ended.await;
    if let Err(error) = &ended {
        tracing::debug!(%error, "a connection of HTTP/2 to an upstream ended");
    }
    if let Some(tell) = tell {
        let eof = || UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into());
        let _ = tell.send(Err(ended.err().map_or_else(eof, failure)));
    }
    drop(end);
}

pub(super) fn failure(error: h2::Error) -> UpstreamError {
    if error.is_library() {
        return UpstreamError::BadHttp2(error.to_string());
    }
    let text = error.to_string();
    UpstreamError::Closed(error.into_io().unwrap_or_else(|| io::Error::other(text)))
}
