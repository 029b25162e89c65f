//! Records what happened to each request: in counters by route, class of method and outcome, and as a line in the access log.
//!
//! A record ends when the body has been sent or the client has left, not when the head is sent.

mod access_line;
mod access_log;
mod observed_body;
mod request_metrics;

use std::fmt::Display;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, Response, StatusCode};
use http_body::Body;

use crate::base::body_gate::Gated;
use crate::base::clock::{self, Monotonic, Time};
use crate::base::concurrency::ConcurrencyPermit;
use crate::base::http::request_id::RequestId;
use crate::base::reason::Reason;
use crate::base::spans::{RequestEnding, RequestSpans};
use crate::proxy::byte_meter::{ByteMeter, Direction};
use crate::proxy::token_meter::TokenMeter;
use crate::request::decide::LimitMetrics;
use crate::server::RequestGuard;
use crate::upstream::DestinationAddress;

pub use access_line::AccessLogEntry;
pub use access_log::{AccessLogOutput, AccessLogger, Sampler};
pub use observed_body::{ObservedBody, ResponseContent};
pub use request_metrics::{CLASSES, MethodClass, Outcome, RouteMetrics, UpstreamFailures};

use access_line::AccessLine;

#[derive(Debug)]
pub struct RouteRecorder {
    pub route: Arc<RouteMetrics>,
    pub upstream: Option<Arc<UpstreamFailures>>,
    /// Only this worker uses the recorder.
    pub worker: usize,
    /// Chooses which refusals are logged; `None` if all are.
    pub sampler: Option<Rc<Sampler>>,
    pub logger: Rc<AccessLogger>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    pub method: MethodClass,
    pub outcome: Outcome,
    pub reason: Option<Reason>,
    pub status: Option<StatusCode>,
    pub at: Time,
    /// From the head of the request to its end.
    pub micros: u64,
}

impl RouteRecorder {
    /// Counts the request `id`, and logs its entry if it has one.
    #[expect(clippy::inline_always, reason = "every request ends so")]
    #[inline(always)]
    pub fn close(&self, end: RequestEnd, id: &RequestId, entry: Option<&AccessLogEntry>) {
        let RequestEnd { method, outcome, reason, status, micros, .. } = end;
        let Self { route, worker, sampler, logger, .. } = self;
        let requests = route.workers.of(*worker);
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100)).min(CLASSES.len() - 1);
        requests.ended(outcome, method)[class].one();
        requests.latency[outcome as usize].observe(micros);
        if let Some(reason) = reason {
            requests.failed[reason as usize].one();
        }
        let is_logged = |entry: &&AccessLogEntry| match sampler {
            Some(sampler) if outcome.is_refusal() => sampler.admits(entry.client),
            _ => true,
        };
        if let Some(entry) = entry.filter(is_logged) {
            logger.write(&AccessLine { entry, route: &route.name, end, id: id.as_str() });
        }
    }
}

/// The record of one request, which is closed when it is dropped. It is small because it moves with the response.
pub struct RequestRecord {
    pub recorder: Rc<RouteRecorder>,
    begun: Time,
    pub id: RequestId,
    entry: Option<Box<AccessLogEntry>>,
    /// `None` if they are not recorded.
    spans: Option<Box<RequestSpans>>,
    /// `None` if its limits need nothing until then, as most limits.
    until_end: Option<Box<UntilEnd>>,
    guard: RequestGuard,
    pub status: Option<StatusCode>,
    /// The outcome if the body is sent completely.
    expected: Outcome,
    outcome: Outcome,
    pub reason: Option<Reason>,
    method: MethodClass,
    /// Whether this is a HEAD request, so the body of its answer is neither sent nor polled.
    is_head: bool,
}

/// What limits need until the response has been sent.
#[derive(Default)]
struct UntilEnd {
    permits: Vec<ConcurrencyPermit>,
    /// Charges the tokens that the response states, if limits count them.
    tokens: Option<Box<TokenMeter>>,
    /// Charges the bytes that pass, with the gate of the response, if limits count them.
    bytes: Option<(ByteMeter, Gated)>,
}

impl RequestRecord {
    /// Begins the record of the request `id` that arrived at `begun`. `is_head` says whether its answer has no body. Without
    /// an `entry` nothing is logged, and without `spans` nothing is traced.
    pub fn open(
        recorder: Rc<RouteRecorder>,
        begun: Time,
        id: RequestId,
        (method, is_head): (&Method, bool),
        entry: Option<Box<AccessLogEntry>>,
        spans: Option<Box<RequestSpans>>,
        guard: RequestGuard,
    ) -> Self {
        Self {
            recorder,
            begun,
            id,
            entry,
            spans,
            until_end: None,
            guard,
            status: None,
            expected: Outcome::Abandoned,
            outcome: Outcome::Abandoned,
            reason: None,
            method: MethodClass::of(method),
            is_head,
        }
    }

    pub fn spans(&self) -> Option<&RequestSpans> {
        self.spans.as_deref()
    }

    /// Whether it is logged or traced, not only counted.
    pub fn has_details(&self) -> bool {
        self.entry.is_some() || self.spans.is_some()
    }

