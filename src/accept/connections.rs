//! The open connections of one worker: what each is doing, so that idle, slow and draining ones can be ended.
//!
//! hyper could watch its own time limits, with a timer set anew for every request. Here a request only writes two
//! words, and one timer for all connections looks at them a few times per limit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come yet.
    Fresh,
    /// Part of a request head has come.
    Head,
    /// A request is under way.
    Busy,
    /// Between requests.
    Idle,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After the request under way, or one that has come and is not read yet.
    AfterRequest,
    /// At once.
    Now,
}

/// The state of one connection, shared by its task, its requests and the register.
#[derive(Debug)]
pub(super) struct Slot {
    phase: Cell<Phase>,
    /// The tick at which the phase began.
    since: Cell<u64>,
    end: Cell<Option<End>>,
    ambiguous: Cell<bool>,
    /// Whether bytes wait that nobody has read: then the end cannot be seen behind them.
    unread: Cell<bool>,
    /// Whether the client has yet to take what is to be sent.
    unsent: Cell<bool>,
    /// Whether anything of the answer to the request under way has gone out.
    answered: Cell<bool>,
    /// The tick at which it was seen that the client sends no more, or at which the request began that came before.
    closed_at: Cell<Option<u64>>,
    /// Whether the bytes of the request are kept.
    kept: Cell<bool>,
    /// Whether the last answer might be given again.
    may_repeat: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    register: Rc<Connections>,
}

/// The register of one worker's connections.
#[derive(Debug)]
pub(super) struct Connections {
    slots: RefCell<Slab<Rc<Slot>>>,
    tick: Cell<u64>,
    length: Duration,
    header_ticks: u64,
    idle_ticks: u64,
    half_closed_ticks: u64,
    all_gone: Notify,
}

/// Limits are looked at this often, so one is overrun by an eighth of the shorter one at most.
const LOOKS_PER_LIMIT: u32 = 8;
const TICK_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long a client that sends no more waits for the beginning of its answer. It may have gone away altogether, which
/// looks the same until something is sent to it.
const HALF_CLOSED: Duration = Duration::from_secs(1);

impl Connections {
    /// A register that allows a request head `header_timeout`, and a connection `idle_timeout` between requests.
    pub(super) fn new(header_timeout: Duration, idle_timeout: Duration) -> Rc<Self> {
        let length = (header_timeout.min(idle_timeout) / LOOKS_PER_LIMIT).clamp(TICK_RANGE.0, TICK_RANGE.1);
        // One tick more: the first one has partly passed when a phase begins.
        let ticks = |limit: Duration| u64::try_from(limit.as_micros().div_ceil(length.as_micros())).unwrap_or(u64::MAX);
        Rc::new(Self {
            slots: RefCell::default(),
            tick: Cell::new(0),
            length,
            header_ticks: ticks(header_timeout).saturating_add(1),
            idle_ticks: ticks(idle_timeout).saturating_add(1),
            half_closed_ticks: ticks(HALF_CLOSED).saturating_add(1),
            all_gone: Notify::new(),
        })
    }

    /// Enters a connection; leave the returned slot's place with [`Connections::leave`].
    pub(super) fn enter(self: &Rc<Self>) -> (usize, Rc<Slot>) {
        let slot = Rc::new(Slot {
            phase: Cell::new(Phase::Fresh),
            since: Cell::new(self.tick.get()),
            end: Cell::new(None),
            ambiguous: Cell::new(false),
            unread: Cell::new(false),
            unsent: Cell::new(false),
            answered: Cell::new(false),
            closed_at: Cell::new(None),
            kept: Cell::new(false),
            may_repeat: Cell::new(false),
            waker: RefCell::new(None),
            register: self.clone(),
        });
        (self.slots.borrow_mut().insert(slot.clone()), slot)
    }

    pub(super) fn leave(&self, place: usize) {
        let mut slots = self.slots.borrow_mut();
        slots.try_remove(place);
        if slots.is_empty() {
            self.all_gone.notify_waiters();
        }
    }

