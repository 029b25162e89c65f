//! Metrics of limits with costs in tokens: what language models have used, and what the gateway charged for it.

use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::super::View;
use super::super::families::{counter, family};
use crate::config::Cost;
use crate::request::decide::{LimitMetrics, OTHER_MODELS, TokenCounts};

/// Other limits have no such series.
pub(super) fn families(view: &View) -> [MetricFamily; 6] {
    let config = view.config.load();
    let costs_tokens =
        |name: &str| config.limits.iter().any(|limit| limit.name == name && matches!(limit.cost, Cost::Tokens(_)));
    let limits: Vec<Arc<LimitMetrics>> =
        view.shared.limits().into_iter().filter(|limit| costs_tokens(&limit.name)).collect();
    let each = |name: &str, help: &str, read: fn(&TokenCounts) -> u64| {
        let metric = |limit: &Arc<LimitMetrics>| counter(read(&limit.tokens.total()), &[("limit", &limit.name)]);
        family(name, help, MetricType::COUNTER, limits.iter().map(metric))
    };
    [
        family(
            "gateway_tokens_total",
            "Tokens of language models that requests of a limit have used, by model and kind: input that was not read \
             from the provider's cache, cached input, and output.",
            MetricType::COUNTER,
            limits.iter().flat_map(|limit| by_model(limit)),
        ),
        each(
            "gateway_token_cost_reserved_total",
            "What a limit with a cost in tokens charged requests before their responses ended.",
            |counts| counts.reserved,
        ),
        each("gateway_token_cost_settled_total", "What the same requests cost in the end.", |counts| counts.settled),
        each(
            "gateway_token_estimates_total",
            "Responses whose tokens were estimated by their size, because they broke off or did not report them.",
            |counts| counts.estimated,
        ),
        each(
            "gateway_token_streams_cut_total",
            "Streams that were cut because there was no room for more tokens.",
            |counts| counts.cut,
        ),
        each("gateway_token_counts_ignored_total", "Impossible counts of tokens in responses, such as -1.", |counts| {
            counts.ignored
        }),
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
