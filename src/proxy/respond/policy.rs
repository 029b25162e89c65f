//! The policies of a limit as clients see them. Each has a name, and texts that are composed once and reused.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use sfv::{Integer, ItemSerializer, KeyRef, ListSerializer, StringRef};

use super::Problem;
use crate::base::clock::micros;
use crate::base::units::spelled_size;
use crate::limit::{Limit, Rate, Strategy, Unit};
use crate::request::decide::LimitVerdict;

/// The problem type of the draft, section "Quota Exceeded".
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// A parameter of this gateway, with a vendor's prefix as the draft requires: how many requests may come at once.
const BURST: &KeyRef = KeyRef::constant("gateway-burst");
const SECOND: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Policies {
    /// The items of RateLimit-Policy.
    pub(super) line: Option<HeaderValue>,
    rates: Vec<Policy>,
    in_flight: Option<Policy>,
}

#[derive(Clone, Debug)]
pub(super) struct Policy {
    /// Its item of RateLimit up to the number of remaining requests: `"name";r=`.
    pub(super) state: String,
    pub(super) capacity: u64,
    /// Writes an amount in the unit of the rate.
    amount: fn(u64) -> String,
    /// Whether an empty bucket is full again within a second. Then whole seconds cannot express when the next request may
    /// come: a client that waits a second after each request would stay far below the rate.
    pub(super) fills_within_a_second: bool,
    name: String,
    /// The beginning of the sentence in a refusal.
    allows: String,
    /// The end of that sentence if nothing remains.
    used_up: String,
    status: StatusCode,
    /// The problem document of a refusal if nothing remains.
    used_up_document: Bytes,
}

impl Policies {
    /// `unit` is what the rates count, if not requests; `status` is that of refusals.
    pub(super) fn new(
        limit: &Limit,
        unit: Option<&'static StringRef>,
        max_in_flight: Option<u64>,
        status: StatusCode,
    ) -> Self {
        let told = limit.rates().iter().filter(|rate| !rate.is_unlimited()).count();
        let alone = told + usize::from(max_in_flight.is_some()) == 1;
        // Policies need different names, so each name of a limit with several has a suffix.
        let name = |suffix: &str| {
            let name = if alone { limit.name().to_owned() } else { format!("{}-{suffix}", limit.name()) };
            // The configuration accepts only names of printable ASCII, all of which are structured strings.
            sfv::String::from_string(name).unwrap_or_else(|_| StringRef::constant("limit").to_owned())
        };
        let mut list = ListSerializer::new();
        let of_rate = |rate: &Rate| {
            let (name, quota, burst) = (name(&rate.period()), rate.quota(), rate.capacity());
            if !rate.is_unlimited() {
                let burst = Some(burst).filter(|burst| *burst != quota);
                tell(&mut list, &name, quota, window(rate), unit, burst);
            }
            let policy = Policy {
                amount: if rate.is_in_bytes() { spelled_size } else { |amount| amount.to_string() },
                fills_within_a_second: matches!(rate.strategy(), Strategy::TokenBucket { .. })
                    && rate.memory() < SECOND,
                allows: format!("The limit \"{}\" allows {rate}", limit.name()),
                used_up: "and that is used up for now".to_owned(),
                ..Policy::new(&name, burst, status)
            };
            policy.documented()
        };
        let rates = limit.rates().iter().map(of_rate).collect();
        let in_flight = max_in_flight.map(|most| {
            let name = name("concurrency");
            tell(&mut list, &name, most, None, Some(StringRef::constant("concurrent-requests")), None);
            let requests = if most == 1 { "request" } else { "requests" };
            let policy = Policy {
                allows: format!("The limit \"{}\" allows {most} {requests} at the same time", limit.name()),
                used_up: format!("and {most} {} in flight", is_or_are(most)),
                ..Policy::new(&name, most, status)
            };
            policy.documented()
        });
        let line =
            list.finish().and_then(|line| HeaderValue::from_maybe_shared(Bytes::copy_from_slice(line.as_bytes())).ok());
        Self { line, rates, in_flight }
    }

