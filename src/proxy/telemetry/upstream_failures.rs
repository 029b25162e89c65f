//! The failures of upstreams: each is counted by its reason, and they are logged in at most one line a second.
//!
//! While an upstream is down every request fails. A line for each would fill disks and hide everything else.

use std::fmt::Display;

use parking_lot::Mutex;

use crate::base::clock::Time;
use crate::base::http::request_id::RequestId;
use crate::base::metrics::{Counter, PerWorker};
use crate::base::reason::Reason;

/// One failure of an upstream.
pub struct Failure<'a> {
    /// Why the request failed.
    pub reason: Reason,
    /// The request.
    pub id: &'a RequestId,
    /// The server that it was sent to.
    pub server: &'a dyn Display,
    /// What exactly happened.
    pub error: &'a dyn Display,
}

/// The failures of one upstream.
#[derive(Debug)]
pub struct UpstreamFailures {
    /// The name of the upstream.
    pub name: String,
    /// The counters of each worker, in the order of [`Reason::ALL`].
    pub workers: PerWorker<[Counter; Reason::ALL.len()]>,
    unreported: Mutex<Unreported>,
}

/// The failures that are not logged yet.
#[derive(Debug, Default)]
struct Unreported {
    count: u64,
    /// The reason of the last one.
    last: Option<Reason>,
    /// The second of the last line.
    reported_in: Option<u64>,
}

impl Unreported {
    fn add(&mut self, reason: Reason) {
        self.count += 1;
        self.last = Some(reason);
    }

    /// The number of failures to log now and the reason of the last one; `None` if there is none, or if this second has
    /// a line already.
    fn take(&mut self, now: Time) -> Option<(u64, Reason)> {
        let second = now.seconds();
        let last = self.last.filter(|_| self.reported_in != Some(second))?;
        let count = self.count;
        *self = Self { reported_in: Some(second), ..Self::default() };
        Some((count, last))
    }
}

impl UpstreamFailures {
    /// For the upstream with this name and so many workers.
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, workers: PerWorker::new(workers), unreported: Mutex::default() }
    }

    /// Counts a failure on this worker. Unless this second has a line already, logs it together with the earlier ones.
    pub fn record(&self, worker: usize, failure: &Failure<'_>, now: Time) {
        let Failure { reason, id, server, error } = *failure;
        self.workers.of(worker)[reason as usize].one();
        let due = {
            let mut unreported = self.unreported.lock();
            unreported.add(reason);
            unreported.take(now)
        };
        if let Some((failures, _)) = due {
            let (upstream, reason, request_id) = (&self.name, reason.name(), id.as_str());
            tracing::warn!(upstream, %server, reason, %error, failures, request_id, "upstream failed");
        }
    }

    /// Logs the failures that are not logged yet; call it every second. Otherwise the last ones of a burst would be
    /// logged only at the next failure.
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
    fn one_line_a_second_counts_all_failures() {
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
        assert_eq!(unreported.take(at(5000)), None, "no failure is logged twice");
        unreported.add(Reason::Closed);
        assert_eq!(unreported.take(at(500)), Some((1, Reason::Closed)), "also when the clock was set back");
    }
}
