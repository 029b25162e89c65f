//! Charges what requests cost. Some costs are known before the decision, others only from the response.
//!
//! A limit that only reports also reserves, but never refuses.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, StatusCode};
use smallvec::SmallVec;

use super::{LimitOutcome, LimitVerdict};
use crate::base::clock::{self, Time};
use crate::config::{Cost, TokenCost};
use crate::limit::MAX_QUOTA;
use crate::request::identify::RequestAttributes;
use crate::request::identify::body::InspectedBody;
use crate::store::{Ask, Reserved, Store};
use crate::tokens::Usage;

/// The first charge of an admitted request: its cost, or the amount reserved until the cost is known.
fn initial_cost(cost: &Cost, headers: &HeaderMap, body: Option<&InspectedBody<'_>>) -> u64 {
    match cost {
        Cost::Fixed(amount) | Cost::OnStatus(amount, _) => *amount,
        // Otherwise a client could send 0 and never be counted.
        Cost::RequestHeader(name) => cost_header(headers, name).unwrap_or(1).max(1),
        Cost::ResponseHeader { reserve, .. } => *reserve,
        Cost::Elements => body.map_or(1, InspectedBody::elements) as u64,
        Cost::Tokens(cost) => {
            let model = body.and_then(InspectedBody::model);
            cost.weights(model).cost(reserved_tokens(cost, body)).max(1)
        }
        // What has no length is asked for while it passes.
        Cost::Bytes(cost) if cost.counted.has_requests() => stated_length(headers).unwrap_or(0),
        Cost::Bytes(_) => 0,
    }
}

/// The length of a body by its header, which the server has checked.
fn stated_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

pub fn reserved_tokens(cost: &TokenCost, body: Option<&InspectedBody<'_>>) -> Usage {
    let input = body.map_or(0, |body| body.input(cost.part));
    Usage { input, cached: 0, output: body.map_or(cost.max_output, |body| body.output(cost.max_output)) }
}

pub fn initial_cost_within(cost: &Cost, most: u64, attributes: &RequestAttributes<'_>) -> u64 {
    let initial = initial_cost(cost, attributes.headers, attributes.body);
    match cost {
        // A tier or an override may allow less than the limit's own rates, and a request may name any maximum of output.
        Cost::ResponseHeader { .. } | Cost::Tokens(_) => initial.min(most),
        _ => initial,
    }
}

pub fn is_settled(cost: &Cost) -> bool {
    matches!(cost, Cost::ResponseHeader { .. } | Cost::OnStatus(..) | Cost::Tokens(_) | Cost::Bytes(_))
}

/// The cost in a header. `None` if it is missing, repeated or not a number; `u64::MAX` if the number does not fit.
fn cost_header(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?.trim();
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| value.parse().unwrap_or(u64::MAX))
}

/// The cost of a request for error messages: a cost that the request states as its digits, at most 30 of them.
pub fn stated_cost(cost: &Cost, headers: &HeaderMap, body: Option<&InspectedBody<'_>>) -> String {
    const MOST: usize = 30;
    let stated = match cost {
        Cost::RequestHeader(name) => headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim),
        _ => None,
    };
    match stated {
        Some(digits) if digits.len() <= MOST => digits.to_owned(),
        Some(digits) => format!("{}...", &digits[..MOST]),
        None => initial_cost(cost, headers, body).to_string(),
    }
}

/// The cost of a request by its response. `None` if the response does not state one, so that the reserved cost stays.
pub fn response_cost(cost: &Cost, status: StatusCode, headers: &HeaderMap) -> Option<u64> {
    match cost {
        Cost::ResponseHeader { name, .. } => cost_header(headers, name).map(|cost| cost.min(MAX_QUOTA)),
        Cost::Tokens(_) if status.as_u16() >= 400 => Some(0),
        // Bytes of the upstream are counted while they pass. Those of the gateway's own answers cost nothing.
        Cost::Bytes(_) => Some(0),
        Cost::OnStatus(_, statuses) if !statuses.iter().any(|range| range.contains(&status.as_u16())) => Some(0),
        _ => None,
    }
}

/// Whether the cost of a request becomes known, for limits that charge only some responses or what a response says.
///
/// | how the request ended | who answers | its cost |
/// |---|---|---|
/// | the head of a response came from the upstream, whatever becomes of its body | upstream | by that head; in tokens by its body |
/// | no server got a part of it: no connection, no room, an earlier deadline, a server that refused it unprocessed | gateway | by that status |
/// | a route without an upstream | gateway | by that status |
/// | a server may have got a part of it: the server closed, was too slow, sent no HTTP; the client broke off its body, sent too much of it or none, or its deadline was over | gateway | what was reserved |
/// | the client left before an answer | nobody | what was reserved |
///
/// So no ending that a client can choose gives back a cost that may already have arisen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostKnown {
    FromResponse,
    /// The head of the response tells, and the body tells costs in tokens, whatever the status is.
    FromBody,
    /// A server may have done what the limit charges, but has not answered.
    Never,
}

