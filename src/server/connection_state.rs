//! The state of one connection: its task and its requests change it, and the checks of its time limits read it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::end::{CloseReason, End};
use super::framing_check::FramingCheck;
use super::streams::Streams;
use super::time_limits::TimeLimits;
use super::worker_state::{Coarse, WorkerState};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte has come yet.
    Fresh,
    /// Part of a request head has come.
    Head,
    /// So many requests are in flight, at least one.
    Busy(u32),
    /// Between requests.
    Idle,
}

/// Whether a connection has the buffers and the handler that requests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// It has them.
    Awake,
    /// No request has come for a while, so it has to drop them.
    Tired,
    /// It has only its socket.
    Resting,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct ConnectionState {
    phase: Cell<Phase>,
    /// When the phase began.
    since: Cell<Coarse>,
    end: Cell<Option<End>>,
    /// Whether the connection ends because its listener does. Then its first request is still waited for.
    draining: Cell<bool>,
    readiness: Cell<Readiness>,
    /// The first message on the connection that could be read in two ways.
    first_ambiguous: Cell<Option<u64>>,
    /// Whether the bytes that came last end in the middle of a body.
    in_body: Cell<bool>,
    /// Whether a body of the request in flight was left before all of it had come.
    left_body: Cell<bool>,
    /// Whether the bytes that came last end in the middle of a head.
    in_head: Cell<bool>,
    /// Since when the head of a request is incomplete, in HTTP/2, where other requests may be in flight at the same time.
    head_since: Cell<Option<Coarse>>,
    /// Since when bytes wait to be sent, because the client does not read.
    unsent: Cell<Option<Coarse>>,
    /// Whether the library has a response that is not sent completely.
    answering: Cell<bool>,
    /// Whether the request in flight asks for a WebSocket and is not refused.
    upgrading: Cell<bool>,
    /// Whether a part of a response was sent since the last request began to come, or was passed to the handler.
    answered: Cell<bool>,
    /// Set if the client sends no more: the moment when that was noticed, or a later one at which a request began or
    /// bytes were read that the client had sent before.
    closed_at: Cell<Option<Coarse>>,
    /// The streams of HTTP/2.
    streams: RefCell<Option<Rc<Streams>>>,
    waker: RefCell<Option<Waker>>,
    worker: Rc<WorkerState>,
}

impl ConnectionState {
    /// A new connection of this worker.
    pub(super) fn new(worker: Rc<WorkerState>) -> Self {
        Self {
            phase: Cell::new(Phase::Fresh),
            since: Cell::new(worker.now()),
            end: Cell::new(None),
            draining: Cell::new(false),
            readiness: Cell::new(Readiness::Resting),
            first_ambiguous: Cell::new(None),
            in_body: Cell::new(false),
            left_body: Cell::new(false),
            in_head: Cell::new(false),
            head_since: Cell::new(None),
            unsent: Cell::new(None),
            answering: Cell::new(false),
            upgrading: Cell::new(false),
            answered: Cell::new(false),
            closed_at: Cell::new(None),
            streams: RefCell::new(None),
            waker: RefCell::new(None),
            worker,
        }
    }

