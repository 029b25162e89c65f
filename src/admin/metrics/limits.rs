//! Metrics of limits: what they have decided, how full they are, and how many requests they hold.

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::super::View;
use super::super::families::{counter, family, gauge, gauged, real};
use crate::base::clock;
use crate::request::decide::{DECISIONS, LimitMetrics};

/// The families of limits.
pub(super) fn families(view: &View) -> [MetricFamily; 4] {
    let (limits, now) = (view.shared.limits(), clock::now());
    [
        family(
            "gateway_limit_decisions_total",
            "Decisions by limit: admitted, rejected, shadowed (over a limit that only reports), silenced, delayed (held \
             first), not_charged (refused by another limit), exempt and blocked (overrides), skipped and keyless (no \
             key), unknown (the store did not answer).",
            MetricType::COUNTER,
            limits.iter().flat_map(|limit| decisions(limit)),
        ),
        family(
            "gateway_limit_fullest_key_ratio",
            "The share of its quota that the fullest of the keys had used that were counted in the last 17 to 34 seconds: 1 \
             is all of it, and further requests of that key are over the limit.",
            MetricType::GAUGE,
            limits.iter().map(|limit| real(limit.fullest(now), &[("limit", &limit.name)])),
        ),
        family(
            "gateway_limit_temporary_overrides",
            "Overrides that the admin API has set and that have not ended, by limit.",
            MetricType::GAUGE,
            view.snapshot.load().limits.iter().map(|table| gauge(table.temporary_count(), &[("limit", table.name())])),
        ),
        gauged("gateway_requests_held", "Requests that wait for room in a limit.", view.shared.held()),
    ]
}

fn decisions(limit: &LimitMetrics) -> Vec<Metric> {
    let metric = |(kind, count): &(&str, _)| {
        counter(limit.decisions(*count), &[("limit", limit.name.as_str()), ("decision", *kind)])
    };
    DECISIONS.iter().map(metric).collect()
}