/// What was reserved for a request until its response tells the cost. If the reservations are dropped before the response,
/// they stay charged: otherwise clients could try for free by closing their connections early. If they are dropped while the
/// request is held, all is given back, because nothing was done for the request.
pub struct Reservations<'a> {
    pub store: &'a Store,
    pub worker: usize,
    /// `None` for most requests. Boxed, it costs the others one comparison.
    open: Option<Box<OpenCharges<'a>>>,
    pub(super) is_held: bool,
    /// Whether new charges may be given back even after a hold, because the body has yet to be read.
    pub(super) is_provisional: bool,
}

#[derive(Default)]
struct OpenCharges<'a> {
    pending: Vec<PendingReservation<'a>>,
    /// Other charges that may be given back while the request is held.
    besides: Vec<Reserved>,
    /// The charges of a drop.
    if_dropped: Vec<(Reserved, u64)>,
}

/// What was reserved for limits whose costs become known later.
pub struct PendingReservation<'a> {
    /// For each limit for which it was charged: the place, the cost and the first charge. The largest known cost is charged.
    pub costs: Costs<'a>,
    /// The largest known cost so far, or the use that a report states if `costs` is empty.
    pub known: u64,
    pub reserved: Reserved,
}

impl PendingReservation<'_> {
    fn is_in_bytes(&self) -> bool {
        self.costs.iter().any(|(_, cost, _)| matches!(cost, Cost::Bytes(_)))
    }
}

type Costs<'a> = SmallVec<[(usize, &'a Cost, u64); 1]>;

impl<'a> Reservations<'a> {
    pub(super) fn new(store: &'a Store, worker: usize) -> Self {
        Self { store, worker, open: None, is_held: false, is_provisional: false }
    }

    /// Adds what the store has reserved for limits with these costs.
    pub(super) fn add(&mut self, costs: Costs<'a>, reserved: Reserved) {
        let is_settled = costs.iter().any(|(_, cost, _)| is_settled(cost));
        let pending = PendingReservation { costs, known: 0, reserved };
        if is_settled && (pending.reserved.cost() > 0 || pending.is_in_bytes()) {
            self.charges().pending.push(pending);
        } else if pending.reserved.cost() > 0 {
            self.charges().besides.push(pending.reserved);
        }
    }

    fn charges(&mut self) -> &mut OpenCharges<'a> {
        self.open.get_or_insert_default()
    }

    /// Settles `reserved` at `used`, whatever the decision.
    pub(super) fn owe(&mut self, reserved: Reserved, used: u64) {
        let known = used.min(MAX_QUOTA);
        self.charges().pending.push(PendingReservation { costs: Costs::new(), known, reserved });
    }

    /// Makes exactly the limits of these asks charge their costs if this is dropped now.
    pub(super) fn charge_if_dropped<'b>(&mut self, asks: impl Iterator<Item = &'b Ask<'b>>) {
        let charges = asks.map(|ask| (Reserved::nothing(ask), ask.cost)).collect();
        self.charges().if_dropped = charges;
    }

    /// The request is no longer held: its charges stay, or its response settles them.
    pub(super) fn end_hold(&mut self, now: impl Fn() -> Time) {
        self.is_held = false;
        let Some(open) = self.open.as_mut().filter(|_| !self.is_provisional) else { return };
        for reserved in std::mem::take(&mut open.besides) {
            let cost = reserved.cost();
            self.store.settle(reserved, cost, None, now(), self.worker);
        }
    }

    /// Gives back everything but reports of use, because nothing is done for the request. Corrects the verdicts.
    pub(super) fn give_back(&mut self, outcomes: &mut [LimitOutcome<'_>], now: impl Fn() -> Time) {
        let Some(open) = &mut self.open else { return };
        let pending = std::mem::take(&mut open.pending).into_iter();
        let pending =
            pending.map(|pending| (pending.reserved, if pending.costs.is_empty() { pending.known } else { 0 }));
        let besides = std::mem::take(&mut open.besides).into_iter().map(|reserved| (reserved, 0));
        for (reserved, cost) in pending.chain(besides) {
            self.settle_at(reserved, cost, outcomes, now());
        }
    }

    /// Replaces what was reserved by `cost_of(what a limit charges)`, and corrects the verdicts. Without a cost, the reserved
    /// one stays, unless the body may state it: see [`Self::open`]. `now` returns when the cost became known.
    pub fn settle(
        &mut self,
        cost_of: impl Fn(&Cost) -> Option<u64>,
        outcomes: &mut [LimitOutcome<'_>],
        now: impl Fn() -> Time,
    ) {
        if let Some(open) = &mut self.open {
            let pending = std::mem::take(&mut open.pending);
            self.settle_all(pending, cost_of, outcomes, now);
        }
    }

    /// Not inline, because most requests have reserved nothing.
    #[inline(never)]
    fn settle_all(
        &mut self,
        pending: Vec<PendingReservation<'a>>,
        cost_of: impl Fn(&Cost) -> Option<u64>,
        outcomes: &mut [LimitOutcome<'_>],
        now: impl Fn() -> Time,
    ) {
        for PendingReservation { mut costs, mut known, reserved } in pending {
            costs.retain(|(_, cost, initial)| {
                let cost = match (cost_of(cost), &cost) {
                    (None, Cost::Tokens(_)) => return true,
                    (cost, _) => cost.unwrap_or(*initial),
                };
                known = known.max(cost);
                false
            });
            if !costs.is_empty() {
                self.charges().pending.push(PendingReservation { costs, known, reserved });
                continue;
            }
            self.settle_at(reserved, known, outcomes, now());
        }
    }

    /// Settles one reservation. Corrects the verdict of its limit if that admits the request.
    fn settle_at(&self, reserved: Reserved, cost: u64, outcomes: &mut [LimitOutcome<'_>], now: Time) {
        let found = outcomes.iter_mut().find_map(|outcome| match &mut outcome.verdict {
            LimitVerdict::Rates(verdict) if outcome.place == reserved.place && verdict.admitted => {
                Some((verdict, &mut outcome.as_of))
            }
            _ => None,
        });
        let (verdict, as_of) = found.unzip();
        let settled = self.store.settle(reserved, cost, verdict, now, self.worker);
        settled.zip(as_of).into_iter().for_each(|(settled, as_of)| *as_of = settled);
    }

    pub fn counts_bytes(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.pending.iter().any(PendingReservation::is_in_bytes))
    }

    /// Takes the reservations that the bytes settle that pass.
    pub fn open_bytes(&mut self) -> Vec<PendingReservation<'a>> {
        let pending =
            self.open.iter_mut().flat_map(|open| open.pending.extract_if(.., |pending| pending.is_in_bytes()));
        pending.collect()
    }

    /// Takes the reservations that the body of the response settles.
    pub fn open(&mut self) -> Vec<PendingReservation<'a>> {
        self.open.as_mut().map(|open| std::mem::take(&mut open.pending)).unwrap_or_default()
    }

    /// Keeps the reserved charges, because there is no response. `now` returns when that is known.
    pub fn keep(&mut self, now: impl Fn() -> Time) {
        for PendingReservation { known, reserved, .. } in self.open() {
            let cost = known.max(reserved.cost());
            self.store.settle(reserved, cost, None, now(), self.worker);
        }
        self.end_hold(now);
    }
}

