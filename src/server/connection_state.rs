//! What one connection is doing, in a few words that its task and its requests write and the register reads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::framing_check::FramingCheck;
use super::worker_state::{Coarse, WorkerState};
use crate::config::Server;
use crate::reason::Reason;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come yet.
    Fresh,
    /// Part of a request head has come.
    Head,
    /// So many requests are under way, at least one.
    Busy(u32),
    /// Between requests.
    Idle,
}

/// Whether a connection has what it needs for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// Requests can be read.
    Awake,
    /// No request has come for a while: what they need is to be dropped.
    Tired,
    /// There is nothing but the socket.
    Resting,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After the request under way, or one that has come and is not read yet.
    AfterRequest,
    /// At once, for this.
    Now(CloseReason),
}

/// Why a connection ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// A request head began to come, and did not end in time.
    SlowHead,
    /// Nothing was under way.
    Idle,
    /// The client takes nothing of what is sent to it.
    NotReading,
    /// The client has gone away.
    Gone,
}

/// The state of one connection, shared by its task, its requests and the register.
#[derive(Debug)]
pub(super) struct ConnectionState {
    phase: Cell<Phase>,
    /// When the phase began.
    since: Cell<Coarse>,
    end: Cell<Option<End>>,
    readiness: Cell<Readiness>,
    ambiguous: Cell<bool>,
    /// Whether more of a body is to come.
    in_body: Cell<bool>,
    /// Whether the bytes that came last end in the middle of a head.
    in_head: Cell<bool>,
    /// Since when the client has yet to take what is to be sent.
    unsent: Cell<Option<Coarse>>,
    /// Whether an answer was handed to the library that is not all sent.
    answering: Cell<bool>,
    /// Whether any of an answer has gone out since the last request began to come, or was handed on.
    answered: Cell<bool>,
    /// When it was seen that the client sends no more, or when the request began that came before, or when the last of
    /// its bytes were read.
    closed_at: Cell<Option<Coarse>>,
    waker: RefCell<Option<Waker>>,
    worker: Rc<WorkerState>,
}

/// How long a client that sends no more waits for the beginning of its answer. It may have gone away altogether, which
/// looks the same until something is sent to it.
const HALF_CLOSED: Duration = Duration::from_secs(1);

/// How long a connection is idle before it drops what it needs for requests: some 10 KB, which are made anew within
/// microseconds.
const RESTS_AFTER: Duration = Duration::from_secs(1);

/// How long a connection may be in one state, in the time of its worker.
pub(super) struct TimeLimits {
    header: Coarse,
    idle: Coarse,
    body: Coarse,
    half_closed: Coarse,
    rest: Coarse,
}

impl TimeLimits {
    /// What is configured, when it is looked at once a `tick`.
    pub(super) fn new(server: &Server, tick: Duration) -> Self {
        // One tick more: the first one has partly passed when a state begins.
        let coarse = |limit: Duration| u64::try_from((limit + tick).as_millis()).unwrap_or(u64::MAX);
        Self {
            header: coarse(server.header_timeout),
            idle: coarse(server.idle_timeout),
            body: coarse(server.body_timeout),
            half_closed: coarse(HALF_CLOSED),
            rest: coarse(RESTS_AFTER),
        }
    }
}

impl ConnectionState {
    /// A connection of this worker, of which nothing has come yet.
    pub(super) fn new(worker: Rc<WorkerState>) -> Self {
        Self {
            phase: Cell::new(Phase::Fresh),
            since: Cell::new(worker.now()),
            end: Cell::new(None),
            readiness: Cell::new(Readiness::Resting),
            ambiguous: Cell::new(false),
            in_body: Cell::new(false),
            in_head: Cell::new(false),
            unsent: Cell::new(None),
            answering: Cell::new(false),
            answered: Cell::new(false),
            closed_at: Cell::new(None),
            waker: RefCell::new(None),
            worker,
        }
    }

