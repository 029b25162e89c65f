//! What follows from a decision: records for the access log and for spans, the answer to a refused request, and for others
//! the costs and headers of the response, and the meter of its tokens.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};
use smallvec::SmallVec;

use super::respond::rate_limit_headers::RefusalCache;
use super::token_meter::{MeteredLimit, MeteredRequest, TokenMeter};
use super::{ConnectionContext, WorkerSnapshot};
use crate::base::clock::{self, Time};
use crate::base::reason::Reason;
use crate::base::spans::{DecisionDetails, RequestSpans};
use crate::config::{BanResponse, Cost, OnError, OnExhausted, Role, TokenCost};
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::{CompiledRoute, RouteLimits};
use crate::proxy::telemetry::{ObservedBody, Outcome, RequestRecord};
use crate::request::decide::{
    self, Beyond, CostKnown, Decision, DecisionInput, DecisionState, LimitMetrics, LimitOutcome, OpenReservation,
    PendingReservation, RouteLimit,
};
use crate::request::identify::RequestAttributes;
use crate::request::resolve::Rejection;

/// Records the decision about a request, unless it has no limits. `begun` is when it began, if the request is traced.
pub(super) fn record(
    record: &mut RequestRecord,
    limits: &RouteLimits,
    begun: Option<Time>,
    decision: Decision,
    state: &DecisionState<'_>,
) {
    if limits.is_empty() {
        return;
    }
    if let Decision::Banned { .. } = decision {
        record.reason = Some(Reason::Banned);
    }
    if record.has_details() {
        record_details(record, limits, begun, decision, state);
    }
}

/// For the access log and for spans. Not inline, because a request without both would save the registers of this function.
#[inline(never)]
fn record_details(
    record: &mut RequestRecord,
    limits: &RouteLimits,
    begun: Option<Time>,
    decision: Decision,
    state: &DecisionState<'_>,
) {
    let metrics = |place: usize| Some(&limits.get(place)?.metrics);
    let over = [&state.shadowed, &state.overflowed];
    let over = over.map(|places| places.iter().filter_map(|place| metrics(*place)));
    record.decided(state.held_since, over, remaining(limits, &state.outcomes));
    let refused_by = refusing(decision, state).and_then(metrics);
    record.refused_by(refused_by);
    if let (Some(begun), Some(spans)) = (begun, record.spans()) {
        span(spans, limits, begun, decision, refused_by, state);
    }
}

fn remaining<'r>(
    limits: &'r RouteLimits,
    outcomes: &[LimitOutcome<'_>],
) -> impl Iterator<Item = (&'r Arc<LimitMetrics>, u64)> {
    outcomes.iter().filter_map(|outcome| {
        let metrics = &limits.get(outcome.place)?.metrics;
        Some((metrics, outcome.verdict.remaining()?))
    })
}

