//! One connection of HTTP/2 to an upstream server, and the streams on it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use http::Request;
use http::uri::Scheme;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_local};

use super::keep_alive::{Activity, Check, KeepAlive};
use super::windows::{CONNECTION_WINDOW, STREAM_WINDOW, stream_window};
use crate::upstream::endpoint::TargetAddress;
use crate::upstream::error::UpstreamError;
use crate::upstream::stall::StallTimer;
use crate::upstream::stream::UpstreamStream;

/// The largest head of a response, as with HTTP/1.1.
const MAX_HEADER_LIST: u32 = 64 << 10;
/// How many bytes of a request's body wait in the library for the server, for each stream.
const SEND_BUFFER: usize = 256 << 10;
/// How many timers are kept for further streams.
const SPARE_TIMERS: usize = 64;

/// A connection. It ends when nobody refers to it, after its last stream.
#[derive(Debug)]
pub(super) struct Http2Connection {
    requests: SendRequest<Bytes>,
    scheme: Scheme,
    /// The address of the server.
    pub(super) peer: TargetAddress,
    /// When it was made, by the clock of its pool.
    pub(super) connected_at: Instant,
    state: Rc<State>,
    /// What the pool knows of it since its last check.
    checked: RefCell<Checked>,
    task: AbortHandle,
    timers: RefCell<Vec<StallTimer>>,
}

/// What the task of the connection shares with its streams.
#[derive(Debug, Default)]
struct State {
    /// How many streams are open.
    streams: Cell<usize>,
    /// How many were begun.
    begun: Cell<u64>,
    /// How many bytes were received.
    received: Cell<u64>,
    /// Whether it has not answered a ping.
    is_dead: Cell<bool>,
    /// Whether the server has refused a stream since the last check.
    refuses: Cell<bool>,
}

#[derive(Debug)]
struct Checked {
    pings: Option<PingPong>,
    keep_alive: KeepAlive,
    begun: u64,
    /// Since when it has no streams.
    idle_since: Instant,
}

impl Http2Connection {
    /// Begins to speak HTTP/2 on a stream, and waits for the settings of the server: how many streams it allows. The age of
    /// the connection counts from `now`; its requests have the time limit `timeout`.
    ///
    /// # Errors
    /// When the connection ends before, or the server does not speak HTTP/2.
    pub(super) async fn open(
        stream: UpstreamStream,
        timeout: Duration,
        now: Instant,
    ) -> Result<Rc<Self>, UpstreamError> {
        let peer = stream.peer().map_err(UpstreamError::Closed)?;
        let scheme = if stream.is_tls() { Scheme::HTTPS } else { Scheme::HTTP };
        let state = Rc::new(State::default());
        let counted = CountedStream { stream, state: state.clone() };
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buffer_size(SEND_BUFFER);
        let (requests, mut connection) = builder.handshake(counted).await.map_err(failure)?;
        let pings = connection.ping_pong();
        let (tell, begun) = oneshot::channel();
        let task = spawn_local(run(connection, state.clone(), tell)).abort_handle();
        begun.await.unwrap_or(Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into())))?;
        let keep_alive = KeepAlive::new(timeout, now);
        let checked = RefCell::new(Checked { pings, keep_alive, begun: 0, idle_since: now });
        Ok(Rc::new(Self {
            requests,
            scheme,
            peer,
            connected_at: now,
            state,
            checked,
            task,
            timers: RefCell::default(),
        }))
    }

    /// How the server is reached.
    pub(super) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Whether requests can still be sent on it, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        let polled = self.requests.clone().poll_ready(&mut Context::from_waker(Waker::noop()));
        !self.state.is_dead.get() && !matches!(polled, Poll::Ready(Err(_)))
    }

    /// Whether the server allows no further stream now. It always allows one, even if it says that it allows none: such a
    /// request waits, until its time limit.
    pub(super) fn is_full(&self) -> bool {
        self.state.refuses.get() || self.state.streams.get() >= self.limit()
    }

    /// Begins no further stream until the next check: a server that refuses one is often about to end the connection.
    pub(super) fn refuses(&self) {
        self.state.refuses.set(true);
    }

    /// How many streams the server allows, at least one.
    pub(super) fn limit(&self) -> usize {
        self.requests.current_max_send_streams().max(1)
    }

    /// Begins a stream.
    pub(super) fn begin(self: &Rc<Self>) -> OpenStream {
        let State { streams, begun, .. } = &*self.state;
        streams.set(streams.get() + 1);
        begun.set(begun.get() + 1);
        OpenStream { connection: self.clone(), stall: self.timers.borrow_mut().pop() }
    }

    /// Looks whether the server still answers, and whether the connection is used. Returns since when it has no stream;
    /// `None` if it has some.
    pub(super) fn check(&self, now: Instant) -> Option<Instant> {
        let State { streams, begun, received, refuses, .. } = &*self.state;
        refuses.set(false);
        let mut checked = self.checked.borrow_mut();
        let Checked { pings, keep_alive, .. } = &mut *checked;
        if let Some(pings) = pings {
            let cx = &mut Context::from_waker(Waker::noop());
            let is_answered = matches!(pings.poll_pong(cx), Poll::Ready(Ok(_)));
            let activity = Activity { received: received.get(), begun: begun.get() };
            match keep_alive.check(now, activity, is_answered, streams.get() > 0) {
                Check::Well => {}
                // If the connection has ended, its task knows already.
                Check::Ask => _ = pings.send_ping(Ping::opaque()),
                Check::Dead => {
                    tracing::debug!(peer = %self.peer, "a connection is ended: the server does not answer a ping");
                    self.state.is_dead.set(true);
                    self.task.abort();
                }
            }
        }
        if streams.get() > 0 || begun.get() != checked.begun {
            (checked.begun, checked.idle_since) = (begun.get(), now);
        }
        (streams.get() == 0).then_some(checked.idle_since)
    }

    /// Why the gateway has ended the connection, if it has.
    pub(super) fn why_closed(&self) -> Option<io::Error> {
        let why = || io::Error::new(io::ErrorKind::TimedOut, "the server does not answer a ping");
        self.state.is_dead.get().then(why)
    }
}

