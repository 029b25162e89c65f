//! Metrics of requests: how they ended, how long they took, and why they failed.

use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::super::View;
use super::super::families::{Label, counter, family, histogram};
use crate::base::metrics::{Counter, HistogramSnapshot};
use crate::base::reason::Reason;
use crate::proxy::telemetry::{CLASSES, MethodClass, Outcome, RouteMetrics};

type Failed = [Counter; Reason::ALL.len()];

/// The families of requests, by route, and of the failures of upstreams.
pub(super) fn families(view: &View) -> [MetricFamily; 5] {
    let (routes, upstreams) = (view.shared.routes(), view.shared.upstreams());
    [
        family(
            "gateway_requests_total",
            "Requests by route, outcome, class of status and class of method (read, write, other).",
            MetricType::COUNTER,
            routes.iter().flat_map(|route| requests(route)),
        ),
        family(
            "gateway_request_duration_seconds",
            "Time from the head of a request to the end of its response, by route and outcome.",
            MetricType::HISTOGRAM,
            routes.iter().flat_map(|route| durations(route)),
        ),
        family(
            "gateway_request_failures_total",
            "Requests that failed, by route and reason.",
            MetricType::COUNTER,
            routes
                .iter()
                .flat_map(|route| reasons(route.workers.iter().map(|worker| &worker.failed), ("route", &route.name))),
        ),
        family(
            "gateway_loops_total",
            "Requests that had passed this gateway twice already.",
            MetricType::COUNTER,
            [counter(loops(&routes), &[])],
        ),
        family(
            "gateway_upstream_failures_total",
            "Failures of upstreams, by reason.",
            MetricType::COUNTER,
            upstreams.iter().flat_map(|upstream| reasons(upstream.workers.iter(), ("upstream", &upstream.name))),
        ),
    ]
}

fn requests(route: &RouteMetrics) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for outcome in Outcome::ALL {
        for method in MethodClass::ALL {
            for (class, status) in CLASSES.iter().enumerate() {
                let counts = route.workers.iter().map(|worker| worker.ended(outcome, method)[class].get());
                let count = counts.sum();
                // Most combinations never occur. A series that exists once never disappears, since counts only grow.
                if count > 0 {
                    let name = route.name.as_str();
                    let labels = [
                        ("route", name),
                        ("outcome", outcome.name()),
                        ("status", status),
                        ("method_class", method.name()),
                    ];
                    metrics.push(counter(count, &labels));
                }
            }
        }
    }
    metrics
}

/// How many requests have come again and again.
fn loops(routes: &[Arc<RouteMetrics>]) -> u64 {
    let workers = routes.iter().flat_map(|route| route.workers.iter());
    workers.map(|worker| worker.failed[Reason::Loop as usize].get()).sum()
}

/// The failures of all workers by reason.
fn reasons<'a>(workers: impl Iterator<Item = &'a Failed>, of: Label<'_>) -> Vec<Metric> {
    let mut counts = [0; Reason::ALL.len()];
    workers.for_each(|failed| counts.iter_mut().zip(failed).for_each(|(sum, count)| *sum += count.get()));
    // Most reasons never occur. A series that exists once never disappears, since counts only grow.
    let happened = Reason::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
    happened.map(|(reason, count)| counter(count, &[of, ("reason", reason.name())])).collect()
}

fn durations(route: &RouteMetrics) -> Vec<Metric> {
    let of = |outcome: Outcome| {
        let snapshot: HistogramSnapshot =
            route.workers.iter().map(|worker| &worker.latency[outcome as usize]).collect();
        // Most outcomes never occur. A series that exists once never disappears, since counts only grow.
        let has_happened = snapshot.buckets.iter().any(|count| *count > 0);
        has_happened.then(|| histogram(&snapshot, &[("route", &route.name), ("outcome", outcome.name())]))
    };
    Outcome::ALL.into_iter().filter_map(of).collect()
}
