//! Counts the failures of upstreams by their reasons, and logs them in at most one line a second.
//!
//! While an upstream is down, every request fails. A line for each would fill disks and hide everything else.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::clock::Time;
use crate::base::http::request_id::RequestId;
use crate::base::metrics::{Counter, PerWorker};
use crate::base::reason::Reason;
use crate::base::repeated_event::RepeatedEvent;

pub struct UpstreamFailure<'a> {
    pub reason: Reason,
    pub id: &'a RequestId,
    pub server: &'a dyn Display,
    pub error: &'a dyn Display,
}

#[derive(Debug)]
pub struct UpstreamFailures {
    pub name: String,
    /// In the order of [`Reason::ALL`].
    pub workers: PerWorker<[Counter; Reason::ALL.len()]>,
    all: RepeatedEvent,
    /// The reason of the last failure, by its number.
    last: AtomicUsize,
}

impl UpstreamFailures {
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, workers: PerWorker::new(workers), all: RepeatedEvent::default(), last: AtomicUsize::default() }
    }

    /// Counts a failure. Logs it together with the earlier ones, unless this second has a line already.
    pub fn record(&self, worker: usize, failure: &UpstreamFailure<'_>, now: Time) {
        let UpstreamFailure { reason, id, server, error } = *failure;
        self.workers.of(worker)[reason as usize].one();
        self.last.store(reason as usize, Ordering::Relaxed);
        if let Some(failures) = self.all.add(now) {
            let (upstream, reason, request_id) = (&self.name, reason.name(), id.as_str());
            tracing::warn!(upstream, %server, reason, %error, failures, request_id, "upstream failed");
        }
    }

    /// Logs the failures that are not logged yet. Has to be called every second: a burst may end without another failure.
    pub fn report(&self, now: Time) {
        if let Some(failures) = self.all.due(now) {
            let reason = Reason::ALL.get(self.last.load(Ordering::Relaxed)).map(|last| last.name());
            tracing::warn!(upstream = self.name, reason, failures, "upstream failed");
        }
    }
}
