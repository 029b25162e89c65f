//! The state of one connection and of its requests in flight: they and its task record events in it, the timer checks its
//! limits, and its task learns what to do next while it drives the HTTP library. [`lifecycle`](super::lifecycle) has the rules.

use std::cell::{Cell, Ref, RefCell};
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::lifecycle::{CloseReason, Event, Lifecycle, Step};
use super::time_limits::{EXPECTED_FOR, SILENCE, TimeLimits, UNLIMITED, is_over, millis};
use super::worker_state::{Coarse, WorkerState};
use crate::base::deadline::Deadline;
use crate::base::reason::Reason;

/// How long a connection whose place is needed may take to end, in milliseconds, before another one is asked instead. Its
/// client may go on sending.
const MAKES_ROOM_WITHIN: Coarse = EXPECTED_FOR + 2 * SILENCE;

/// The streams of an HTTP/2 connection, which have a time limit of their own.
pub(super) trait TimedStreams: Debug {
    /// Those that have waited for their client for too long.
    fn reset_stalled(&self, now: Coarse, limits: &TimeLimits);
}

pub(super) struct ConnectionState {
    lifecycle: RefCell<Lifecycle>,
    /// Wakes the task when its last step no longer holds. Few connections need it.
    timer: RefCell<Option<Deadline>>,
    pub(super) streams: RefCell<Option<Rc<dyn TimedStreams>>>,
    waker: RefCell<Option<Waker>>,
    /// Since when this connection is about to free its place for another one.
    makes_room_since: Cell<Option<Coarse>>,
    pub(super) worker: Rc<WorkerState>,
    /// How often everything that the library had was sent, and the tasks that wait for that.
    flushes: Cell<u64>,
    await_flush: RefCell<Vec<Waker>>,
}

/// The next moment at which everything that the library has is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush(u64);

impl ConnectionState {
    pub(super) fn new(worker: Rc<WorkerState>) -> Self {
        worker.add_idle();
        let lifecycle = RefCell::new(Lifecycle::new(worker.now()));
        let (timer, streams, waker, makes_room_since, flushes, await_flush) = Default::default();
        Self { lifecycle, timer, streams, waker, makes_room_since, worker, flushes, await_flush }
    }

    pub(super) fn lifecycle(&self) -> Ref<'_, Lifecycle> {
        self.lifecycle.borrow()
    }

    #[expect(clippy::inline_always, reason = "of all cases, each caller needs one")]
    #[inline(always)]
    pub(super) fn record(&self, event: Event) {
        let mut lifecycle = self.lifecycle.borrow_mut();
        let was_busy = event.may_finish() && !lifecycle.is_idle();
        lifecycle.record(event, self.worker.now());
        if was_busy && lifecycle.is_idle() {
            self.becomes_idle(event, &mut lifecycle);
        }
        if self.makes_room_since.get().is_some() && lifecycle.is_busy() {
            self.set_makes_room(false);
        }
        if lifecycle.has_to_end()
            && matches!(event, Event::Ends | Event::Drains | Event::RequestEnds | Event::LeftUnanswered)
        {
            self.wake();
        }
    }

    /// A connection that becomes idle ends if its place is needed.
    fn becomes_idle(&self, event: Event, lifecycle: &mut Lifecycle) {
        self.worker.add_idle();
        let has_served = matches!(event, Event::RequestEnds | Event::Sent(_)) && !lifecycle.is_fresh();
        if has_served && self.worker.limits.claim() {
            lifecycle.record(Event::Ends, self.worker.now());
            self.set_makes_room(true);
        }
    }

    pub(super) fn make_room(&self) {
        self.record(Event::Ends);
        self.set_makes_room(true);
    }

    fn set_makes_room(&self, is_so: bool) {
        let since = is_so.then(|| self.worker.now());
        if self.makes_room_since.replace(since).is_some() != is_so {
            self.worker.limits.count_ending(is_so);
        }
    }

    /// Ends the connection if it has waited for its client for too long.
    pub(super) fn check(&self, time_limits: &TimeLimits, now: Coarse) {
        if let Some(streams) = &*self.streams.borrow() {
            streams.reset_stalled(now, time_limits);
        }
        if is_over(self.makes_room_since.get(), MAKES_ROOM_WITHIN, now) {
            self.set_makes_room(false);
        }
        if self.lifecycle.borrow_mut().check(time_limits, now) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// The next moment at which everything that the library has now is sent.
    pub(super) fn flush(&self) -> Flush {
        Flush(self.flushes.get() + 1)
    }

    pub(super) fn poll_flushed(&self, Flush(count): Flush, cx: &mut Context<'_>) -> Poll<()> {
        if self.flushes.get() >= count {
            return Poll::Ready(());
        }
        let mut waiting = self.await_flush.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
            self.wake();
        }
        Poll::Pending
    }

    /// The library has sent what it can. If nothing waits for the client, that is everything.
    pub(super) fn has_sent(&self) {
        if !self.lifecycle().is_unsent() {
            self.flushes.set(self.flushes.get() + 1);
            let mut waiting = self.await_flush.borrow_mut();
            if !waiting.is_empty() {
                waiting.drain(..).for_each(Waker::wake);
            }
        }
    }

    /// What the task of the connection has to do next; see [`Lifecycle::step`]. The task is woken when that changes.
    pub(super) fn step(&self, cx: &mut Context<'_>, is_unread: impl FnOnce() -> bool) -> Step {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        let mut lifecycle = self.lifecycle.borrow_mut();
        let step = lifecycle.step(|| self.worker.exact_now(), is_unread);
        let mut timer = self.timer.borrow_mut();
        match lifecycle.expected_until().map(|until| self.worker.begun + Duration::from_millis(until)) {
            Some(until) => {
                let timer = timer.get_or_insert_with(|| Deadline::at(until));
                timer.set_at(until);
                // If the time is over, this step is already the last one, or follows after unread bytes.
                let _ = timer.poll(cx);
            }
            None if timer.is_some() => *timer = None,
            None => {}
        }
        step
    }

    /// The result of a handshake; `None` if the connection must end before it is complete.
    pub(super) async fn in_time<F: Future>(&self, handshake: F) -> Option<F::Output> {
        let mut handshake = pin!(handshake);
        poll_fn(|cx| match self.step(cx, || true) {
            Step::Close(_) => Poll::Ready(None),
            _ => handshake.as_mut().poll(cx).map(Some),
        })
        .await
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.set_makes_room(false);
    }
}