    /// Ends connections that overran their limits, for ever.
    pub(super) async fn watch(&self) {
        loop {
            tokio::time::sleep(self.length).await;
            self.tick.set(self.tick.get() + 1);
            for (_, slot) in &*self.slots.borrow() {
                let age = self.tick.get() - slot.since.get();
                match slot.phase.get() {
                    Phase::Fresh | Phase::Head if age >= self.header_ticks => slot.end(End::Now),
                    Phase::Idle if age >= self.idle_ticks => slot.end(End::Now),
                    Phase::Busy => self.look_half_closed(slot),
                    _ => {}
                }
            }
        }
    }

    /// Ends a connection whose client sends no more and has waited for its answer for long enough. Once this has begun
    /// the client gets all of it, unless its connection turns out to be gone.
    fn look_half_closed(&self, slot: &Slot) {
        let Some(since) = slot.closed_at.get() else { return };
        if slot.answered.get() {
            slot.wake();
        } else if self.tick.get() - since >= self.half_closed_ticks {
            slot.end(End::Now);
        }
    }

    /// Ends every connection: those without a request now, the others after it. Returns when all are gone.
    pub(super) async fn drain(&self) {
        for (_, slot) in &*self.slots.borrow() {
            slot.end(End::AfterRequest);
        }
        loop {
            let gone = self.all_gone.notified();
            if self.slots.borrow().is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// How many have a request under way.
    pub(super) fn busy(&self) -> usize {
        self.slots.borrow().iter().filter(|(_, slot)| slot.is_busy()).count()
    }
}

impl Slot {
    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.register.tick.get());
    }

    /// Bytes have come from the client, and so far could be read in two ways or not; `kept` if they are a request that
    /// is kept.
    pub(super) fn received(&self, ambiguous: bool, kept: bool) {
        self.ambiguous.set(ambiguous);
        self.kept.set(kept);
        self.unread.set(false);
        if matches!(self.phase.get(), Phase::Fresh | Phase::Idle) {
            self.enter(Phase::Head);
        }
    }

    /// Whether a head on this connection could be read in two ways.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.ambiguous.get()
    }

    /// Whether the request that came last is kept.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.get()
    }

    /// Bytes have gone to the client, or have to wait for it.
    pub(super) fn sent(&self, all: bool) {
        self.unsent.set(!all);
        if all {
            self.answered.set(true);
        }
        // The last of a response is on its way after its request is over: that is not idle time.
        if all && self.phase.get() == Phase::Idle {
            self.enter(Phase::Idle);
        }
    }

    /// Whether a request has begun to come, is under way, or its response is not all sent.
    pub(super) fn is_busy(&self) -> bool {
        self.unsent.get() || matches!(self.phase.get(), Phase::Head | Phase::Busy)
    }

    /// Whether it would be seen if the client went away now, which matters while a request is under way.
    pub(super) fn is_watched(&self) -> bool {
        self.phase.get() == Phase::Busy && !self.unread.get()
    }

    /// The client sends no more; whether it still takes an answer is not known.
    pub(super) fn half_closed(&self) {
        self.closed_at.set(Some(self.register.tick.get()));
    }

    /// Whether it is known that the client sends no more.
    pub(super) fn is_half_closed(&self) -> bool {
        self.closed_at.get().is_some()
    }

    /// Bytes have come that nobody reads yet.
    pub(super) fn unread(&self) {
        self.unread.set(true);
    }

    /// A request has begun; it is over when what is returned is dropped.
    pub(super) fn begin(self: &Rc<Self>) -> Busy {
        self.enter(Phase::Busy);
        self.answered.set(false);
        if self.is_half_closed() {
            // It came with an earlier one. Each has its time.
            self.half_closed();
        }
        Busy(self.clone())
    }

    /// Between requests, whether the last answer might be given again.
    pub(super) fn may_repeat(&self) -> Option<bool> {
        (self.phase.get() == Phase::Idle).then(|| self.may_repeat.get())
    }

    /// Whether the connection is to end.
    pub(super) fn is_ending(&self) -> bool {
        self.end.get().is_some()
    }

    fn end(&self, end: End) {
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

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy(Rc<Slot>);

impl Busy {
    /// Its answer might be given again, or not.
    pub(super) fn may_repeat(&self, may_repeat: bool) {
        self.0.may_repeat.set(may_repeat);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle);
    }
}
