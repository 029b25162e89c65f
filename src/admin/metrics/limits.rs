//! Metrics of limits: their decisions, how full they are, and how many requests they hold.

use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::super::View;
use super::super::families::{counter, family, gauge, gauged, real};
use crate::base::clock;
use crate::request::decide::{DECISIONS, KnownBans, LimitMetrics};

pub(super) fn families(view: &View) -> [MetricFamily; 6] {
    let (limits, now) = (view.shared.limits(), clock::now());
    [
        family(
            "gateway_limit_decisions_total",
            "Decisions by limit: admitted, rejected, shadowed (over a limit that only reports), silenced, delayed (held \
             first), overflowed (charged to the pool instead), not_charged (refused by another limit), exempt and blocked \
             (overrides), banned, skipped and keyless (no \
             key), unknown (the store did not answer).",
            MetricType::COUNTER,
            limits.iter().flat_map(|limit| decisions(limit)),
        ),
        family(
            "gateway_limit_fullest_key_ratio",
            "The share of its quota that the fullest key of the last 5 minutes has used: at 1, further requests of \
             that key are over the limit.",
            MetricType::GAUGE,
            limits.iter().map(|limit| real(limit.fullest(now), &[("limit", &limit.name)])),
        ),
        family(
            "gateway_limit_temporary_overrides",
            "Overrides that the admin API has set and that have not expired, by limit.",
            MetricType::GAUGE,
            view.snapshot.load().limits.iter().map(|table| gauge(table.temporary_count(), &[("limit", table.name())])),
        ),
        family(
            "gateway_bans_total",
            "Bans that this gateway has begun, by limit.",
            MetricType::COUNTER,
            banning(view).map(|limit| {
                let begun = limit.bans.iter().map(|known| known.begun.get()).sum();
                counter(begun, &[("limit", limit.name.as_str())])
            }),
        ),
        family(
            "gateway_banned_keys",
            "Banned keys that this gateway knows of, by limit.",
            MetricType::GAUGE,
            banning(view).map(|limit| gauge(KnownBans::all(&limit.bans, now).len(), &[("limit", &limit.name)])),
        ),
        gauged("gateway_requests_held", "Requests that limits are holding.", view.shared.held()),
    ]
}

fn banning(view: &View) -> impl Iterator<Item = Arc<LimitMetrics>> {
    let (snapshot, limits) = (view.snapshot.load_full(), view.shared.limits());
    let bans = move |limit: &Arc<LimitMetrics>| {
        snapshot.limits.iter().any(|table| table.name() == limit.name && table.ban().is_some())
    };
    limits.into_iter().filter(bans)
}

fn decisions(limit: &LimitMetrics) -> Vec<Metric> {
    let metric = |(kind, count): &(&str, _)| {
        counter(limit.decisions(*count), &[("limit", limit.name.as_str()), ("decision", *kind)])
    };
    DECISIONS.iter().map(metric).collect()
}
