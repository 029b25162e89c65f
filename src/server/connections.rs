//! The open connections of one worker: what each is doing, so that idle, slow and draining ones can be ended.
//!
//! hyper could watch its own time limits, with a timer set anew for every request. Here a request only writes two
//! words, and one timer for all connections looks at them a few times per limit.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection_limits::{ConnectionLimits, ConnectionPermit};
use super::connection_state::{ConnectionState, End, TimeLimits};
use super::worker_state::{Coarse, WorkerState};

/// The register of one worker's connections.
#[derive(Debug)]
pub(super) struct Connections {
    states: RefCell<Slab<Rc<ConnectionState>>>,
    worker: Rc<WorkerState>,
    /// Connections that were idle when all were last looked at, and since when; the longest idle are last. The state of
    /// the worker tells whether there may be others.
    idle: RefCell<Vec<(Coarse, usize)>>,
    all_gone: Notify,
}

/// Limits are looked at this often, so one is overrun by an eighth of the shortest one at most.
const LOOKS_PER_LIMIT: u32 = 8;
const TICK_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A connection that was told to leave may have got a request meanwhile. Then another is told, after so much time.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Connections {
    /// A register of connections that keep to these limits.
    pub(super) fn new(limits: Arc<ConnectionLimits>) -> Rc<Self> {
        Rc::new(Self {
            states: RefCell::default(),
            worker: Rc::new(WorkerState::new(limits)),
            idle: RefCell::default(),
            all_gone: Notify::new(),
        })
    }

    /// Enters a connection. When it ends, [`Connections::leave`] is to be called with its index.
    pub(super) fn enter(&self) -> (usize, Rc<ConnectionState>) {
        let state = Rc::new(ConnectionState::new(self.worker.clone()));
        self.worker.add_idle();
        (self.states.borrow_mut().insert(state.clone()), state)
    }

    /// The connection with this index has ended.
    pub(super) fn leave(&self, index: usize) {
        let mut states = self.states.borrow_mut();
        states.try_remove(index);
        if states.is_empty() {
            self.all_gone.notify_waiters();
        }
    }

    /// Ends connections that overran their limits, for ever. A reload may change these.
    pub(super) async fn watch(&self) {
        let begun = Instant::now();
        loop {
            let server = self.limits().server().clone();
            let shortest = server.header_timeout.min(server.idle_timeout).min(server.body_timeout);
            let tick = (shortest / LOOKS_PER_LIMIT).clamp(TICK_RANGE.0, TICK_RANGE.1);
            tokio::time::sleep(tick).await;
            self.worker.set_now(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
            let time_limits = TimeLimits::new(&server, tick);
            for (_, state) in &*self.states.borrow() {
                state.look(&time_limits, self.worker.now());
            }
        }
    }

    fn limits(&self) -> &ConnectionLimits {
        self.worker.limits()
    }

    /// Waits until there is a place for a connection that this worker has accepted, and takes it.
    pub(super) async fn wait_for_place(&self, permit: &mut ConnectionPermit) {
        if permit.take() {
            return;
        }
        let limits = self.limits();
        let _waiting = limits.wait();
        loop {
            let mut freed = pin!(limits.freed());
            // From now on nothing that is freed is missed.
            freed.as_mut().enable();
            if permit.take() {
                return;
            }
            self.ask();
            if tokio::time::timeout(ASK_AGAIN, freed).await.is_err() {
                limits.want_one();
            }
        }
    }

    /// A connection could not be accepted for want of file handles or memory.
    pub(super) fn exhausted(&self, error: &io::Error) {
        self.limits().count_exhausted(error);
        self.limits().want_one();
        self.ask();
        // It is tried again soon, and a connection that becomes idle later need not end for it.
        self.limits().withdraw();
    }

    /// Has idle connections make the room that is wanted: first those of this worker, then those of others.
    fn ask(&self) {
        self.make_room();
        self.limits().ask_others();
    }

    /// Makes room whenever another worker wants it, for ever.
    pub(super) async fn heed(&self) {
        loop {
            let mut asked = pin!(self.limits().asked());
            asked.as_mut().enable();
            self.make_room();
            asked.await;
        }
    }

    /// Tells idle connections to leave while there is room wanted, the longest idle first.
    fn make_room(&self) {
        while self.limits().claim() {
            if !self.end_longest_idle() {
                self.limits().unclaim();
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
            if !self.worker.take_has_idle() {
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
