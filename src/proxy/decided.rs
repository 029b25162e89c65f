//! What follows from a decision: records for the access log and for spans, and the costs and headers of the response.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::refusal::refusing;
use crate::base::clock::{self, Time};
use crate::base::reason::Reason;
use crate::base::spans::{DecisionDetails, RequestSpans};
use crate::proxy::respond::LocalResponse;
use crate::proxy::snapshot::CompiledRoute;
use crate::proxy::telemetry::RequestRecord;
use crate::request::decide::{CostKnown, Decision, DecisionInput, DecisionState, LimitMetrics, LimitOutcome};

/// Records the decision about a request, unless it has no limits. `begun` is when it began, if the request is traced.
pub(super) fn record(
    record: &mut RequestRecord,
    route: &CompiledRoute,
    begun: Option<Time>,
    decision: Decision,
    state: &DecisionState<'_>,
) {
    if route.limits.is_empty() {
        return;
    }
    let metrics = |place: usize| Some(&route.limits.get(place)?.metrics);
    let over = [&state.shadowed, &state.overflowed];
    let over = over.map(|places| places.iter().filter_map(|place| metrics(*place)));
    record.decided(state.held_since, over, remaining(route, &state.outcomes));
    let refused_by = refusing(decision, state).and_then(metrics);
    record.refused_by(refused_by);
    if let Decision::Banned { .. } = decision {
        record.refused_for(Reason::Banned);
    }
    if let (Some(begun), Some(spans)) = (begun, record.spans()) {
        span(spans, route, begun, decision, refused_by, state);
    }
}

fn remaining<'r>(
    route: &'r CompiledRoute,
    outcomes: &[LimitOutcome<'_>],
) -> impl Iterator<Item = (&'r Arc<LimitMetrics>, u64)> {
    outcomes.iter().filter_map(|outcome| {
        let metrics = &route.limits.get(outcome.place)?.metrics;
        Some((metrics, outcome.verdict.remaining()?))
    })
}

#[cold]
fn span(
    spans: &RequestSpans,
    route: &CompiledRoute,
    begun: Time,
    decision: Decision,
    refused_by: Option<&Arc<LimitMetrics>>,
    state: &DecisionState<'_>,
) {
    spans.decided(DecisionDetails {
        begun,
        ended: clock::now(),
        limits: route.limits.iter().map(|limit| limit.metrics.name.clone()).collect(),
        decision: name(decision),
        refused_by: refused_by.map(|limit| limit.name.as_str()),
        exchanges: &state.exchanges,
        store: state.reservations.store_name(),
    });
}

fn name(decision: Decision) -> &'static str {
    match decision {
        Decision::Admitted => "admitted",
        Decision::Rejected | Decision::TooCostly { .. } => "rejected",
        Decision::Silenced(_) => "silenced",
        Decision::Blocked(_) => "blocked",
        Decision::Banned { .. } => "banned",
        Decision::NoKey(_) => "keyless",
        Decision::Unknown => "unknown",
    }
}

/// The `answer` to a request that its limits so far admit, and charge, but whose token or body cannot be used.
pub(super) fn charged(
    record: &mut RequestRecord,
    route: &CompiledRoute,
    input: &DecisionInput<'_, '_>,
    decision: Decision,
    state: &mut DecisionState<'_>,
    mut answer: LocalResponse,
) -> LocalResponse {
    self::record(record, route, input.traced_since, decision, state);
    let status = answer.status();
    settle(route, CostKnown::FromResponse, status, answer.headers_mut(), state, clock::now);
    answer
}

/// Charges the cost that a response states, and adds the headers about limits. `now` returns the arrival of the response.
pub fn settle(
    route: &CompiledRoute,
    cost: CostKnown,
    status: StatusCode,
    headers: &mut HeaderMap,
    state: &mut DecisionState<'_>,
    now: impl Fn() -> Time,
) {
    // What is not settled here is settled when the state is dropped, as if the client had left.
    match cost {
        CostKnown::FromResponse => state.reservations.settle(status, headers, &mut state.outcomes, &now),
        CostKnown::FromBody => state.reservations.settle_but_tokens(status, headers, &mut state.outcomes, &now),
        CostKnown::Never => {}
    }
    if !state.outcomes.is_empty() || !state.shadowed.is_empty() {
        route.rate_limit_headers.add_headers(headers, &state.outcomes, &state.shadowed, now());
    }
}