    /// When the phase began.
    pub(super) fn since(&self) -> Coarse {
        self.since.get()
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.worker.now());
    }

    /// Ends the connection if it has waited for its client for too long.
    pub(super) fn check(&self, time_limits: &TimeLimits, now: Coarse) {
        if let Some(streams) = &*self.streams.borrow() {
            streams.reset_stalled(now, time_limits.body);
        }
        let over = |since: Coarse, limit: Coarse| now - since >= limit;
        let (unsent, since) = (self.unsent.get(), self.since.get());
        let cause = match self.phase.get() {
            _ if unsent.is_some_and(|since| over(since, time_limits.body)) => CloseReason::NotReading,
            _ if self.head_since.get().is_some_and(|since| over(since, time_limits.header)) => CloseReason::SlowHead,
            Phase::Fresh if over(since, time_limits.header) => CloseReason::Idle,
            Phase::Head if unsent.is_none() && over(since, time_limits.header) => CloseReason::SlowHead,
            // A request that has come meanwhile is served.
            Phase::Idle if unsent.is_none() && over(since, time_limits.idle) => return self.end(End::AfterRequest),
            Phase::Fresh | Phase::Idle if unsent.is_none() && over(since, time_limits.rest) => {
                if self.readiness.get() == Readiness::Awake {
                    self.readiness.set(Readiness::Tired);
                    self.wake();
                }
                return;
            }
            Phase::Busy(_) => {
                // Once a response has begun, the client gets all of it unless its connection is found to be broken.
                let waits_since = self.closed_at.get().filter(|_| !self.answered.get());
                if !waits_since.is_some_and(|since| over(since, time_limits.half_closed)) {
                    return;
                }
                CloseReason::Gone
            }
            _ => return,
        };
        self.end(End::Now(cause));
    }

    /// Records that the connection has only its socket.
    pub(super) fn rests(&self) {
        self.readiness.set(Readiness::Resting);
    }

    /// Records that the connection has what requests need.
    pub(super) fn wakes(&self) {
        self.readiness.set(Readiness::Awake);
    }

    /// Whether the connection has to drop what requests need.
    pub(super) fn is_to_rest(&self) -> bool {
        self.readiness.get() == Readiness::Tired && self.is_idle()
    }

    /// Whether no request is in flight or has begun to come.
    pub(super) fn is_idle(&self) -> bool {
        self.end.get().is_none() && !self.is_busy()
    }

    /// Whether no request has come on the connection.
    pub(super) fn is_fresh(&self) -> bool {
        self.phase.get() == Phase::Fresh
    }

    /// Watches these streams from now on.
    pub(super) fn set_streams(&self, streams: Rc<Streams>) {
        *self.streams.borrow_mut() = Some(streams);
    }

    /// The state of its worker.
    pub(super) fn worker(&self) -> &Rc<WorkerState> {
        &self.worker
    }

    /// Records whether bytes have to wait for the client.
    pub(super) fn set_unsent(&self, waits: bool) {
        let since = || self.unsent.get().unwrap_or_else(|| self.worker.now());
        let has_waited = self.unsent.replace(waits.then(since)).is_some();
        if has_waited && !waits && self.phase.get() == Phase::Idle {
            // The end of a response was sent after its request had ended. Only now is the connection idle, and can make room.
            self.enter(Phase::Idle);
            self.worker.add_idle();
        }
    }

    /// Records whether the head of a request is incomplete, where a connection has many requests at once.
    pub(super) fn set_in_head(&self, is_incomplete: bool) {
        let since = || self.head_since.get().unwrap_or_else(|| self.worker.now());
        self.head_since.set(is_incomplete.then(since));
    }

    /// Records that a preamble of the PROXY protocol or a handshake has begun, which has as much time as the head of a request.
    pub(super) fn begins_handshake(&self) {
        self.enter(Phase::Head);
    }

    /// Records that it has ended. No request has come yet.
    pub(super) fn ends_handshake(&self) {
        self.enter(Phase::Fresh);
    }

    /// Records that bytes have come from the client, which `framing` has followed.
    pub(super) fn received(&self, framing: &FramingCheck) {
        self.first_ambiguous.set(framing.first_ambiguous());
        self.in_body.set(framing.is_in_body());
        self.in_head.set(framing.is_in_head());
        if self.is_half_closed() {
            // The client had sent these bytes before it closed its side.
            self.half_closed();
        }
        if matches!(self.phase.get(), Phase::Fresh | Phase::Idle) {
            self.enter(Phase::Head);
            self.answered.set(false);
        }
    }

    /// Whether more of a body is to come.
    pub(super) fn is_in_body(&self) -> bool {
        self.in_body.get()
    }

    /// Records that nobody reads the body of the request in flight any more, of which more is to come.
    pub(super) fn leaves_body(&self) {
        self.left_body.set(true);
    }

    /// Whether nobody reads the body of the request in flight any more, of which more is to come. Then it is the last request
    /// on this connection.
    pub(super) fn has_left_body(&self) -> bool {
        self.left_body.get()
    }

    /// Whether a part of a response was sent since the last request began to come.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.get()
    }

    /// The time since the phase began.
    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(self.worker.now() - self.since.get())
    }

    /// Whether the message with this number, from 0, or one before it could be read in two ways.
    pub(super) fn is_ambiguous(&self, message: u64) -> bool {
        self.first_ambiguous.get().is_some_and(|first| first <= message)
    }

    /// Records whether the system took some of the bytes that are to be sent. It takes none if the client does not
    /// read.
    pub(super) fn sent(&self, took_some: bool) {
        self.set_unsent(!took_some);
        // If no response was given to the library, these are the bytes of an interim response.
        if took_some && self.answering.get() {
            self.answered.set(true);
            // The end of a response is sent after its request has ended. This time does not count for the next request.
            if self.phase.get() == Phase::Head {
                self.enter(Phase::Head);
            }
        }
    }

    /// Records that a response is given to the library.
    pub(super) fn answers(&self) {
        self.answering.set(true);
    }

    /// Records whether the connection may become a tunnel after the request in flight.
    pub(super) fn set_upgrading(&self, upgrading: bool) {
        self.upgrading.set(upgrading);
    }

    /// Whether the connection may become a tunnel after the request in flight.
    pub(super) fn is_upgrading(&self) -> bool {
        self.upgrading.get()
    }

    /// Records that everything that the library has written was sent.
    pub(super) fn flushed(&self) {
        if !self.is_in_flight() {
            self.answering.set(false);
        }
    }

    /// Whether the library was given nothing to send.
    pub(super) fn is_unasked(&self) -> bool {
        !self.is_in_flight() && !self.answering.get()
    }

    /// Records that the library's own response, to something that is not a request, was not sent.
    pub(super) fn unanswered(&self) {
        self.answered.set(false);
    }

    /// Whether bytes wait to be sent because the client does not read.
    pub(super) fn is_unsent(&self) -> bool {
        self.unsent.get().is_some()
    }

    /// Whether a request has begun to come or is in flight, or its response is not sent completely.
    pub(super) fn is_busy(&self) -> bool {
        self.is_unsent() || self.head_since.get().is_some() || matches!(self.phase.get(), Phase::Head | Phase::Busy(_))
    }

    /// How many requests have begun to come or are in flight, or have responses that are not sent completely.
    pub(super) fn requests(&self) -> usize {
        match self.phase.get() {
            Phase::Busy(requests) => usize::try_from(requests).unwrap_or(usize::MAX),
            _ => usize::from(self.is_busy()),
        }
    }

    /// Whether a request is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.phase.get(), Phase::Busy(_))
    }

    /// Records that the client sends no more. It may still read a response, or not.
    pub(super) fn half_closed(&self) {
        self.closed_at.set(Some(self.worker.now()));
    }

    /// Whether it is known that the client sends no more.
    fn is_half_closed(&self) -> bool {
        self.closed_at.get().is_some()
    }

    /// A request begins. Others may be in flight at the same time.
    pub(super) fn begin_request(&self) {
        let earlier = if let Phase::Busy(requests) = self.phase.get() { requests } else { 0 };
        self.enter(Phase::Busy(earlier + 1));
        self.answering.set(false);
        self.answered.set(false);
        self.left_body.set(false);
        if self.is_half_closed() {
            // The client had sent it together with an earlier one. Each of them has the whole time.
            self.half_closed();
        }
    }

    /// A request ends.
    pub(super) fn end_request(&self) {
        if let Phase::Busy(requests @ 2..) = self.phase.get() {
            self.phase.set(Phase::Busy(requests - 1));
            return;
        }
        // A part of the next head may have come together with this request.
        let next = if self.in_head.get() { Phase::Head } else { Phase::Idle };
        self.enter(next);
        if self.end.get().is_some() {
            // The task may have waited for this request alone.
            self.wake();
        } else if next == Phase::Idle && self.worker.is_place_needed() {
            self.end(End::AfterRequest);
        }
    }

    /// Whether the gateway ends the connection because the client does not read.
    pub(super) fn is_stalled(&self) -> bool {
        self.end.get() == Some(End::Now(CloseReason::NotReading))
    }

    /// Tells the task of the connection to end it. One that ends at once does not wait for its requests any more.
    pub(super) fn end(&self, end: End) {
        if !matches!(self.end.get(), Some(End::Now(_))) {
            self.end.set(Some(end));
        }
        self.wake();
    }

    /// Tells the task to end the connection because its listener is closed: after the request in flight, or after the first
    /// one if none has come yet.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        self.end(End::AfterRequest);
    }

    /// Whether no request has come on a connection that ends because its listener does.
    pub(super) fn drains_unused(&self) -> bool {
        self.draining.get() && self.is_fresh()
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// When the connection has to end, if it has to. The task is woken when that changes.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Option<End> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.end.get()
    }
}
