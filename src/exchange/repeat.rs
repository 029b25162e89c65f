//! The last refusal of a connection, ready to be given again: whoever sends the same request over and over is refused
//! without its being read.

use super::Worker;
use crate::account::{Line, Outcome};
use crate::clock::{self, Time};
use crate::decide::Standing;
use crate::respond::limits::LastRefusal;

/// The HTTP library dates an answer by what it read of the clock a moment before the request was handled.
const DATED_BEFORE: u64 = 10_000;

/// Whether the answer to a request that was handled at this moment surely names its second.
pub(super) fn is_dated(at: Time) -> bool {
    at.micros() % 1_000_000 >= DATED_BEFORE
}

/// What the refusal rests on besides the request itself.
pub(super) struct Repeat {
    /// The index of the route.
    pub route: usize,
    /// What was asked.
    pub standing: Standing,
    /// When it came.
    pub at: Time,
    /// What the access log said of it, if there is one.
    pub line: Option<Box<Line>>,
}

impl Repeat {
    /// Whether the same request, come again now, gets the same answer in every byte. Then it is counted and logged.
    pub(super) fn serve(&self, worker: &Worker, last: &LastRefusal) -> bool {
        let now = clock::now();
        let snapshot = worker.snapshots.current();
        // The answer says in which second it was given.
        if now.seconds() != self.at.seconds() {
            return false;
        }
        // After a reload this may be another route, of another report than told the last refusal.
        let Some(route) = snapshot.served.get(self.route) else { return false };
        let Some(judged) = self.standing.judge(&route.guards, &worker.store, now) else { return false };
        let Some(status) = last.again(&route.report, &judged, now) else { return false };
        Standing::count(&route.guards, &judged, &worker.store, worker.index);
        let line = self.line.as_deref();
        let micros = line.map_or(0, |_| clock::now().micros().saturating_sub(now.micros()));
        snapshot.book(Some(self.route)).close(Outcome::Limited, Some(status), micros, line);
        true
    }
}
