//! What requests cost: known before they are decided, or only from the response.

use http::{HeaderMap, HeaderName, StatusCode};

use super::LimitOutcome;
use crate::clock;
use crate::config::Cost;
use crate::limit::MAX_QUOTA;
use crate::store::{Ask, Reserved, Store};

/// What a request is charged when it is decided: what it costs, or what is reserved until that is known.
fn price(cost: &Cost, headers: &HeaderMap) -> u64 {
    match cost {
        Cost::Fixed(amount) | Cost::OnStatus(amount, _) => *amount,
        // Who could say 0 would pass uncounted.
        Cost::RequestHeader(name) => said(headers, name).unwrap_or(1).max(1),
        Cost::ResponseHeader { reserve, .. } => *reserve,
    }
}

/// The same by a limit that allows `most` at once.
pub(super) fn price_within(cost: &Cost, most: u64, headers: &HeaderMap) -> u64 {
    let price = price(cost, headers);
    match cost {
        // A tier or an override may allow less than the rates that the reservation is meant for.
        Cost::ResponseHeader { .. } => price.min(most),
        _ => price,
    }
}

/// Whether the response says what a request costs.
pub(super) fn is_settled(cost: &Cost) -> bool {
    matches!(cost, Cost::ResponseHeader { .. } | Cost::OnStatus(..))
}

/// The cost that a header states, if it states one and is there once. More than can be counted is the most that can.
fn said(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?.trim();
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| value.parse().unwrap_or(u64::MAX))
}

/// The cost of a request as people are told of it: the request's own digits where it states them, which may be more than
/// can be counted, cut where there are many.
pub fn stated(cost: &Cost, headers: &HeaderMap) -> String {
    const MOST: usize = 30;
    let stated = match cost {
        Cost::RequestHeader(name) => headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim),
        _ => None,
    };
    match stated {
        Some(digits) if digits.len() <= MOST => digits.to_owned(),
        Some(digits) => format!("{}...", &digits[..MOST]),
        None => price(cost, headers).to_string(),
    }
}

/// What was reserved for a request until its response says what it costs. Dropped before there is a response, it stays
/// charged: who hangs up before an answer would try for nothing otherwise.
pub struct Reservations<'a> {
    store: &'a Store,
    worker: usize,
    /// Mostly empty.
    pending: Vec<PendingReservation<'a>>,
}

struct PendingReservation<'a> {
    cost: &'a Cost,
    ask: Ask<'a>,
    /// `None` until it is charged.
    reserved: Option<Reserved>,
}

impl<'a> Reservations<'a> {
    pub(super) fn new(store: &'a Store, worker: usize) -> Self {
        Self { store, worker, pending: Vec::new() }
    }

    /// Notes an ask whose cost is not known before the response.
    pub(super) fn owe(&mut self, cost: &'a Cost, ask: Ask<'a>) {
        self.pending.push(PendingReservation { cost, ask, reserved: None });
    }

    /// Notes what was reserved. Where nothing was, nothing will be charged either.
    pub(super) fn reserved(&mut self, reserved: Vec<Reserved>) {
        for reserved in reserved {
            if let Some(reservation) =
                self.pending.iter_mut().find(|reservation| reservation.ask.place == reserved.place)
            {
                reservation.reserved = Some(reserved);
            }
        }
    }

    /// Settles what was reserved for what the response says, and corrects the verdicts by that. A response that does not
    /// say what it costs costs what was reserved.
    pub fn settle(&mut self, status: StatusCode, headers: &HeaderMap, outcomes: &mut [LimitOutcome<'_>]) {
        for PendingReservation { cost, ask, reserved } in std::mem::take(&mut self.pending) {
            let Some(reserved) = reserved else { continue };
            let cost = match cost {
                Cost::ResponseHeader { name, .. } => said(headers, name).map(|cost| cost.min(MAX_QUOTA)),
                Cost::OnStatus(_, statuses) if !statuses.iter().any(|range| range.contains(&status.as_u16())) => {
                    Some(0)
                }
                _ => None,
            };
            let cost = cost.unwrap_or(reserved.cost());
            // What is said of requests under way is no business of the store's.
            let told = outcomes.iter_mut().find(|outcomes| outcomes.place == ask.place && outcomes.is_of_rates());
            let told = told.map(|outcomes| &mut outcomes.verdict);
            self.store.settle(&ask, reserved, cost, told, (clock::now(), self.worker));
        }
    }
}

impl Drop for Reservations<'_> {
    fn drop(&mut self) {
        for PendingReservation { ask, reserved, .. } in std::mem::take(&mut self.pending) {
            if let Some(reserved) = reserved {
                let cost = reserved.cost();
                self.store.settle(&ask, reserved, cost, None, (clock::now(), self.worker));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_cost_is_digits_and_nothing_else() {
        let name = HeaderName::from_static("x-cost");
        let cost = Cost::RequestHeader(name.clone());
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, HeaderValue::from_bytes(value).unwrap());
            }
            price(&cost, &headers)
        };
        assert_eq!(of(&[b"7"]), 7);
        assert_eq!(of(&[b" 7 "]), 7);
        for bad in [&b""[..], b"-7", b"+7", b"7.5", b"0x7", b"\xff", b"7 7", b"0"] {
            assert_eq!(of(&[bad]), 1, "{bad:?}");
        }
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[b"7", b"8"]), 1);
        assert_eq!(of(&[b"99999999999999999999999999"]), u64::MAX, "too much is not cheap");
    }

    #[test]
    fn a_cost_is_told_as_it_was_sent() {
        let name = HeaderName::from_static("x-cost");
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_str(value).unwrap())]);
            stated(&Cost::RequestHeader(name.clone()), &headers)
        };
        assert_eq!(of("18446744073709551616"), "18446744073709551616");
        assert_eq!(of(&"9".repeat(30)), "9".repeat(30));
        assert_eq!(of(&"9".repeat(9_000)), format!("{}...", "9".repeat(30)));
        assert_eq!(stated(&Cost::Fixed(7), &HeaderMap::new()), "7");
    }
}
