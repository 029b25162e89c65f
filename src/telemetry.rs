//! What happened to each request: counted by route and outcome, and a line in the access log.
//!
//! An account is closed when the body has gone out or the client has gone away, not when the head is sent.

mod observed_body;
mod upstream_failures;
mod sampler;

use std::fmt::Display;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, StatusCode};
use http_body::Body;

use crate::clock::{self, Time};
use crate::decide::{ConcurrencyPermit, LimitMetrics};
use crate::metrics::{Counter, Histogram, PerWorker};
use crate::reason::Reason;
use crate::server::RequestGuard;

pub use observed_body::{ObservedBody, ResponseBody};
pub use sampler::Sampler;
pub use upstream_failures::UpstreamFailures;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An upstream answered.
    Forwarded,
    /// The route answers itself.
    Responded,
    /// Over a limit.
    Limited,
    /// Over a limit, and answered as if all were well.
    Silenced,
    /// From a client that a limit blocks.
    Blocked,
    /// Not a request that can be served: malformed, or without a key that a limit wants.
    Refused,
    /// No route is for it.
    Unrouted,
    /// The upstream did not answer.
    Failed,
    /// The store did not answer, and the configuration says to reject then.
    Unavailable,
    /// The client went away before the end, or did not go on.
    Abandoned,
}

impl Outcome {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Forwarded,
        Self::Responded,
        Self::Limited,
        Self::Silenced,
        Self::Blocked,
        Self::Refused,
        Self::Unrouted,
        Self::Failed,
        Self::Unavailable,
        Self::Abandoned,
    ];

    /// Whether the gateway has refused it, with no more work than it takes to say so: whoever likes can cause many.
    fn is_refusal(self) -> bool {
        matches!(self, Self::Limited | Self::Silenced | Self::Blocked | Self::Refused | Self::Unrouted)
    }

    /// As logs and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Responded => "responded",
            Self::Limited => "limited",
            Self::Silenced => "silenced",
            Self::Blocked => "blocked",
            Self::Refused => "refused",
            Self::Unrouted => "unrouted",
            Self::Failed => "failed",
            Self::Unavailable => "unavailable",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The classes of statuses; the first is that of requests that were abandoned before they had one.
pub const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The requests of one route.
#[derive(Debug)]
pub struct RouteMetrics {
    /// Its name.
    pub name: String,
    /// By worker.
    pub workers: PerWorker<RequestMetrics>,
}

/// The requests of one route on one worker.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    /// By outcome, in the order of [`Outcome::ALL`], and class, in that of [`CLASSES`].
    pub ended: [[Counter; CLASSES.len()]; Outcome::ALL.len()],
    /// Those that did not end well, by why, in the order of [`Reason::ALL`].
    pub failed: [Counter; Reason::ALL.len()],
    /// From the head of the request to the end of the response, by outcome.
    pub latency: [Histogram; Outcome::ALL.len()],
}

/// What the access log says of a request besides how it ended. No header, no query: keys and tokens live there.
#[derive(Clone, Debug)]
pub struct AccessLogEntry {
    /// The client's address.
    pub client: IpAddr,
    /// The method, if it is known.
    pub method: Option<Method>,
    /// The host asked for.
    pub host: String,
    /// The path, without the query.
    pub path: String,
    /// The limit that did not let it through.
    pub limit: Option<Arc<LimitMetrics>>,
    /// Microseconds for which a limit held it back.
    pub held_micros: Option<u64>,
    /// How much of a body went out so far.
    pub bytes: u64,
}

impl AccessLogEntry {
    /// Of a client of whose request nothing else is known.
    pub fn new(client: IpAddr) -> Self {
        let (host, path) = (String::new(), String::new());
        Self { client, method: None, host, path, limit: None, held_micros: None, bytes: 0 }
    }
}

/// Where one worker counts the requests of one route.
#[derive(Debug)]
pub struct RouteRecorder {
    route: Arc<RouteMetrics>,
    /// Where failures of its upstream are counted, if it has one.
    upstream: Option<Arc<UpstreamFailures>>,
    worker: usize,
    /// Which refusals are written, if not all.
    sampler: Option<Rc<Sampler>>,
}

/// How a request ended, and why if that was not well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// How.
    pub outcome: Outcome,
    /// Why.
    pub reason: Option<Reason>,
    /// The status of the response, if there was one.
    pub status: Option<StatusCode>,
}

impl RouteRecorder {
    /// The book of this worker, which alone counts in it. With a `sampler` only refusals that it admits are written.
    pub fn new(
        route: Arc<RouteMetrics>,
        upstream: Option<Arc<UpstreamFailures>>,
        worker: usize,
        sampler: Option<Rc<Sampler>>,
    ) -> Self {
        Self { route, upstream, worker, sampler }
    }

