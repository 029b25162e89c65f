//! Metrics of limits: their decisions, how full they are, how many requests they hold, what language models have used and
//! were charged for it, and how many bytes have passed.

use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily};

use super::super::View;
use super::super::families::{counter, counters, gauge, gauged, gauges, real};
use crate::base::clock;
use crate::config::{Cost, Limit};
use crate::request::decide::{DECISIONS, DecisionCounter, KnownBans, LimitMetrics, OTHER_MODELS, TokenCounts};

pub(super) fn families(view: &View) -> Vec<MetricFamily> {
    own(view).into_iter().chain(tokens(view)).chain(bytes(view)).collect()
}

fn own(view: &View) -> [MetricFamily; 6] {
    let (limits, now) = (view.shared.limits.all(), clock::now());
    [
        counters("gateway_limit_decisions_total", limits.iter().flat_map(|limit| decisions(limit))),
        gauges(
            "gateway_limit_fullest_key_ratio",
            limits.iter().map(|limit| real(limit.fullest(now), &[("limit", &limit.name)])),
        ),
        gauges(
            "gateway_limit_temporary_overrides",
            view.snapshot.load().limits.iter().map(|table| gauge(table.temporary_count(), &[("limit", table.name())])),
        ),
        counters(
            "gateway_bans_total",
            banning(view).map(|limit| {
                let begun = limit.bans.iter().map(|known| known.begun.get()).sum();
                counter(begun, &[("limit", limit.name.as_str())])
            }),
        ),
        gauges(
            "gateway_banned_keys",
            banning(view).map(|limit| gauge(KnownBans::all(&limit.bans, now).len(), &[("limit", &limit.name)])),
        ),
        gauged("gateway_requests_held", view.shared.wait_queues.held()),
    ]
}

fn banning(view: &View) -> impl Iterator<Item = Arc<LimitMetrics>> {
    let (snapshot, limits) = (view.snapshot.load_full(), view.shared.limits.all());
    let bans = move |limit: &Arc<LimitMetrics>| {
        snapshot.limits.iter().any(|table| table.name() == limit.name && table.ban.is_some())
    };
    limits.into_iter().filter(bans)
}

fn decisions(limit: &LimitMetrics) -> Vec<Metric> {
    let metric = |(kind, count): &(&str, _)| {
        counter(limit.decisions(*count), &[("limit", limit.name.as_str()), ("decision", *kind)])
    };
    DECISIONS.iter().map(metric).collect()
}

fn that_count(view: &View, is_wanted: fn(&Limit) -> bool) -> Vec<Arc<LimitMetrics>> {
    let config = view.config.load();
    let counts = |name: &str| config.limits.iter().any(|limit| limit.name == name && is_wanted(limit));
    view.shared.limits.all().into_iter().filter(|limit| counts(&limit.name)).collect()
}

/// Of limits with costs in tokens; other limits have no such series.
fn tokens(view: &View) -> [MetricFamily; 6] {
    let limits = that_count(view, |limit| matches!(limit.cost, Cost::Tokens(_)));
    let each = |name: &str, read: fn(&TokenCounts) -> u64| {
        let metric = |limit: &Arc<LimitMetrics>| counter(read(&limit.tokens.total()), &[("limit", &limit.name)]);
        counters(name, limits.iter().map(metric))
    };
    [
        counters("gateway_tokens_total", limits.iter().flat_map(|limit| by_model(limit))),
        each("gateway_token_cost_reserved_total", |counts| counts.reserved),
        each("gateway_token_cost_settled_total", |counts| counts.settled),
        each("gateway_token_estimates_total", |counts| counts.estimated),
        each("gateway_token_streams_cut_total", |counts| counts.cut),
        each("gateway_token_counts_ignored_total", |counts| counts.ignored),
    ]
}

/// Of limits with costs in bytes; other limits have no such series.
fn bytes(view: &View) -> [MetricFamily; 2] {
    let limits = that_count(view, Limit::counts_bytes);
    let passed = |limit: &Arc<LimitMetrics>| {
        let sums: [(&str, DecisionCounter); 2] =
            [("request", |counters| &counters.bytes.requests), ("response", |counters| &counters.bytes.responses)];
        sums.map(|(of, count)| counter(limit.decisions(count), &[("limit", &limit.name), ("direction", of)]))
    };
    let cut =
        |limit: &Arc<LimitMetrics>| counter(limit.decisions(|counters| &counters.bytes.cut), &[("limit", &limit.name)]);
    [
        counters("gateway_limit_bytes_total", limits.iter().flat_map(passed)),
        counters("gateway_limit_bodies_cut_total", limits.iter().map(cut)),
    ]
}

fn by_model(limit: &LimitMetrics) -> Vec<Metric> {
    let of = |(model, TokenCounts { used, .. }): (String, TokenCounts)| {
        [("input", used.input), ("cached", used.cached), ("output", used.output)]
            .map(|(kind, count)| counter(count, &[("limit", &limit.name), ("model", &model), ("kind", kind)]))
    };
    let mut models = limit.tokens.by_model();
    models.entry(OTHER_MODELS.to_owned()).or_default();
    models.into_iter().flat_map(of).collect()
}
