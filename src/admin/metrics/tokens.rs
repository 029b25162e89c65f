//! Metrics of tokens: how many were valid, why others were not, and the age of their issuers' keys.

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::super::families::{counter, family, gauge};
use crate::base::jwt::Rejection;
use crate::base::metrics::Counter;
use crate::proxy::snapshot::SharedState;
use crate::request::identify::tokens::{JwtMetrics, TokenCounters};
use crate::sources::jwks::Fetches;

pub(super) fn families(shared: &SharedState) -> [MetricFamily; 4] {
    let tokens = shared.tokens();
    let fetches: Vec<_> = shared.key_sources().in_force().iter().filter_map(|source| source.fetches()).collect();
    let gauges = |value: fn(&Fetches) -> u64| {
        fetches.iter().map(move |source| gauge(usize::try_from(value(source)).unwrap_or(0), &[("jwt", &source.name)]))
    };
    let results = |source: &Fetches| {
        let name = ("jwt", source.name.as_str());
        [counter(source.fetched, &[name, ("result", "ok")]), counter(source.failed, &[name, ("result", "failed")])]
    };
    [
        family(
            "gateway_jwt_tokens_total",
            "JSON Web Tokens of requests on routes that use them: verified and cached (valid), missing, or why they \
             were not valid.",
            MetricType::COUNTER,
            tokens.iter().flat_map(|token| found(token)),
        ),
        family(
            "gateway_jwks_fetches_total",
            "Fetches of the keys of issuers, by result.",
            MetricType::COUNTER,
            fetches.iter().flat_map(results),
        ),
        family(
            "gateway_jwks_keys",
            "Keys of an issuer in use.",
            MetricType::GAUGE,
            gauges(|source| source.keys as u64),
        ),
        family(
            "gateway_jwks_last_success_timestamp_seconds",
            "When the keys of an issuer were last fetched, in seconds since 1970; 0 is never.",
            MetricType::GAUGE,
            gauges(|source| source.last_success),
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
