//! Metrics of sources of quotas: how lookups end, how long they take, and what is cached.

use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::super::families::{counter, family, gauge, histogram};
use crate::proxy::snapshot::SharedState;
use crate::sources::quotas::QuotaSource;

pub(super) fn families(shared: &SharedState) -> [MetricFamily; 7] {
    let sources: Vec<_> = shared.quota_sources().in_force().into_iter().map(|one| (one.limit(), one)).collect();
    let each = |metric: &dyn Fn(&QuotaSource, (&str, &str)) -> Metric| {
        sources.iter().map(|(limit, source)| metric(source, ("limit", limit))).collect::<Vec<_>>()
    };
    let results = |(limit, source): &(String, Arc<QuotaSource>)| {
        let lookups = source.counters();
        [
            ("found", lookups.found.get()),
            ("absent", lookups.absent.get()),
            ("unusable", lookups.unusable.get()),
            ("failed", lookups.failed.get()),
            ("skipped", source.skipped()),
        ]
        .map(|(result, count)| counter(count, &[("limit", limit), ("result", result)]))
    };
    let cached = |(limit, source): &(String, Arc<QuotaSource>)| {
        let (known, absent) = source.len();
        let limit = ("limit", limit.as_str());
        [gauge(known, &[limit, ("state", "known")]), gauge(absent, &[limit, ("state", "absent")])]
    };
    [
        family(
            "gateway_quota_lookups_total",
            "Lookups of keys in sources of quotas: found, absent, unusable answers, failed because the source was away, \
             and skipped because too many were waiting.",
            MetricType::COUNTER,
            sources.iter().flat_map(results),
        ),
        family(
            "gateway_quota_lookup_duration_seconds",
            "Time until a source of quotas answered.",
            MetricType::HISTOGRAM,
            each(&|source, limit| histogram(&[&source.counters().duration].into_iter().collect(), &[limit])),
        ),
        family(
            "gateway_quota_waits_timed_out_total",
            "Requests that waited for a source of quotas for its whole timeout, and then had other rates.",
            MetricType::COUNTER,
            each(&|source, limit| counter(source.timed_out(), &[limit])),
        ),
        family(
            "gateway_quota_cached_keys",
            "Keys whose quotas are cached: those that the source knows, and others.",
            MetricType::GAUGE,
            sources.iter().flat_map(cached),
        ),
        family(
            "gateway_quota_max_cached_keys",
            "The maximum number of cached keys.",
            MetricType::GAUGE,
            each(&|source, limit| gauge(source.settings().max_cached, &[limit])),
        ),
        family(
            "gateway_quota_evictions_total",
            "Keys that had to make room for others in the cache of a source of quotas.",
            MetricType::COUNTER,
            each(&|source, limit| counter(source.evictions(), &[limit])),
        ),
        family(
            "gateway_quota_source_up",
            "0 while the source of quotas is known to be away, otherwise 1.",
            MetricType::GAUGE,
            each(&|source, limit| gauge(usize::from(!source.is_away()), &[limit])),
        ),
    ]
}