    /// When it began what it is doing.
    pub(super) fn since(&self) -> Coarse {
        self.since.get()
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.worker.now());
    }

    /// Ends the connection if it has waited for its client for too long.
    pub(super) fn look(&self, time_limits: &TimeLimits, now: Coarse) {
        let over = |since: Coarse, limit: Coarse| now - since >= limit;
        let unsent = self.unsent.get();
        let cause = match self.phase.get() {
            _ if unsent.is_some_and(|since| over(since, time_limits.body)) => CloseReason::NotReading,
            Phase::Fresh if over(self.since.get(), time_limits.header) => CloseReason::Idle,
            Phase::Head if unsent.is_none() && over(self.since.get(), time_limits.header) => CloseReason::SlowHead,
            Phase::Idle if unsent.is_none() && over(self.since.get(), time_limits.idle) => CloseReason::Idle,
            Phase::Fresh | Phase::Idle if unsent.is_none() && over(self.since.get(), time_limits.rest) => {
                if self.readiness.get() == Readiness::Awake {
                    self.readiness.set(Readiness::Tired);
                    self.wake();
                }
                return;
            }
            Phase::Busy(_) => {
                // Once its answer has begun the client gets all of it, unless its connection turns out to be broken.
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

    /// The connection has dropped what it needs for requests.
    pub(super) fn rests(&self) {
        self.readiness.set(Readiness::Resting);
    }

    /// The connection has what it needs for requests.
    pub(super) fn wakes(&self) {
        self.readiness.set(Readiness::Awake);
    }

    /// Whether the connection is to drop what it needs for requests.
    pub(super) fn is_to_rest(&self) -> bool {
        self.readiness.get() == Readiness::Tired && self.is_idle()
    }

    /// Whether nothing is under way, nor has begun to come.
    pub(super) fn is_idle(&self) -> bool {
        self.end.get().is_none() && matches!(self.phase.get(), Phase::Fresh | Phase::Idle) && !self.is_unsent()
    }

    /// Bytes have come from the client, and `framing` has followed them.
    pub(super) fn received(&self, framing: &FramingCheck) {
        self.ambiguous.set(framing.is_ambiguous());
        self.in_body.set(framing.is_in_body());
        self.in_head.set(framing.is_in_head());
        if self.is_half_closed() {
            // It was closed behind them.
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

    /// Whether any of an answer has gone out since the last request began to come.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.get()
    }

    /// How long the connection has been doing what it does.
    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(self.worker.now() - self.since.get())
    }

    /// Whether a head on this connection could be read in two ways.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.ambiguous.get()
    }

    /// Bytes have gone to the client, or have to wait for it.
    pub(super) fn sent(&self, all: bool) {
        if !all {
            // Whatever goes out ends the wait.
            self.unsent.set(self.unsent.get().or(Some(self.worker.now())));
            return;
        }
        self.unsent.set(None);
        // Otherwise it was an interim response.
        self.answered.set(self.answered.get() || self.answering.get());
        // The last of a response is on its way after its request is over: that is no time of the next one.
        match self.phase.get() {
            Phase::Idle => self.enter(Phase::Idle),
            Phase::Head if self.answering.get() => self.enter(Phase::Head),
            _ => {}
        }
    }

    /// An answer goes to the library.
    pub(super) fn answers(&self) {
        self.answering.set(true);
    }

    /// All that the library has written is out.
    pub(super) fn flushed(&self) {
        if !self.is_under_way() {
            self.answering.set(false);
        }
    }

    /// Whether nobody has handed the library anything to be sent.
    pub(super) fn is_unasked(&self) -> bool {
        !self.is_under_way() && !self.answering.get()
    }

    /// Nothing has gone out of the answer to what is no request.
    pub(super) fn unanswered(&self) {
        self.answered.set(false);
    }

    /// Whether the client has yet to take what is to be sent.
    pub(super) fn is_unsent(&self) -> bool {
        self.unsent.get().is_some()
    }

    /// Whether a request has begun to come, is under way, or its response is not all sent.
    pub(super) fn is_busy(&self) -> bool {
        self.is_unsent() || matches!(self.phase.get(), Phase::Head | Phase::Busy(_))
    }

    /// How many requests are under way or have begun to come, or whose responses are not all sent.
    pub(super) fn requests(&self) -> usize {
        match self.phase.get() {
            Phase::Busy(requests) => usize::try_from(requests).unwrap_or(usize::MAX),
            _ => usize::from(self.is_busy()),
        }
    }

    /// Whether a request is under way.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.phase.get(), Phase::Busy(_))
    }

    /// The client sends no more; whether it still takes an answer is not known.
    pub(super) fn half_closed(&self) {
        self.closed_at.set(Some(self.worker.now()));
    }

    /// Whether it is known that the client sends no more.
    fn is_half_closed(&self) -> bool {
        self.closed_at.get().is_some()
    }

    /// A request has begun; it is over when what is returned is dropped. Others may be under way.
    pub(super) fn begin(self: &Rc<Self>) -> RequestGuard {
        let earlier = if let Phase::Busy(requests) = self.phase.get() { requests } else { 0 };
        self.enter(Phase::Busy(earlier + 1));
        self.answering.set(false);
        self.answered.set(false);
        if self.is_half_closed() {
            // It came with an earlier one. Each has its time.
            self.half_closed();
        }
        RequestGuard(self.clone())
    }

    pub(super) fn end(&self, end: End) {
        self.end.set(Some(end));
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// How the connection is to end, if it is; wakes the task when that changes.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Option<End> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.end.get()
    }
}

/// A request under way, until this is dropped.
#[derive(Debug)]
pub struct RequestGuard(Rc<ConnectionState>);

impl RequestGuard {
    /// Why its connection was closed although it was under way, if that was not for the client's going away.
    pub fn cut_off(&self) -> Option<Reason> {
        (self.0.end.get() == Some(End::Now(CloseReason::NotReading))).then_some(Reason::BodyTimeout)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let state = &self.0;
        if let Phase::Busy(requests @ 2..) = state.phase.get() {
            state.phase.set(Phase::Busy(requests - 1));
            return;
        }
        // A part of the next head may have come with it.
        let next = if state.in_head.get() { Phase::Head } else { Phase::Idle };
        state.enter(next);
        if next == Phase::Idle && state.worker.is_place_needed() {
            state.end(End::AfterRequest);
        }
    }
}
