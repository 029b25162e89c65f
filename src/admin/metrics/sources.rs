//! Metrics of what is exchanged with other servers: keys of issuers with the tokens that they verify, quotas of keys,
//! certificates, spans, and notices.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus::proto::{Metric, MetricFamily};

use super::super::View;
use super::super::families::{counted_by, counter, counters, gauge, gauges, histogram, histograms, whole};
use crate::base::clock;
use crate::base::jwt::Rejection;
use crate::base::metrics::Counter;
use crate::base::spans::SpanCounts;
use crate::proxy::snapshot::SharedState;
use crate::request::identify::tokens::{JwtMetrics, TokenCounters};
use crate::sources::acme::{AcmeSources, Challenges};
use crate::sources::jwks::{KeyServer, KeySource};
use crate::sources::notices::NoticeCounts;
use crate::sources::quotas::QuotaSource;

pub(super) fn families(view: &View) -> Vec<MetricFamily> {
    let shared = &view.shared;
    let families = acme(&view.acme).into_iter().chain(tokens(shared)).chain(quotas(shared));
    families.chain([spans(shared)]).chain(notices(shared)).collect()
}

fn tokens(shared: &SharedState) -> [MetricFamily; 4] {
    let tokens = shared.tokens.all();
    let sources = shared.key_sources.all();
    let fetched: Vec<_> = sources.iter().filter_map(|source| Some((&**source, source.server.as_ref()?))).collect();
    let of_each = |value: fn(&KeySource, &KeyServer) -> u64| {
        fetched.iter().map(move |(source, server)| {
            gauge(usize::try_from(value(source, server)).unwrap_or(0), &[("jwt", &source.name)])
        })
    };
    let results = |(source, server): &(&KeySource, &KeyServer)| {
        [("ok", &server.fetched), ("failed", &server.failed)]
            .map(|(result, count)| counter(count.get(), &[("jwt", &source.name), ("result", result)]))
    };
    [
        counters("gateway_jwt_tokens_total", tokens.iter().flat_map(|token| found(token))),
        counters("gateway_jwks_fetches_total", fetched.iter().flat_map(results)),
        gauges("gateway_jwks_keys", of_each(|source, _| source.keys().count() as u64)),
        gauges(
            "gateway_jwks_last_success_timestamp_seconds",
            of_each(|_, server| server.last_success.load(Ordering::Relaxed)),
        ),
    ]
}

fn found(token: &JwtMetrics) -> Vec<Metric> {
    let sum = |read: &dyn Fn(&TokenCounters) -> &Counter| token.workers.iter().map(|worker| read(worker).get()).sum();
    let mut results: Vec<(&str, u64)> = vec![
        ("verified", sum(&|counters| &counters.verified)),
        ("cached", sum(&|counters| &counters.cached)),
        ("missing", sum(&|counters| &counters.missing)),
    ];
    for rejection in Rejection::ALL {
        results.push((rejection.name(), sum(&|counters| &counters.rejected[rejection as usize])));
    }
    results.iter().map(|(result, count)| counter(*count, &[("jwt", &token.name), ("result", result)])).collect()
}

fn quotas(shared: &SharedState) -> [MetricFamily; 7] {
    let sources: Vec<_> = shared.quota_sources.all().into_iter().map(|one| (one.limit(), one)).collect();
    let each = |metric: &dyn Fn(&QuotaSource, (&str, &str)) -> Metric| {
        sources.iter().map(|(limit, source)| metric(source, ("limit", limit))).collect::<Vec<_>>()
    };
    let results = |(limit, source): &(String, Arc<QuotaSource>)| {
        let lookups = &source.counters;
        [
            ("found", lookups.found.get()),
            ("absent", lookups.absent.get()),
            ("unusable", lookups.unusable.get()),
            ("failed", lookups.failed.get()),
            ("skipped", lookups.skipped.get()),
        ]
        .map(|(result, count)| counter(count, &[("limit", limit), ("result", result)]))
    };
    let cached = |(limit, source): &(String, Arc<QuotaSource>)| {
        let (known, absent) = source.cache.len();
        let limit = ("limit", limit.as_str());
        [gauge(known, &[limit, ("state", "known")]), gauge(absent, &[limit, ("state", "absent")])]
    };
    [
        counters("gateway_quota_lookups_total", sources.iter().flat_map(results)),
        histograms(
            "gateway_quota_lookup_duration_seconds",
            each(&|source, limit| histogram(&[&source.counters.duration].into_iter().collect(), &[limit])),
        ),
        counters(
            "gateway_quota_waits_timed_out_total",
            each(&|source, limit| counter(source.counters.timed_out.get(), &[limit])),
        ),
        gauges("gateway_quota_cached_keys", sources.iter().flat_map(cached)),
        gauges("gateway_quota_max_cached_keys", each(&|source, limit| gauge(source.settings.max_cached, &[limit]))),
        counters(
            "gateway_quota_evictions_total",
            each(&|source, limit| counter(source.cache.evictions.get(), &[limit])),
        ),
        gauges(
            "gateway_quota_source_up",
            each(&|source, limit| gauge(usize::from(!source.availability.is_away()), &[limit])),
        ),
    ]
}

fn acme(acme: &AcmeSources) -> [MetricFamily; 3] {
    let Challenges { answered, unknown, .. } = &**acme.challenges();
    [
        counted_by("gateway_acme_orders_total", "result", acme.orders()),
        gauges("gateway_acme_overdue_seconds", [whole(acme.overdue(clock::now()).as_secs())]),
        counted_by(
            "gateway_acme_challenges_total",
            "result",
            [("answered", answered.get()), ("unknown", unknown.get())],
        ),
    ]
}

fn spans(shared: &SharedState) -> MetricFamily {
    let SpanCounts { exported, no_room, refused, failed } = &*shared.exporters.counts;
    let results = [("exported", exported), ("no_room", no_room), ("refused", refused), ("failed", failed)];
    counted_by("gateway_spans_total", "result", results.map(|(result, count)| (result, count.get())))
}

fn notices(shared: &SharedState) -> [MetricFamily; 3] {
    let NoticeCounts { delivered, failed, full, expired, ended } = shared.notices.counts();
    let dropped = [("full", full.get()), ("expired", expired.get()), ("ended", ended.get())];
    [
        counted_by("gateway_notices_total", "result", [("delivered", delivered.get()), ("failed", failed.get())]),
        counted_by("gateway_notices_dropped_total", "reason", dropped),
        gauges("gateway_notices_waiting", [whole(shared.notices.waiting() as u64)]),
    ]
}