#[cold]
fn span(
    spans: &RequestSpans,
    limits: &RouteLimits,
    begun: Time,
    decision: Decision,
    refused_by: Option<&Arc<LimitMetrics>>,
    state: &DecisionState<'_>,
) {
    spans.decided(DecisionDetails {
        begun,
        ended: clock::now(),
        limits: limits.iter().map(|limit| limit.metrics.name.clone()).collect(),
        decision: name(decision),
        refused_by: refused_by.map(|limit| limit.name.as_str()),
        exchanges: &state.exchanges,
        store: state.reservations.store.name(),
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
    limits: &RouteLimits,
    input: &DecisionInput<'_, '_>,
    decision: Decision,
    state: &mut DecisionState<'_>,
    mut answer: LocalResponse,
) -> LocalResponse {
    self::record(record, limits, input.traced_since, decision, state);
    let status = answer.status();
    settle(limits, CostKnown::FromResponse, status, answer.headers_mut(), state, clock::now);
    answer
}

/// Charges the cost that a response states, and adds the headers about limits. `now` returns the arrival of the response.
pub fn settle(
    limits: &RouteLimits,
    cost: CostKnown,
    status: StatusCode,
    headers: &mut HeaderMap,
    state: &mut DecisionState<'_>,
    now: impl Fn() -> Time,
) {
    charge(cost, status, headers, state, &now);
    if !state.outcomes.is_empty() || !state.shadowed.is_empty() {
        limits.headers.add_headers(headers, &state.outcomes, &state.shadowed, now());
    }
}

fn charge(
    cost: CostKnown,
    status: StatusCode,
    headers: &HeaderMap,
    state: &mut DecisionState<'_>,
    now: impl Fn() -> Time,
) {
    // What is not settled here is settled when the state is dropped, as if the client had left.
    if cost != CostKnown::Never {
        let is_known = |charged: &Cost| cost == CostKnown::FromResponse || !matches!(charged, Cost::Tokens(_));
        let cost_of = |charged: &Cost| decide::response_cost(charged, status, headers).filter(|_| is_known(charged));
        state.reservations.settle(cost_of, &mut state.outcomes, now);
    }
}

/// The answer to a request that is refused before its limits are asked. Records the reason.
pub(super) fn refused(why: &Rejection, record: &mut RequestRecord) -> LocalResponse {
    record.reason = why.reason.or(record.reason);
    respond::refused(why)
}

pub(super) fn outcome_of(decision: Decision, limits: &RouteLimits) -> Outcome {
    match decision {
        Decision::Banned { place, .. } if respond_to_banned(limits, place) != BanResponse::Reject => Outcome::Blocked,
        Decision::Rejected | Decision::TooCostly { .. } | Decision::Banned { .. } => Outcome::Limited,
        Decision::Silenced(_) => Outcome::Silenced,
        Decision::Blocked(_) => Outcome::Blocked,
        Decision::NoKey(_) => Outcome::Refused,
        Decision::Admitted | Decision::Unknown => Outcome::Unavailable,
    }
}

pub(super) fn respond_to_banned(limits: &RouteLimits, place: usize) -> BanResponse {
    let rule = limits.get(place).and_then(|route_limit| route_limit.ban.as_ref());
    rule.map_or(BanResponse::Reject, |rule| rule.respond)
}

pub(super) fn refusing(decision: Decision, state: &DecisionState<'_>) -> Option<usize> {
    match decision {
        Decision::Rejected => decide::longest_refusal(&state.outcomes).map(|outcome| outcome.place),
        Decision::Silenced(place)
        | Decision::Blocked(place)
        | Decision::NoKey(place)
        | Decision::Banned { place, .. }
        | Decision::TooCostly { place, .. } => Some(place),
        Decision::Admitted | Decision::Unknown => None,
    }
}

/// The data of a request whose response is metered; `None` if no limit of its route counts tokens.
pub(super) fn metered_request(
    route: &CompiledRoute,
    attributes: &RequestAttributes<'_>,
    hides_usage: bool,
) -> Option<MeteredRequest> {
    let body = attributes.body.filter(|_| route.inspector.as_ref().is_some_and(|one| one.usage.is_some()))?;
    let (input, model) = (body.most_input(), body.model().map(Into::into));
    let (size, output) = (body.said.input, body.said.output);
    Some(MeteredRequest { input, size, output, model, hides_usage, is_error: false })
}

/// The meter of the response, to which the reservations of the request go. If no response tells the cost, they stay charged.
pub(super) fn meter(
    gateway: &WorkerSnapshot,
    route: &CompiledRoute,
    limits: &RouteLimits,
    request: Option<Box<MeteredRequest>>,
    cost: CostKnown,
    state: &mut DecisionState<'_>,
    response: &mut Response<ObservedBody>,
) -> Option<Box<TokenMeter>> {
    let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let usage = route.inspector.as_ref().and_then(|inspector| inspector.usage.as_ref());
    let (mut request, usage) = request.zip(usage).filter(|_| cost != CostKnown::Never && !is_tunnel)?;
    request.is_error = response.status().as_u16() >= 400;
    let metered = state.reservations.open().into_iter().filter_map(|PendingReservation { costs, known, reserved }| {
        let users = || {
            costs.iter().filter_map(|(place, cost, _)| match cost {
                Cost::Tokens(cost) => Some((limits.get(*place)?, cost)),
                _ => None,
            })
        };
        let cuts = |(limit, cost): (&RouteLimit, &Arc<TokenCost>)| {
            cost.on_exhausted == OnExhausted::Cut && limit.on_limit.role() == Role::Refuses
        };
        Some(MeteredLimit {
            costs: users().map(|(_, cost)| cost.clone()).collect(),
            tokens: users().map(|(_, cost)| request.reserves(cost)).max_by_key(|usage| usage.output)?,
            weights: users().map(|(_, cost)| cost.weights(request.model.as_deref())).collect(),
            least: known,
            metrics: users().next()?.0.metrics.clone(),
            open: OpenReservation::new(reserved, if users().any(cuts) { Beyond::Refused } else { Beyond::Settled }),
        })
    });
    let metered: SmallVec<_> = metered.collect();
    let worker = state.reservations.worker;
    let headers = response.headers_mut();
    (!metered.is_empty())
        .then(|| Box::new(TokenMeter::new(gateway.store.clone(), worker, metered, *request, usage, headers)))
}

/// The answer instead of a response for whose bytes there is no room; `None` if it passes. The charges for what the upstream
/// has done stay, and other limits are charged what the response says.
pub(super) async fn without_room(
    connection: &ConnectionContext,
    gateway: &WorkerSnapshot,
    limits: &RouteLimits,
    cost: CostKnown,
    response: &Response<ObservedBody>,
    state: &mut DecisionState<'_>,
    record: &mut RequestRecord,
) -> Option<(Outcome, Rc<LocalResponse>)> {
    let meter = record.byte_meter()?.clone();
    let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let size = response.body().upstreams().filter(|_| !is_tunnel);
    let decision = meter.decide(&gateway.store, limits, size, state).await;
    charge(cost, response.status(), response.headers(), state, clock::now);
    let (told, last) = (&limits.headers, &mut connection.refusal_cache.borrow_mut());
    let answer = match decision {
        Decision::Rejected => told.reject(&state.outcomes, clock::now(), last),
        Decision::Silenced(place) => told.silence(place).into(),
        Decision::Unknown if gateway.on_error == OnError::Reject => told.unknown().into(),
        _ => return None,
    };
    let refusing = refusing(decision, state).and_then(|place| limits.get(place));
    record.refused_by(refusing.map(|limit| &limit.metrics));
    Some((outcome_of(decision, limits), answer))
}

/// The response to a request that its limits do not admit. `now` is when they were asked.
#[expect(clippy::inline_always, reason = "every refusal does this")]
#[inline(always)]
pub fn refuse(
    limits: &RouteLimits,
    decision: Decision,
    state: &mut DecisionState<'_>,
    attributes: &RequestAttributes<'_>,
    now: Time,
    last: &mut RefusalCache,
) -> Rc<LocalResponse> {
    let (told, now) = (&limits.headers, state.now(now));
    let answer = match decision {
        Decision::Rejected => told.reject(&state.outcomes, now, last),
        Decision::Silenced(place) => told.silence(place).into(),
        Decision::TooCostly { place, most } => {
            let of_descriptor = attributes.descriptors.get(place).map(|descriptor| descriptor.hits.to_string());
            let stated = |limit: &RouteLimit| decide::stated_cost(&limit.cost, attributes.headers, attributes.body);
            let cost = of_descriptor.or_else(|| limits.get(place).map(stated));
            told.too_costly(place, &cost.unwrap_or_default(), most).into()
        }
        Decision::Blocked(place) => told.blocked(place).into(),
        Decision::Banned { place, until, .. } => told.banned(place, until, &state.outcomes, now, last),
        Decision::NoKey(place) => told.keyless(place).into(),
        Decision::Admitted | Decision::Unknown => told.unknown().into(),
    };
    // The charge of a request whose token proved invalid stays, as the response says.
    let cost_of = |charged: &Cost| decide::response_cost(charged, answer.status(), answer.headers());
    state.reservations.settle(cost_of, &mut [], clock::now);
    answer
}