    pub(super) fn of(&self, verdict: &LimitVerdict) -> Option<&Policy> {
        match verdict {
            LimitVerdict::Rates(verdict) => self.rates.get(usize::from(verdict.rate)),
            LimitVerdict::InFlight { .. } => self.in_flight.as_ref(),
            // A banned key has nothing left in any policy.
            LimitVerdict::Banned { .. } => self.rates.first().or(self.in_flight.as_ref()),
            LimitVerdict::Unknown => None,
        }
    }
}

impl Policy {
    /// Without texts of refusals.
    fn new(name: &StringRef, capacity: u64, status: StatusCode) -> Self {
        let state = ItemSerializer::new().bare_item(name).parameter(KeyRef::constant("r"), 0).finish();
        Self {
            state: state.trim_end_matches('0').to_owned(),
            capacity,
            amount: |amount| amount.to_string(),
            fills_within_a_second: false,
            name: name.as_str().to_owned(),
            allows: String::new(),
            used_up: String::new(),
            status,
            used_up_document: Bytes::new(),
        }
    }

    fn documented(self) -> Self {
        let used_up_document = Bytes::copy_from_slice(&self.document(&self.detail(0, 1)));
        Self { used_up_document, ..self }
    }

    /// The item of RateLimit: what remains, in how many seconds there is more, and the partition key in base64.
    pub(super) fn state(&self, remaining: u64, wait: Option<u64>, partition_key: Option<String>) -> String {
        // A structured integer is written as its digits, so all is appended to the text that never changes.
        let (mut left, mut digits) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (between, wait) = wait.map_or(("", ""), |wait| (";t=", digits.format(wait)));
        let parts = [&*self.state, left.format(remaining), between, wait];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let of_key = partition_key.as_ref().map_or(0, |key| key.len() + 6);
        // Exact, so the text becomes a header value without another copy.
        let mut line = String::with_capacity(length + of_key);
        parts.iter().for_each(|part| line.push_str(part));
        if let Some(key) = partition_key {
            line.extend([";pk=:", &key, ":"]);
        }
        line
    }

    pub(super) fn refusal(&self, remaining: u64, need: u64) -> Bytes {
        if remaining == 0 { self.used_up_document.clone() } else { self.document(&self.detail(remaining, need)) }
    }

    pub(super) fn detail(&self, remaining: u64, need: u64) -> String {
        if remaining == 0 {
            return format!("{}, {}.", self.allows, self.used_up);
        }
        let are = is_or_are(remaining);
        let (remaining, need) = ((self.amount)(remaining), (self.amount)(need));
        format!("{}, of which {remaining} {are} left, and this request costs {need}.", self.allows)
    }

    fn document(&self, detail: &str) -> Bytes {
        Problem { violated: &[&self.name], ..Problem::<()>::new(self.status, QUOTA_EXCEEDED, detail) }.write()
    }
}

/// Adds the item of a policy in the draft's terms. Without a `unit`, requests are counted.
fn tell(
    list: &mut ListSerializer<String>,
    name: &StringRef,
    quota: u64,
    window: Option<u64>,
    unit: Option<&'static StringRef>,
    burst: Option<u64>,
) {
    let item = list.bare_item(name).parameter(KeyRef::constant("q"), integer(quota));
    let item = item.parameters(window.map(|window| (KeyRef::constant("w"), integer(window))));
    let item = item.parameters(unit.map(|unit| (KeyRef::constant("qu"), unit)));
    _ = item.parameters(burst.map(|burst| (BURST, integer(burst))));
}

/// In seconds. `None` for months, whose lengths differ.
fn window(rate: &Rate) -> Option<u64> {
    let is_month = matches!(rate.strategy(), Strategy::Calendar(calendar) if calendar.unit() == Unit::Month);
    (!is_month).then(|| micros(rate.window()).div_ceil(SECOND))
}

fn is_or_are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Quotas and windows are far below the largest structured integer, 10^15 - 1.
fn integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}
