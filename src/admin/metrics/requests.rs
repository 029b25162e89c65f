//! Metrics of requests: how they ended, how long they took, and why they failed.

use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily};

use super::super::View;
use super::super::families::{Label, counter, counters, histogram, histograms};
use super::expected::{self, Expected};
use crate::base::metrics::{Counter, HistogramSnapshot};
use crate::base::reason::Reason;
use crate::proxy::telemetry::{CLASSES, MethodClass, Outcome, RouteMetrics};

type Failed = [Counter; Reason::ALL.len()];

pub(super) fn families(view: &View) -> [MetricFamily; 5] {
    let (routes, upstreams) = (view.shared.routes.all(), view.shared.upstreams.all());
    let expected = expected::by_route(&view.config.load());
    let routes: Vec<_> = routes.iter().map(|route| (route, expected.get(&route.name))).collect();
    [
        counters("gateway_requests_total", routes.iter().flat_map(|(route, expected)| requests(route, *expected))),
        histograms(
            "gateway_request_duration_seconds",
            routes.iter().flat_map(|(route, expected)| durations(route, *expected)),
        ),
        counters(
            "gateway_request_failures_total",
            routes.iter().flat_map(|(route, expected)| {
                let failed = route.workers.iter().map(|worker| &worker.failed);
                reasons(failed, ("route", &route.name), |reason| {
                    expected.is_some_and(|route| route.reasons[reason as usize])
                })
            }),
        ),
        counters("gateway_loops_total", [counter(loops(routes.iter().map(|(route, _)| *route)), &[])]),
        counters(
            "gateway_upstream_failures_total",
            upstreams.iter().flat_map(|upstream| {
                reasons(upstream.workers.iter(), ("upstream", &upstream.name), Reason::is_upstreams)
            }),
        ),
    ]
}

fn requests(route: &RouteMetrics, expected: Option<&Expected>) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for outcome in Outcome::ALL {
        for method in MethodClass::ALL {
            for (class, status) in CLASSES.iter().enumerate() {
                let counts = route.workers.iter().map(|worker| worker.ended(outcome, method)[class].get());
                let count = counts.sum();
                // Counts only grow, so a series never disappears.
                if count > 0
                    || expected
                        .is_some_and(|route| route.methods[method as usize] && route.endings[outcome as usize][class])
                {
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

/// Requests that came back to this gateway.
fn loops<'a>(routes: impl Iterator<Item = &'a Arc<RouteMetrics>>) -> u64 {
    let workers = routes.flat_map(|route| route.workers.iter());
    workers.map(|worker| worker.failed[Reason::Loop as usize].get()).sum()
}

/// Adds up the workers' failures by reason, without reasons that have not happened and are not likely.
fn reasons<'a>(
    workers: impl Iterator<Item = &'a Failed>,
    of: Label<'_>,
    is_likely: impl Fn(Reason) -> bool,
) -> Vec<Metric> {
    let mut counts = [0; Reason::ALL.len()];
    workers.for_each(|failed| counts.iter_mut().zip(failed).for_each(|(sum, count)| *sum += count.get()));
    let shown = Reason::ALL.iter().zip(counts).filter(|(reason, count)| *count > 0 || is_likely(**reason));
    shown.map(|(reason, count)| counter(count, &[of, ("reason", reason.name())])).collect()
}

fn durations(route: &RouteMetrics, expected: Option<&Expected>) -> Vec<Metric> {
    let of = |outcome: Outcome| {
        let snapshot: HistogramSnapshot =
            route.workers.iter().map(|worker| &worker.latency[outcome as usize]).collect();
        // A histogram has twenty series, so only the purpose of a route has one before its first event.
        let is_purpose = matches!(outcome, Outcome::Forwarded | Outcome::Responded);
        let is_expected = is_purpose && expected.is_some_and(|route| route.endings[outcome as usize].contains(&true));
        let has_happened = snapshot.buckets.iter().any(|count| *count > 0);
        (has_happened || is_expected)
            .then(|| histogram(&snapshot, &[("route", &route.name), ("outcome", outcome.name())]))
    };
    Outcome::ALL.into_iter().filter_map(of).collect()
}