impl Drop for Reservations<'_> {
    fn drop(&mut self) {
        self.is_provisional = false;
        let Some(open) = &mut self.open else { return };
        for (reserved, cost) in std::mem::take(&mut open.if_dropped) {
            self.store.settle(reserved, cost, None, clock::now(), self.worker);
        }
        if self.is_held {
            self.give_back(&mut [], clock::now);
        }
        self.keep(clock::now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderValue;

    use super::*;
    use crate::tokens::Weights;

    #[test]
    fn without_a_body_the_most_output_is_reserved() {
        let weights = Weights { output: "2.5".parse().unwrap(), ..Weights::default() };
        let cost = Cost::Tokens(Arc::new(TokenCost { weights, max_output: 101, ..TokenCost::default() }));
        let headers = HeaderMap::new();
        assert_eq!(initial_cost(&cost, &headers, None), 253);
        assert_eq!(response_cost(&cost, StatusCode::OK, &headers), None);
        assert_eq!(response_cost(&cost, StatusCode::BAD_REQUEST, &headers), Some(0));
    }

    #[test]
    fn a_cost_is_digits_and_nothing_else() {
        let name = HeaderName::from_static("x-cost");
        let cost = Cost::RequestHeader(name.clone());
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, HeaderValue::from_bytes(value).unwrap());
            }
            initial_cost(&cost, &headers, None)
        };
        assert_eq!(of(&[b"7"]), 7);
        assert_eq!(of(&[b" 7 "]), 7);
        for bad in [&b""[..], b"-7", b"+7", b"7.5", b"0x7", b"\xff", b"7 7", b"0"] {
            assert_eq!(of(&[bad]), 1, "{bad:?}");
        }
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[b"7", b"8"]), 1);
        assert_eq!(of(&[b"99999999999999999999999999"]), u64::MAX, "a number that does not fit costs the most");
    }

    #[test]
    fn a_cost_is_printed_as_it_was_sent() {
        let name = HeaderName::from_static("x-cost");
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_str(value).unwrap())]);
            stated_cost(&Cost::RequestHeader(name.clone()), &headers, None)
        };
        assert_eq!(of("18446744073709551616"), "18446744073709551616");
        assert_eq!(of(&"9".repeat(30)), "9".repeat(30));
        assert_eq!(of(&"9".repeat(9_000)), format!("{}...", "9".repeat(30)));
        assert_eq!(stated_cost(&Cost::Fixed(7), &HeaderMap::new(), None), "7");
    }
}