    /// Counts a request that ended so, after so many microseconds, and writes its line if it has one.
    pub fn close(
        &self,
        RequestEnd { outcome, reason, status }: RequestEnd,
        micros: u64,
        entry: Option<&AccessLogEntry>,
    ) {
        let Self { route, worker, sampler, .. } = self;
        let requests = route.workers.of(*worker);
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100)).min(CLASSES.len() - 1);
        requests.ended[outcome as usize][class].one();
        requests.latency[outcome as usize].observe(micros);
        if let Some(reason) = reason {
            requests.failed[reason as usize].one();
        }
        let is_written = |entry: &&AccessLogEntry| match sampler {
            Some(sampler) if outcome.is_refusal() => sampler.admits(entry.client),
            _ => true,
        };
        if let Some(entry) = entry.filter(is_written) {
            tracing::info!(
                client = %entry.client,
                method = entry.method.as_ref().map(Method::as_str),
                host = entry.host,
                path = entry.path,
                route = route.name,
                status = status.map_or(0, |status| status.as_u16()),
                outcome = outcome.name(),
                reason = reason.map(Reason::name),
                limit = entry.limit.as_ref().map(|limit| limit.name.as_str()),
                held_micros = entry.held_micros,
                bytes = entry.bytes,
                micros,
                "request"
            );
        }
    }
}

/// The open account of one request; dropping it closes it. Small, because it is handed on with the response.
#[derive(Debug)]
pub struct RequestRecord {
    recorder: Rc<RouteRecorder>,
    begun: Time,
    entry: Option<Box<AccessLogEntry>>,
    /// Its places among the requests under way, until the end.
    permits: Option<Box<[ConcurrencyPermit]>>,
    guard: RequestGuard,
    status: Option<StatusCode>,
    /// How it ends if nothing comes in between.
    expected: Outcome,
    outcome: Outcome,
    /// Why it did not end well.
    reason: Option<Reason>,
    /// Whether it was a HEAD: then no body goes out, and nobody asks for one.
    bodiless: bool,
}

impl RequestRecord {
    /// Opens the account of a request that came at `begun`. Without a `line` the access log is silent.
    pub fn open(
        recorder: Rc<RouteRecorder>,
        begun: Time,
        method: &Method,
        entry: Option<Box<AccessLogEntry>>,
        guard: RequestGuard,
    ) -> Self {
        Self {
            recorder,
            begun,
            entry,
            permits: None,
            guard,
            status: None,
            expected: Outcome::Abandoned,
            outcome: Outcome::Abandoned,
            reason: None,
            bodiless: *method == Method::HEAD,
        }
    }

    /// Notes why the request is refused.
    pub fn refused_for(&mut self, reason: Reason) {
        self.reason = Some(reason);
    }

    /// Notes for the access log since when the request was held.
    pub fn held(&mut self, since: Option<Time>) {
        if let (Some(entry), Some(since)) = (&mut self.entry, since) {
            entry.held_micros = Some(clock::now().micros().saturating_sub(since.micros()));
        }
    }

    /// Notes for the access log which limit did not let the request through.
    pub fn refused_by(&mut self, limit: Option<&Arc<LimitMetrics>>) {
        if let Some(entry) = &mut self.entry {
            entry.limit = limit.cloned();
        }
    }

    /// Holds these places until the account is closed.
    pub fn hold(&mut self, permits: Vec<ConcurrencyPermit>) {
        self.permits = (!permits.is_empty()).then(|| permits.into_boxed_slice());
    }

    /// Notes why the request does not end well. If it is the upstream's doing, that is counted and logged for the
    /// `server` too.
    pub fn fail(&mut self, reason: Reason, server: &dyn Display, error: &dyn Display) {
        self.reason = Some(reason);
        match &self.recorder.upstream {
            Some(upstream) if reason.is_upstreams() => {
                upstream.note(self.recorder.worker, reason, server, error, clock::now());
            }
            _ => tracing::debug!(route = self.recorder.route.name, reason = reason.name(), %error, "request broke off"),
        }
    }

    /// The response that the account is closed with, once its body is out.
    pub fn settle(mut self, outcome: Outcome, status: StatusCode, content: ResponseBody) -> ObservedBody {
        self.status = Some(status);
        self.expected = outcome;
        if self.bodiless || content.is_end_stream() {
            self.outcome = outcome;
        }
        ObservedBody { content, record: self }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let micros = clock::now().micros().saturating_sub(self.begun.micros());
        let cut_off = || self.guard.cut_off().filter(|_| self.outcome == Outcome::Abandoned);
        let end = RequestEnd { outcome: self.outcome, reason: self.reason.or_else(cut_off), status: self.status };
        self.recorder.close(end, micros, self.entry.as_deref());
    }
}
