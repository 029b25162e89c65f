//! The open connections of one worker: what each is doing, so that idle, slow and draining ones can be ended.
//!
//! hyper could watch its own time limits, with a timer set anew for every request. Here a request only writes two
//! words, and one timer for all connections looks at them a few times per limit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection_limits::ConnectionLimits;
use super::connection_state::{Coarse, ConnectionState, End, TimeLimits};

/// The register of one worker's connections.
#[derive(Debug)]
pub(super) struct Connections {
    states: RefCell<Slab<Rc<ConnectionState>>>,
    limits: Arc<ConnectionLimits>,
    now: Cell<Coarse>,
    /// Connections that were idle when all were last looked at, and since when; the longest idle are last.
    idle: RefCell<Vec<(Coarse, usize)>>,
    /// Whether there may be idle ones besides those.
    has_idle: Cell<bool>,
    all_gone: Notify,
}

/// Limits are looked at this often, so one is overrun by an eighth of the shortest one at most.
const LOOKS_PER_LIMIT: u32 = 8;
const TICK_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

impl Connections {
    /// A register of connections that keep to these limits.
    pub(super) fn new(limits: Arc<ConnectionLimits>) -> Rc<Self> {
        Rc::new(Self {
            states: RefCell::default(),
            limits,
            now: Cell::new(0),
            idle: RefCell::default(),
            has_idle: Cell::new(false),
            all_gone: Notify::new(),
        })
    }

    /// Enters a connection; leave the returned slot's place with [`Connections::leave`].
    pub(super) fn enter(self: &Rc<Self>) -> (usize, Rc<ConnectionState>) {
        let state = Rc::new(ConnectionState::new(self.clone()));
        self.has_idle.set(true);
        (self.states.borrow_mut().insert(state.clone()), state)
    }

    pub(super) fn leave(&self, place: usize) {
        let mut states = self.states.borrow_mut();
        states.try_remove(place);
        if states.is_empty() {
            self.all_gone.notify_waiters();
        }
    }

    /// Ends connections that overran their limits, for ever. A reload may change these.
    pub(super) async fn watch(&self) {
        let begun = Instant::now();
        loop {
            let server = self.limits.server().clone();
            let shortest = server.header_timeout.min(server.idle_timeout).min(server.body_timeout);
            let tick = (shortest / LOOKS_PER_LIMIT).clamp(TICK_RANGE.0, TICK_RANGE.1);
            tokio::time::sleep(tick).await;
            self.now.set(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
            let time_limits = TimeLimits::new(&server, tick);
            for (_, state) in &*self.states.borrow() {
                state.look(&time_limits, self.now.get());
            }
        }
    }

    /// The time.
    pub(super) fn now(&self) -> Coarse {
        self.now.get()
    }

    /// A connection has become idle. Whether it is to leave, because room is wanted.
    pub(super) fn is_wanted(&self) -> bool {
        self.has_idle.set(true);
        self.limits.claim()
    }

    /// Tells idle connections to leave while there is room wanted, the longest idle first.
    pub(super) fn make_room(&self) {
        while self.limits.claim() {
            if !self.end_longest_idle() {
                self.limits.unclaim();
                return;
            }
        }
    }

    /// Tells the connection to leave that has been idle for longest; whether there is one.
    fn end_longest_idle(&self) -> bool {
        let states = self.states.borrow();
        let mut idle = self.idle.borrow_mut();
        loop {
            while let Some((since, place)) = idle.pop() {
                // It may have done something since, or be another one altogether.
                if let Some(state) = states.get(place).filter(|state| state.is_idle() && state.since() == since) {
                    state.end(End::AfterRequest);
                    return true;
                }
            }
            // Looking at all of them is worth it only where there can be one.
            if !self.has_idle.replace(false) {
                return false;
            }
            idle.extend(
                states.iter().filter(|(_, state)| state.is_idle()).map(|(place, state)| (state.since(), place)),
            );
            idle.sort_unstable_by(|one, other| other.cmp(one));
        }
    }

    /// Ends every connection: those without a request now, the others after it. Returns when all are gone.
    pub(super) async fn drain(&self) {
        for (_, state) in &*self.states.borrow() {
            state.end(End::AfterRequest);
        }
        loop {
            let gone = self.all_gone.notified();
            if self.states.borrow().is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// How many requests are under way on all of them.
    pub(super) fn requests(&self) -> usize {
        self.states.borrow().iter().map(|(_, state)| state.requests()).sum()
    }
}