    pub fn refused_by(&mut self, limit: Option<&Arc<LimitMetrics>>) {
        if let Some(entry) = &mut self.entry {
            entry.limit = limit.cloned();
        }
    }

    /// Records for the access log: when the hold began, the limits that only report, those whose pools were charged, and how
    /// many more requests each limit admits.
    pub fn decided<'a>(
        &mut self,
        held_since: Option<Time>,
        [shadowed, overflowed]: [impl Iterator<Item = &'a Arc<LimitMetrics>>; 2],
        remaining: impl Iterator<Item = (&'a Arc<LimitMetrics>, u64)>,
    ) {
        if let Some(entry) = &mut self.entry {
            entry.held_micros = held_since.map(|since| clock::now().micros_since(since));
            entry.shadowed = shadowed.cloned().collect();
            entry.overflowed = overflowed.cloned().collect();
            entry.remaining = remaining.map(|(limit, remaining)| (limit.clone(), remaining)).collect();
        }
    }

    /// Records for the access log which server has responded. The request to it began at `begun`.
    pub fn responded(&mut self, server: impl FnOnce() -> Option<DestinationAddress>, begun: Option<Monotonic>) {
        if let Some(entry) = &mut self.entry {
            entry.server = server();
            entry.upstream_micros = begun.map(|begun| clock::monotonic().micros_since(begun));
        }
    }

    pub fn hold(&mut self, permits: &mut Vec<ConcurrencyPermit>) {
        if !permits.is_empty() {
            self.until_end().permits = mem::take(permits);
        }
    }

    pub fn meter(&mut self, meter: Box<TokenMeter>) {
        self.until_end().tokens = Some(meter);
    }

    pub fn count_bytes(&mut self, meter: ByteMeter) {
        let gate = meter.gate(Direction::Response);
        self.until_end().bytes = Some((meter, gate));
    }

    fn until_end(&mut self) -> &mut UntilEnd {
        self.until_end.get_or_insert_default()
    }

    /// The meter of a request whose bytes are counted.
    pub fn byte_meter(&self) -> Option<&ByteMeter> {
        self.until_end.as_ref()?.bytes.as_ref().map(|(meter, _)| meter)
    }

    /// Records why the request fails. If the upstream caused it, the failure is also counted and logged for the upstream.
    pub fn fail(&mut self, reason: Reason, server: &dyn Display, error: &dyn Display) {
        self.reason = Some(reason);
        match &self.recorder.upstream {
            Some(_) if reason.is_upstreams() => self.failed_attempt(reason, server, error),
            _ => {
                let (route, request_id) = (&self.recorder.route.name, self.id.as_str());
                tracing::debug!(route, reason = reason.name(), %error, request_id, "request failed");
            }
        }
    }

    /// Counts and logs for the upstream that an attempt has failed. The request is sent again.
    pub fn failed_attempt(&self, reason: Reason, server: &dyn Display, error: &dyn Display) {
        if let Some(upstream) = &self.recorder.upstream {
            upstream.record(self.recorder.worker, reason, &self.id, server, error, clock::now());
        }
    }

    /// Gives the record to the body of the response, which closes the record when it has been sent.
    pub fn settle(mut self, outcome: Outcome, response: &mut Response<ObservedBody>) {
        self.status = Some(response.status());
        self.expected = outcome;
        let body = response.body_mut();
        if self.is_head || body.is_end_stream() {
            self.outcome = outcome;
        }
        body.record = Some(self);
    }

    pub fn sent(&mut self, bytes: usize) {
        if let Some(entry) = &mut self.entry {
            entry.bytes += bytes as u64;
        }
    }

    /// All of the body has passed. Its bytes are settled before the last of them is sent.
    fn ended_whole(&mut self) {
        self.outcome = self.expected;
        self.byte_meter().into_iter().for_each(ByteMeter::settle);
    }

    /// Records how a tunnel ended, or that a request is left unanswered. Without this call, the client counts as having left.
    pub fn ended(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let now = clock::now();
        let micros = now.micros_since(self.begun);
        if let Some(mut until_end) = self.until_end.take() {
            if let Some((meter, _)) = &until_end.bytes {
                meter.settle();
            }
            if let Some(meter) = until_end.tokens.take() {
                let used = meter.close();
                self.entry.iter_mut().for_each(|entry| entry.tokens = Some(used));
            }
        }
        if self.guard.is_unsent() && matches!(self.outcome, Outcome::Forwarded | Outcome::Responded) {
            self.outcome = Outcome::Abandoned;
        }
        let cut_off = || self.guard.cut_off().filter(|_| self.outcome == Outcome::Abandoned);
        let reason = self.reason.or_else(cut_off);
        let Self { method, outcome, status, .. } = *self;
        let end = RequestEnd { method, outcome, reason, status, at: now, micros };
        self.recorder.close(end, &self.id, self.entry.as_deref());
        if let Some(spans) = self.spans.take() {
            spans.end(&RequestEnding {
                at: now,
                outcome: end.outcome.name(),
                reason: reason.map(Reason::name),
                status: end.status,
                has_failed: matches!(end.outcome, Outcome::Failed | Outcome::Unavailable | Outcome::Abandoned),
            });
        }
    }
}