pub(super) enum Ended<E> {
    Closed,
    Failed(E),
    /// The gateway ends it.
    Cut(CloseReason),
    /// It stays open: no request is in flight, and none has come for a while.
    Rests,
}

/// `poll` drives the library. Its argument is true once: when the library has to end after what has come. `is_unread` says
/// whether bytes have come that the library has not read although it was just polled.
pub(super) async fn drive<E>(
    state: &ConnectionState,
    is_unread: impl Fn() -> bool,
    mut poll: impl FnMut(&mut Context<'_>, bool) -> Poll<Result<(), E>>,
) -> Ended<E> {
    let mut is_told = false;
    poll_fn(|cx| {
        let mut has_looked = false;
        loop {
            // The library reads and sends what it can before the connection may end.
            let finishes = match state.step(cx, || !has_looked || is_unread()) {
                Step::Close(reason) => return Poll::Ready(Ended::Cut(reason)),
                Step::Rest => return Poll::Ready(Ended::Rests),
                Step::Finish => !std::mem::replace(&mut is_told, true),
                Step::GoOn => false,
            };
            if has_looked && !finishes {
                return Poll::Pending;
            }
            match poll(cx, finishes) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ended::Closed),
                Poll::Ready(Err(error)) => {
                    state.record(Event::Broken);
                    return Poll::Ready(Ended::Failed(error));
                }
                Poll::Pending => {
                    has_looked = true;
                    state.has_sent();
                    if state.lifecycle().goes_on() {
                        return Poll::Pending;
                    }
                }
            }
        }
    })
    .await
}

pub(super) trait RequestStream: Debug {
    /// Whether the stream was reset because its client grants no window.
    fn is_reset(&self) -> bool;

    /// The client may read nothing of the response for `limit`.
    fn limit_reading(&self, limit: Coarse);

    /// Whether a part of the response waits for window, or has waited for it to the end of the stream.
    fn is_waiting(&self) -> bool;
}

/// Until this is dropped, a request is in flight.
pub struct RequestGuard {
    connection: Rc<ConnectionState>,
    stream: Option<Rc<dyn RequestStream>>,
}

impl RequestGuard {
    pub(super) fn new(connection: Rc<ConnectionState>, stream: Option<Rc<dyn RequestStream>>) -> Self {
        connection.record(Event::RequestBegins);
        Self { connection, stream }
    }

    /// The client may read nothing of the response for `limit`, whatever the server's limit is; `None` is no limit.
    pub fn limit_reading(&self, limit: Option<Duration>) {
        let limit = limit.map_or(UNLIMITED, millis);
        match &self.stream {
            Some(stream) => stream.limit_reading(limit),
            None => self.connection.record(Event::ReadsWithin(limit)),
        }
    }

    /// Why the gateway has closed the connection or the stream during the request; `None` if it has not, or if the client has
    /// gone.
    pub fn cut_off(&self) -> Option<Reason> {
        let is_stalled =
            self.connection.lifecycle().is_stalled() || self.stream.as_ref().is_some_and(|stream| stream.is_reset());
        is_stalled.then_some(Reason::BodyTimeout)
    }

    /// Whether the client has not got the last part of the response that was taken from its body.
    pub fn is_unsent(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_waiting())
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.record(Event::RequestEnds);
    }
}
