//! Begins to meter the tokens of a response, if limits of its route count them.

use std::sync::Arc;

use http::{Response, StatusCode};
use smallvec::SmallVec;

use super::WorkerSnapshot;
use super::token_meter::{MeteredLimit, MeteredRequest, TokenMeter};
use crate::config::{OnExhausted, Role, TokenCost};
use crate::proxy::snapshot::CompiledRoute;
use crate::proxy::telemetry::{ObservedBody, RequestRecord};
use crate::request::decide::{CostKnown, DecisionState, RouteLimit, SettledByBody, estimated_input};
use crate::request::identify::RequestAttributes;

/// The data of a request whose response is metered; `None` if no limit of its route counts tokens.
pub(super) fn request(
    route: &CompiledRoute,
    attributes: &RequestAttributes<'_>,
    hides_usage: bool,
) -> Option<MeteredRequest> {
    let body = attributes.body.filter(|_| route.inspector.as_ref().is_some_and(|one| one.usage.is_some()))?;
    let (input, model) = (estimated_input(attributes.body), body.model().map(Into::into));
    Some(MeteredRequest { input, model, hides_usage, is_error: false })
}

/// Gives the reservations of the request to the meter of its response. If no response tells the cost, they stay charged.
pub(super) fn begin(
    gateway: &WorkerSnapshot,
    route: &CompiledRoute,
    request: Option<Box<MeteredRequest>>,
    cost: CostKnown,
    state: &mut DecisionState<'_>,
    record: &mut RequestRecord,
    response: &mut Response<ObservedBody>,
) {
    let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let usage = route.inspector.as_ref().and_then(|inspector| inspector.usage.as_ref());
    let Some((mut request, usage)) = request.zip(usage).filter(|_| cost != CostKnown::Never && !is_tunnel) else {
        return;
    };
    request.is_error = response.status().as_u16() >= 400;
    let limits = state.reservations.open().filter_map(|SettledByBody { costs, least, reserved }| {
        let limits = || costs.iter().filter_map(|(place, cost)| Some((route.limits.get(*place)?, *cost)));
        let cuts = |(limit, cost): (&RouteLimit, &Arc<TokenCost>)| {
            cost.on_exhausted == OnExhausted::Cut && limit.on_limit.role() == Role::Refuses
        };
        Some(MeteredLimit {
            costs: limits().map(|(_, cost)| cost.clone()).collect(),
            weights: limits().map(|(_, cost)| cost.weights(request.model.as_deref())).collect(),
            least,
            cuts: limits().any(cuts),
            metrics: limits().next()?.0.metrics.clone(),
            reserved: SmallVec::from_iter([reserved]),
        })
    });
    let limits: SmallVec<_> = limits.collect();
    if !limits.is_empty() {
        let worker = state.reservations.worker();
        record.meter(TokenMeter::new(gateway.store.clone(), worker, limits, *request, usage, response.headers_mut()));
    }
}
