//! The descriptors of a call: which limits they ask about, with which costs; and the answer to the call, with the deciding
//! rate for each descriptor, and the headers and the body for the client.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, header};
use http_body_util::Full;
use smallvec::SmallVec;

use crate::base::clock::Time;
use crate::base::http::request_id::REQUEST_ID;
use crate::proxy::worker_snapshot::{AskedLimit, Combination, WorkerSnapshot};
use crate::request::decide::{DecisionState, KeyCounter, LimitOutcome, LimitVerdict, RouteLimit, binding};
use crate::request::descriptors::Descriptor;
use crate::request::descriptors::messages::{
    Code, DescriptorStatus, Duration, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse, Unit,
};
use crate::request::identify::{KeyCache, RequestAttributes};

/// The limits and costs that one call asks about. A place is the index of a limit.
pub(super) struct Question<'c> {
    pub(super) limits: Combination,
    /// By place.
    pub(super) descriptors: SmallVec<[Descriptor<'c>; 4]>,
    /// The places for each descriptor of the call.
    pub(super) places: Vec<SmallVec<[usize; 2]>>,
    /// By place: the counter that the limit is asked for, needed if one limit is asked several times.
    counters: SmallVec<[Option<KeyCounter>; 4]>,
}

impl<'c> Question<'c> {
    /// Finds the limits of each descriptor. If several descriptors have the same counter, it is asked once for their total
    /// cost: otherwise each of them would fit although all together do not.
    pub(super) fn new(
        gateway: &WorkerSnapshot,
        call: &'c RateLimitRequest,
        attributes: &RequestAttributes<'c>,
    ) -> Self {
        let (limits, descriptors, counters) = (Combination::new(), SmallVec::new(), SmallVec::new());
        let mut question = Self { limits, descriptors, places: Vec::new(), counters };
        for descriptor in &call.descriptors {
            let rule = gateway.descriptors.find(&call.domain, descriptor);
            let (sent, descriptor) = (descriptor.limit, gateway.descriptors.read(rule, call, descriptor));
            let only_tells = descriptor.only_tells();
            let limits = rule.and_then(|rule| Some((rule, gateway.rule(rule)?.limits.len())));
            let asked = |(rule, count)| (0..count).map(move |at| AskedLimit { rule, at, only_tells, sent });
            let places = limits.into_iter().flat_map(asked);
            let places = places.filter_map(|limit| question.add(gateway, limit, descriptor, attributes)).collect();
            question.places.push(places);
        }
        question
    }

    fn add(
        &mut self,
        gateway: &WorkerSnapshot,
        limit: AskedLimit,
        descriptor: Descriptor<'c>,
        attributes: &RequestAttributes<'_>,
    ) -> Option<usize> {
        let of = |asked: AskedLimit| gateway.rule(asked.rule)?.limits.get(asked.at);
        let route_limit = of(limit)?;
        let mut counter = None;
        for place in 0..self.limits.len() {
            let Some(other) = of(self.limits[place]) else { continue };
            if !Arc::ptr_eq(&other.metrics, &route_limit.metrics) {
                continue;
            }
            let own = *counter.get_or_insert_with(|| counter_id(route_limit, &descriptor, attributes));
            let its = &self.descriptors[place];
            let kind = |of: &Descriptor<'_>| (of.is_report, of.gives_back, of.is_quota);
            if kind(its) != kind(&descriptor) || self.limits[place].sent != limit.sent {
                continue;
            }
            if *self.counters[place].get_or_insert_with(|| counter_id(other, its, attributes)) == own {
                let hits = &mut self.descriptors[place].hits;
                *hits = hits.saturating_add(descriptor.hits);
                return Some(place);
            }
        }
        self.limits.push(limit);
        self.descriptors.push(descriptor);
        self.counters.push(counter);
        Some(self.limits.len() - 1)
    }
}

fn counter_id(limit: &RouteLimit, descriptor: &Descriptor<'_>, attributes: &RequestAttributes<'_>) -> KeyCounter {
    let attributes = RequestAttributes { descriptors: std::slice::from_ref(descriptor), ..*attributes };
    limit.counter(&attributes, &mut KeyCache::default())
}

pub(super) fn unlimited(call: &RateLimitRequest) -> RateLimitResponse {
    let statuses = call
        .descriptors
        .iter()
        .map(|_| DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() })
        .collect();
    RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..RateLimitResponse::default() }
}

/// The answer to a call that a client has made too large.
pub(super) fn too_large() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::OverLimit.into(), ..RateLimitResponse::default() }
}

/// The answer to a call after its decision. `refusing` is the place of a limit that refuses it. `told` is the response that a
/// client would get from the gateway.
pub(super) fn answer(
    question: &Question<'_>,
    passes: bool,
    refusing: Option<usize>,
    state: &DecisionState<'_>,
    now: Time,
    told: Response<Full<Bytes>>,
) -> RateLimitResponse {
    let of_descriptor = |places: &SmallVec<[usize; 2]>| {
        let outcomes = || state.outcomes.iter().filter(|outcome| places.contains(&outcome.place));
        let is_told = |place: &usize| question.descriptors.get(*place).is_some_and(|descriptor| descriptor.is_quota);
        let is_over = outcomes().any(|outcome| !outcome.verdict.admitted())
            || state.shadowed.iter().any(|place| places.contains(place) && is_told(place));
        status(binding(outcomes()), is_over || refusing.is_some_and(|place| places.contains(&place)), now)
    };
    let (head, body) = told.into_parts();
    let is_told = |name: &&header::HeaderName| **name != REQUEST_ID && **name != header::CONTENT_LENGTH;
    let names = head.headers.keys().filter(is_told);
    let lines = names.flat_map(|name| head.headers.get_all(name).iter().map(move |value| (name, value)));
    let line = |(name, value): (&header::HeaderName, &http::HeaderValue)| HeaderValue {
        key: name.as_str().to_owned(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
    };
    RateLimitResponse {
        overall_code: if passes { Code::Ok } else { Code::OverLimit }.into(),
        statuses: question.places.iter().map(of_descriptor).collect(),
        response_headers_to_add: lines.map(line).collect(),
        raw_body: body.into_inner().unwrap_or_default(),
    }
}

fn status(outcome: Option<&LimitOutcome<'_>>, is_over: bool, now: Time) -> DescriptorStatus {
    let rate = outcome.and_then(|outcome| match outcome.verdict {
        LimitVerdict::Rates(verdict) => Some((outcome, outcome.limit.deciding_rate(&verdict)?)),
        LimitVerdict::InFlight { .. } | LimitVerdict::Banned { .. } | LimitVerdict::Unknown => None,
    });
    let verdict = outcome.map(|outcome| outcome.verdict);
    let remaining = verdict.and_then(|verdict| verdict.remaining()).unwrap_or_default();
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: rate.map(|(outcome, rate)| RateLimit {
            requests_per_unit: u32::try_from(rate.quota()).unwrap_or(u32::MAX),
            unit: Unit::of(rate).into(),
            name: outcome.limit.name().to_owned(),
        }),
        limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        duration_until_reset: outcome.and_then(LimitOutcome::until).map(|until| duration(until.micros_since(now))),
    }
}

fn duration(micros: u64) -> Duration {
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros * 1_000).unwrap_or_default(),
    }
}
