//! What is counted of requests: how they ended, by route and class of method, and the failures of upstreams.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;

use crate::base::clock::Time;
use crate::base::http::request_id::RequestId;
use crate::base::metrics::{Counter, Histogram, PerWorker};
use crate::base::named::named;
use crate::base::reason::Reason;
use crate::base::repeated_event::RepeatedEvent;

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Outcome {
        Forwarded = "forwarded",
        /// An upstream accepted a tunnel, and both sides have ended it.
        Tunneled = "tunneled",
        /// The gateway answered as the route says.
        Responded = "responded",
        Limited = "limited",
        /// Over a limit that hides itself.
        Silenced = "silenced",
        Blocked = "blocked",
        /// The request cannot be served: it is malformed, or lacks a key that a limit requires.
        Refused = "refused",
        Unrouted = "unrouted",
        Failed = "failed",
        /// Answered before anything was done for it, because of overload.
        Shed = "shed",
        /// The store did not answer, and the configuration rejects requests then.
        Unavailable = "unavailable",
        /// The client left before the end, or sent or read nothing for too long.
        Abandoned = "abandoned",
    }
}

impl Outcome {
    /// Whether the gateway has refused the request. Refusals cost little, so a client can cause many of them.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self, Self::Limited | Self::Silenced | Self::Blocked | Self::Refused | Self::Unrouted | Self::Shed)
    }
}

named! {
    /// The classes of methods by which requests are counted, since each method that a client invents would be a time series.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MethodClass {
        /// Only reads: GET, HEAD, OPTIONS and TRACE, which RFC 9110, section 9.2.1, calls safe.
        Read = "read",
        /// Changes something: POST, PUT, PATCH and DELETE.
        Write = "write",
        /// Any other method, or none that could be read.
        Other = "other",
    }
}

impl MethodClass {
    pub fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE => Self::Read,
            Method::POST | Method::PUT | Method::PATCH | Method::DELETE => Self::Write,
            _ => Self::Other,
        }
    }
}

/// The classes of statuses. The first is for requests without a status: they were abandoned earlier, or are left unanswered.
pub const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

#[derive(Debug)]
pub struct RouteMetrics {
    pub name: String,
    pub workers: PerWorker<RequestMetrics>,
}

#[derive(Debug, Default)]
pub struct RequestMetrics {
    /// By outcome, in the order of [`Outcome::ALL`], and class of method, in that of [`MethodClass::ALL`].
    ended: [[ByStatus; MethodClass::ALL.len()]; Outcome::ALL.len()],
    /// By reason, in the order of [`Reason::ALL`].
    pub failed: [Counter; Reason::ALL.len()],
    /// From the head of the request to the end of the response, by outcome.
    pub latency: [Histogram; Outcome::ALL.len()],
}

/// Requests by the class of their status, in the order of [`CLASSES`].
type ByStatus = [Counter; CLASSES.len()];

impl RequestMetrics {
    pub fn ended(&self, outcome: Outcome, method: MethodClass) -> &ByStatus {
        &self.ended[outcome as usize][method as usize]
    }
}

/// Counts the failures of an upstream by their reasons, and logs them in at most one line a second: while it is down, every
/// request fails, and a line for each would fill disks and hide everything else.
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
    pub(super) fn record(
        &self,
        worker: usize,
        reason: Reason,
        id: &RequestId,
        server: &dyn Display,
        error: &dyn Display,
        now: Time,
    ) {
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
            let reason = Reason::ALL.get(self.last.load(Ordering::Relaxed)).map(|reason| reason.name());
            tracing::warn!(upstream = self.name, reason, failures, "upstream failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_nobody_knows_are_others() {
        let class = |method: &str| MethodClass::of(&Method::from_bytes(method.as_bytes()).unwrap()).name();
        assert_eq!(["GET", "HEAD", "OPTIONS", "TRACE"].map(class), ["read"; 4]);
        assert_eq!(["POST", "PUT", "PATCH", "DELETE"].map(class), ["write"; 4]);
        assert_eq!(["CONNECT", "get", "PROPFIND", "X"].map(class), ["other"; 4]);
    }
}