/// Lets the library work until the connection ends. Tells when the server has begun to speak HTTP/2, or why it has not.
async fn run(
    mut connection: Connection<CountedStream, Bytes>,
    state: Rc<State>,
    tell: oneshot::Sender<Result<(), UpstreamError>>,
) {
    let (mut window, mut tell) = (STREAM_WINDOW, Some(tell));
    let ended = poll_fn(|cx| {
        let wanted = stream_window(state.streams.get());
        // While the server has not confirmed one change, there can be no other. Its confirmation polls this again.
        if wanted != window && connection.set_initial_window_size(wanted).is_ok() {
            window = wanted;
        }
        let polled = Pin::new(&mut connection).poll(cx);
        // The first thing that a server sends is its settings (RFC 9113, section 3.4).
        if polled.is_pending() && state.received.get() > 0 {
            // The attempt to connect may have been given up.
            tell.take().map(|tell| tell.send(Ok(())));
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
}

/// Why a connection has failed, or a stream before its response.
pub(super) fn failure(error: h2::Error) -> UpstreamError {
    if error.is_library() {
        return UpstreamError::BadHttp2(error.to_string());
    }
    let text = error.to_string();
    UpstreamError::Closed(error.into_io().unwrap_or_else(|| io::Error::other(text)))
}

/// A stream, from its request to the end of its response.
#[derive(Debug)]
pub(in crate::upstream) struct OpenStream {
    connection: Rc<Http2Connection>,
    stall: Option<StallTimer>,
}

impl OpenStream {
    /// Its connection.
    pub(super) fn connection(&self) -> &Http2Connection {
        &self.connection
    }

    /// Limits how long either side may take.
    pub(super) fn stall(&mut self) -> &mut StallTimer {
        self.stall.get_or_insert_with(StallTimer::new)
    }

    /// Sends the head of the request, which may end it.
    ///
    /// # Errors
    /// When the connection has ended, or the server has said that it ends. Nothing was sent then.
    pub(super) fn send(
        &self,
        head: Request<()>,
        is_end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        self.connection.requests.clone().send_request(head, is_end)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let Http2Connection { state, timers, .. } = &*self.connection;
        state.streams.set(state.streams.get() - 1);
        let mut timers = timers.borrow_mut();
        if timers.len() < SPARE_TIMERS {
            timers.extend(self.stall.take());
        }
    }
}

/// A stream to a server that counts the bytes that it receives.
#[derive(Debug)]
struct CountedStream {
    stream: UpstreamStream,
    state: Rc<State>,
}

impl AsyncRead for CountedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, state } = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(stream).poll_read(cx, buf);
        state.received.set(state.received.get() + (buf.filled().len() - before) as u64);
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
