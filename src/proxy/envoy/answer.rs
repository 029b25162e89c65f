//! Answers a call: with the deciding rate for each descriptor, and the headers and body for the client.

use bytes::Bytes;
use http::{Response, header};
use http_body_util::Full;

use super::question::Question;
use crate::base::clock::Time;
use crate::base::http::request_id::REQUEST_ID;
use crate::limit::{Rate, Strategy, Unit as CalendarUnit};
use crate::request::decide::{DecisionState, LimitOutcome, LimitVerdict, binding};
use crate::request::descriptors::messages::{
    Code, DescriptorStatus, Duration, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse, Unit,
};

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
pub(super) fn decided(
    question: &Question<'_>,
    passes: bool,
    refusing: Option<usize>,
    state: &DecisionState<'_>,
    now: Time,
    told: Response<Full<Bytes>>,
) -> RateLimitResponse {
    let of_descriptor = |places: &smallvec::SmallVec<[usize; 2]>| {
        let outcomes = || state.outcomes.iter().filter(|outcome| places.contains(&outcome.place));
        let is_over = outcomes().any(|outcome| !outcome.verdict.admitted());
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
        LimitVerdict::Rates(verdict) => Some((outcome, outcome.limit.rates().get(verdict.rate)?)),
        LimitVerdict::InFlight { .. } | LimitVerdict::Banned { .. } | LimitVerdict::Unknown => None,
    });
    let verdict = outcome.map(|outcome| outcome.verdict);
    let remaining = verdict.and_then(|verdict| verdict.remaining()).unwrap_or_default();
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: rate.map(|(outcome, rate)| RateLimit {
            requests_per_unit: u32::try_from(rate.quota()).unwrap_or(u32::MAX),
            unit: unit(rate).into(),
            name: outcome.limit.name().to_owned(),
        }),
        limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        duration_until_reset: outcome.and_then(LimitOutcome::until).map(|until| duration(until.micros_since(now))),
    }
}

/// The unit of a rate, if the protocol has a name for its window.
fn unit(rate: &Rate) -> Unit {
    if let Strategy::Calendar(calendar) = rate.strategy() {
        return match calendar.unit() {
            CalendarUnit::Day => Unit::Day,
            CalendarUnit::Month => Unit::Month,
        };
    }
    match rate.window().as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        _ => Unit::Unknown,
    }
}

fn duration(micros: u64) -> Duration {
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros * 1_000).unwrap_or_default(),
    }
}
