//! The failures of upstreams: each is counted by its reason, and a line a second tells of them.
//!
//! An upstream that is away fails every request. A line for each would fill disks and hide everything else.

use std::fmt::Display;

use parking_lot::Mutex;

use crate::clock::Time;
use crate::metrics::{Counter, PerWorker};
use crate::reason::Reason;

/// The failures of one upstream.
#[derive(Debug)]
pub struct UpstreamFailures {
    /// The name of the upstream.
    pub name: String,
    /// By worker, in the order of [`Reason::ALL`].
    pub workers: PerWorker<[Counter; Reason::ALL.len()]>,
    unreported: Mutex<Unreported>,
}

/// The failures that no line has told of yet.
#[derive(Debug, Default)]
struct Unreported {
    count: u64,
    /// Why the last of them failed.
    last: Option<Reason>,
    /// The second of the last line.
    reported_in: Option<u64>,
}

impl Unreported {
    fn add(&mut self, reason: Reason) {
        self.count += 1;
        self.last = Some(reason);
    }

    /// How many are to be told of now, and why the last one failed: nothing in the second of the last line.
    fn take(&mut self, now: Time) -> Option<(u64, Reason)> {
        let second = now.seconds();
        let last = self.last.filter(|_| self.reported_in != Some(second))?;
        let count = self.count;
        *self = Self { reported_in: Some(second), ..Self::default() };
        Some((count, last))
    }
}

impl UpstreamFailures {
    /// Of the upstream with this name, counted by so many workers.
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, workers: PerWorker::new(workers), unreported: Mutex::default() }
    }

    /// Counts a failure that this worker met, and writes a line of it and those before it if there was none yet in this
    /// second. `server` and `error` are those of this failure.
    pub fn note(&self, worker: usize, reason: Reason, server: &dyn Display, error: &dyn Display, now: Time) {
        self.workers.of(worker)[reason as usize].one();
        let due = {
            let mut unreported = self.unreported.lock();
            unreported.add(reason);
            unreported.take(now)
        };
        if let Some((failures, _)) = due {
            tracing::warn!(upstream = self.name, %server, reason = reason.name(), %error, failures, "upstream failed");
        }
    }

    /// Writes a line of those that no line has told of. Without it the last ones of a burst would stay untold until the
    /// next failure.
    pub fn report(&self, now: Time) {
        let due = self.unreported.lock().take(now);
        if let Some((failures, last)) = due {
            tracing::warn!(upstream = self.name, reason = last.name(), failures, "upstream failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_tells_of_all() {
        let mut unreported = Unreported::default();
        let at = |millis: u64| Time::from_micros(millis * 1000);
        assert_eq!(unreported.take(at(0)), None, "nothing happened");
        unreported.add(Reason::Connect);
        assert_eq!(unreported.take(at(100)), Some((1, Reason::Connect)), "the first one at once");
        for reason in [Reason::Connect, Reason::Timeout] {
            unreported.add(reason);
            assert_eq!(unreported.take(at(999)), None);
        }
        assert_eq!(unreported.take(at(1000)), Some((2, Reason::Timeout)));
        assert_eq!(unreported.take(at(5000)), None, "none is told of twice");
        unreported.add(Reason::Closed);
        assert_eq!(unreported.take(at(500)), Some((1, Reason::Closed)), "also when the clock was set back");
    }
}
