//! The policies of a limit as clients see them: each rate under a name, with the texts that are the same every time.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use sfv::{Integer, ItemSerializer, KeyRef, ListSerializer, StringRef};

use super::document;
use crate::clock::micros;
use crate::interned::interned;
use crate::limit::{Limit, Rate, Strategy, Unit};

/// The problem type of the draft, section "Quota Exceeded".
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// All policies of a limit: its rates, then the number of requests under way, if that is limited.
#[derive(Debug)]
pub(super) struct Policies {
    /// The items of RateLimit-Policy.
    pub(super) line: Option<HeaderValue>,
    pub(super) each: Vec<Policy>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Policy {
    /// Its item of RateLimit up to the number of requests that remain: `"name";r=`.
    pub(super) state: String,
    /// The most that may remain.
    pub(super) quota: u64,
    /// The problem of a request that it refuses.
    pub(super) document: Bytes,
}

/// What is limited, in the terms of the draft.
struct Terms {
    name: String,
    quota: u64,
    /// Seconds of the window.
    window: Option<u64>,
    /// What is counted, if not requests.
    unit: Option<&'static StringRef>,
    detail: String,
}

impl Policies {
    /// The policies of these rates, and of `max_in_flight` requests at the same moment; refusals have this status.
    pub(super) fn new(limit: &Limit, max_in_flight: Option<u64>, status: StatusCode) -> Self {
        let alone = limit.rates().len() + usize::from(max_in_flight.is_some()) == 1;
        // One name for each policy: a limit of several needs more than its own.
        let name = |suffix: &str| if alone { limit.name().to_owned() } else { format!("{}-{suffix}", limit.name()) };
        let mut terms: Vec<Terms> =
            limit.rates().iter().map(|rate| of_rate(limit, rate, name(&rate.period()))).collect();
        terms.extend(max_in_flight.map(|most| Terms {
            name: name("concurrency"),
            quota: most,
            window: None,
            unit: Some(StringRef::constant("concurrent-requests")),
            detail: format!("The limit \"{}\" allows {most} requests under way, and that many are.", limit.name()),
        }));
        let mut list = ListSerializer::new();
        let each = terms.into_iter().map(|terms| {
            // The configuration admits names of printable ASCII only, which are all structured strings.
            let name = sfv::String::from_string(terms.name).unwrap_or_else(|_| StringRef::constant("limit").to_owned());
            let item = list.bare_item(&name).parameter(KeyRef::constant("q"), integer(terms.quota));
            match (terms.window, terms.unit) {
                (Some(window), _) => _ = item.parameter(KeyRef::constant("w"), integer(window)),
                (None, Some(unit)) => _ = item.parameter(KeyRef::constant("qu"), unit),
                (None, None) => {}
            }
            let state = ItemSerializer::new().bare_item(&name).parameter(KeyRef::constant("r"), 0).finish();
            let state = state.trim_end_matches('0').to_owned();
            let document = interned(&document(status, QUOTA_EXCEEDED, &terms.detail, &[name.as_str()]));
            Policy { state, quota: terms.quota, document }
        });
        let each = each.collect();
        let line = list.finish().and_then(|line| HeaderValue::from_maybe_shared(interned(line.as_bytes())).ok());
        Self { line, each }
    }
}

fn of_rate(limit: &Limit, rate: &Rate, name: String) -> Terms {
    let window = match rate.strategy() {
        // Months differ in length.
        Strategy::Calendar(calendar) if calendar.unit() == Unit::Month => None,
        Strategy::Bucket { .. } => Some(rate.memory()),
        _ => Some(micros(rate.window())),
    };
    let detail = format!("The limit \"{}\" allows {rate}, and that is used up for now.", limit.name());
    let window = window.map(|micros| micros.div_ceil(1_000_000));
    Terms { name, quota: rate.capacity(), window, unit: None, detail }
}

/// Quotas and windows are far below the largest structured integer, 10^15 - 1.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}
