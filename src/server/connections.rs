//! The open connections of one worker and their states, so that idle, slow and draining connections can be ended.
//!
//! hyper sets a timer for every request. Here a request only writes two words, and one timer for all connections checks them
//! a few times per limit.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, yield_now};

use super::connection_limits::{ConnectionLimits, ConnectionPermit};
use super::connection_state::ConnectionState;
use super::lifecycle::Event;
use super::time_limits::TimeLimits;
use super::worker_state::{Coarse, WorkerState};

pub(super) struct Connections {
    open: RefCell<Slab<OpenConnection>>,
    worker: Rc<WorkerState>,
    /// The connections that were idle at the last search, and since when; the longest idle one is last. The worker's state
    /// says whether there may be others.
    idle: RefCell<Vec<(Coarse, usize)>>,
    all_gone: Notify,
}

struct OpenConnection {
    listener: usize,
    state: Rc<ConnectionState>,
    /// `None` until its task has been spawned.
    task: Option<AbortHandle>,
}

/// Checks during the shortest limit. A limit is exceeded by at most an eighth.
const CHECKS_PER_LIMIT: u32 = 8;
const TICK_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A connection that was told to end may have got a request meanwhile. After this time another one is told instead.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Connections {
    pub(super) fn new(limits: Arc<ConnectionLimits>) -> Rc<Self> {
        let (open, idle, all_gone) = Default::default();
        Rc::new(Self { open, worker: Rc::new(WorkerState::new(limits)), idle, all_gone })
    }

    /// Adds a connection of this listener and returns its index, for [`Connections::leave`] when it ends.
    pub(super) fn enter(&self, listener: usize) -> (usize, Rc<ConnectionState>) {
        let state = Rc::new(ConnectionState::new(self.worker.clone()));
        (self.open.borrow_mut().insert(OpenConnection { listener, state: state.clone(), task: None }), state)
    }

    /// The task of a connection, which [`Connections::cut_off`] ends.
    pub(super) fn set_task(&self, index: usize, task: AbortHandle) {
        if let Some(connection) = self.open.borrow_mut().get_mut(index) {
            connection.task = Some(task);
        }
    }

    pub(super) fn leave(&self, index: usize) {
        let mut open = self.open.borrow_mut();
        open.try_remove(index);
        if open.is_empty() {
            self.all_gone.notify_waiters();
        }
    }

    /// Ends connections that have exceeded their time limits. Never returns. A reload may change the limits.
    pub(super) async fn watch(&self) {
        loop {
            let server = self.limits().server().clone();
            let shortest =
                server.header_timeout.min(server.idle_timeout).min(server.body_timeout.unwrap_or(Duration::MAX));
            let tick = (shortest / CHECKS_PER_LIMIT).clamp(TICK_RANGE.0, TICK_RANGE.1);
            tokio::time::sleep(tick).await;
            let (now, time_limits) = (self.worker.begin_check(), TimeLimits::new(&server, tick));
            for (_, connection) in &*self.open.borrow() {
                connection.state.check(&time_limits, now);
            }
        }
    }

    pub(super) fn limits(&self) -> &Arc<ConnectionLimits> {
        &self.worker.limits
    }

    pub(super) async fn wait_for_place(&self, permit: &mut ConnectionPermit) {
        if permit.take() {
            return;
        }
        let limits = self.limits();
        let _waiting = limits.wait();
        loop {
            let mut freed = pin!(limits.freed.notified());
            // From now on, no notification is missed.
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

    /// A connection could not be accepted because file handles or memory are exhausted, so an idle one ends.
    pub(super) fn exhausted(&self, error: &io::Error) {
        self.limits().count_exhausted(error);
        self.limits().want_one();
        self.ask();
        // The next attempt follows soon, so a connection that becomes idle later need not end for this one.
        self.limits().withdraw();
    }

    /// Ends idle connections until enough places are free: first those of this worker, then those of others.
    fn ask(&self) {
        self.make_room();
        self.limits().ask_others();
    }

    /// Ends idle connections whenever another worker needs their places. Never returns.
    pub(super) async fn make_room_for_others(&self) {
        loop {
            let mut asked = pin!(self.limits().asked.notified());
            asked.as_mut().enable();
            self.make_room();
            asked.await;
        }
    }

    /// Ends idle connections while places are needed, the longest idle first.
    fn make_room(&self) {
        while self.limits().claim() {
            if !self.end_longest_idle() {
                self.limits().unclaim();
                return;
            }
        }
    }

    /// Returns whether there was an idle connection.
    fn end_longest_idle(&self) -> bool {
        let open = self.open.borrow();
        let mut idle = self.idle.borrow_mut();
        loop {
            while let Some((since, place)) = idle.pop() {
                // It may have got a request since then, or its index may belong to another connection now.
                let state = open.get(place).map(|connection| &connection.state);
                let is_still = |state: &&Rc<ConnectionState>| idle_since(state) == Some(since);
                if let Some(state) = state.filter(is_still) {
                    state.make_room();
                    return true;
                }
            }
            // A search of all connections is worth its time only if some may be idle.
            if !self.worker.take_has_idle() {
                return false;
            }
            idle.extend(open.iter().filter_map(|(place, connection)| Some((idle_since(&connection.state)?, place))));
            idle.sort_unstable_by(|one, other| other.cmp(one));
        }
    }

    /// After the response, if a request is in flight.
    pub(super) fn end_of_listener(&self, listener: usize) {
        self.end_all(|connection| connection.listener == listener);
    }

    fn end_all(&self, ends: impl Fn(&OpenConnection) -> bool) {
        for (_, connection) in self.open.borrow().iter().filter(|(_, connection)| ends(connection)) {
            connection.state.record(Event::Drains);
        }
    }

    /// Ends every connection, after the response if a request is in flight. Returns when all have ended.
    pub(super) async fn drain(&self) {
        self.end_all(|_| true);
        loop {
            let gone = self.all_gone.notified();
            if self.open.borrow().is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// Ends every connection at once. Returns when their requests have ended, too.
    pub(super) async fn cut_off(&self) {
        self.open.borrow().iter().filter_map(|(_, connection)| connection.task.as_ref()).for_each(AbortHandle::abort);
        self.drain().await;
        // Requests of HTTP/2 have tasks of their own, which run now that their connections are gone.
        yield_now().await;
    }

    pub(super) fn requests(&self) -> usize {
        self.open.borrow().iter().map(|(_, connection)| connection.state.lifecycle().requests()).sum()
    }
}

fn idle_since(state: &ConnectionState) -> Option<Coarse> {
    let lifecycle = state.lifecycle();
    lifecycle.is_idle().then(|| lifecycle.since)
}
