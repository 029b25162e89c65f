//! The policies of a limit as clients see them: each rate under a name, with the texts that are the same every time.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use sfv::{Integer, ItemSerializer, KeyRef, ListSerializer, StringRef};

use super::document;
use crate::clock::micros;
use crate::limit::{Limit, Rate, Strategy, Unit};

/// The problem type of the draft, section "Quota Exceeded".
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Ours, and told by a vendor's prefix as the draft wants it: how many requests may come at once.
const BURST: &KeyRef = KeyRef::constant("gateway-burst");
const SECOND: u64 = 1_000_000;

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
    pub(super) capacity: u64,
    /// Whether less than a second fills it. Whole seconds cannot say then when there is more: who waited for one after
    /// each request would stay far below the rate, which the policy tells.
    pub(super) fills_within_a_second: bool,
    name: String,
    /// What it allows, as the beginning of a sentence.
    allows: String,
    status: StatusCode,
    /// The problem of a request that it refuses because nothing is left.
    used_up: Bytes,
}

/// What is limited, in the terms of the draft.
struct Terms {
    name: String,
    quota: u64,
    /// Seconds of the window.
    window: Option<u64>,
    /// How many requests may come at once, where that is not the quota.
    burst: Option<u64>,
    /// What is counted, if not requests.
    unit: Option<&'static StringRef>,
    fills_within_a_second: bool,
    /// What is allowed, as the beginning of a sentence.
    allows: String,
    /// How that sentence ends where nothing is left.
    used_up: String,
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
            burst: None,
            unit: Some(StringRef::constant("concurrent-requests")),
            fills_within_a_second: false,
            allows: format!(
                "The limit \"{}\" allows {most} {} at the same time",
                limit.name(),
                if most == 1 { "request" } else { "requests" }
            ),
            used_up: format!("and {most} {} under way", is_or_are(most)),
        }));
        let mut list = ListSerializer::new();
        let each = terms.into_iter().map(|terms| {
            // The configuration admits names of printable ASCII only, which are all structured strings.
            let name = sfv::String::from_string(terms.name).unwrap_or_else(|_| StringRef::constant("limit").to_owned());
            let mut item = list.bare_item(&name).parameter(KeyRef::constant("q"), integer(terms.quota));
            if let Some(window) = terms.window {
                item = item.parameter(KeyRef::constant("w"), integer(window));
            }
            if let Some(unit) = terms.unit {
                item = item.parameter(KeyRef::constant("qu"), unit);
            }
            if let Some(burst) = terms.burst {
                _ = item.parameter(BURST, integer(burst));
            }
            let state = ItemSerializer::new().bare_item(&name).parameter(KeyRef::constant("r"), 0).finish();
            let detail = format!("{}, {}.", terms.allows, terms.used_up);
            Policy {
                state: state.trim_end_matches('0').to_owned(),
                capacity: terms.burst.unwrap_or(terms.quota),
                fills_within_a_second: terms.fills_within_a_second,
                used_up: Bytes::copy_from_slice(&document(status, QUOTA_EXCEEDED, &detail, &[name.as_str()])),
                name: name.as_str().to_owned(),
                allows: terms.allows,
                status,
            }
        });
        let each = each.collect();
        let line =
            list.finish().and_then(|line| HeaderValue::from_maybe_shared(Bytes::copy_from_slice(line.as_bytes())).ok());
        Self { line, each }
    }
}

impl Policy {
    /// The problem of a request that it refuses: it needs room for `need` where there is only room for `remaining`.
    pub(super) fn refusal(&self, remaining: u64, need: u64) -> Bytes {
        if remaining == 0 {
            return self.used_up.clone();
        }
        let are = is_or_are(remaining);
        let detail = format!("{}, of which {remaining} {are} left, and this request costs {need}.", self.allows);
        document(self.status, QUOTA_EXCEEDED, &detail, &[&self.name])
    }
}

fn of_rate(limit: &Limit, rate: &Rate, name: String) -> Terms {
    let window = match rate.strategy() {
        // Months differ in length.
        Strategy::Calendar(calendar) if calendar.unit() == Unit::Month => None,
        _ => Some(micros(rate.window()).div_ceil(SECOND)),
    };
    Terms {
        name,
        quota: rate.quota(),
        window,
        burst: Some(rate.capacity()).filter(|burst| *burst != rate.quota()),
        unit: None,
        fills_within_a_second: matches!(rate.strategy(), Strategy::Bucket { .. }) && rate.memory() < SECOND,
        allows: format!("The limit \"{}\" allows {rate}", limit.name()),
        used_up: "and that is used up for now".to_owned(),
    }
}

fn is_or_are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Quotas and windows are far below the largest structured integer, 10^15 - 1.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}
