//! What requests cost: known before they are decided, or only from the response.

use http::{HeaderMap, HeaderName, StatusCode};

use super::Judged;
use crate::clock;
use crate::config::Cost;
use crate::limit::MAX_QUOTA;
use crate::store::{Ask, Store};

/// The room that a request needs and what it is charged at once.
pub(super) fn price(cost: &Cost, headers: &HeaderMap) -> (u64, u64) {
    match cost {
        Cost::Fixed(amount) => (*amount, *amount),
        Cost::RequestHeader(name) => {
            // Who could say 0 would pass uncounted.
            let amount = said(headers, name).unwrap_or(1).max(1);
            (amount, amount)
        }
        // Any room will do: how much it takes is known afterwards.
        Cost::ResponseHeader(_) => (1, 0),
        Cost::OnStatus(amount, _) => (*amount, 0),
    }
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
        None => price(cost, headers).0.to_string(),
    }
}

/// What is charged after the response. Dropped before there is one, it charges an admitted request what an answer
/// without a cost would be charged: clients that go away early do not go free.
pub struct Bill<'a> {
    store: &'a Store,
    /// Mostly empty.
    dues: Vec<Due<'a>>,
    admitted: bool,
}

struct Due<'a> {
    cost: &'a Cost,
    ask: Ask<'a>,
}

impl<'a> Bill<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { store, dues: Vec::new(), admitted: false }
    }

    /// Notes an ask whose cost is not known before the response.
    pub(super) fn owe(&mut self, cost: &'a Cost, ask: Ask<'a>) {
        if matches!(cost, Cost::ResponseHeader(_) | Cost::OnStatus(..)) {
            self.dues.push(Due { cost, ask });
        }
    }

    /// This guard is not owed anything after all.
    pub(super) fn forget(&mut self, place: usize) {
        self.dues.retain(|due| due.ask.place != place);
    }

    /// From here on the request is let through.
    pub(super) fn admitted(&mut self) {
        self.admitted = true;
    }

    /// Charges what the response says, and corrects the verdicts by that.
    pub fn settle(&mut self, status: StatusCode, headers: &HeaderMap, judged: &mut [Judged<'_>]) {
        for due in std::mem::take(&mut self.dues) {
            let amount = match due.cost {
                Cost::ResponseHeader(name) => said(headers, name).unwrap_or(1),
                Cost::OnStatus(amount, statuses) if statuses.iter().any(|range| range.contains(&status.as_u16())) => {
                    *amount
                }
                _ => 0,
            };
            let ask = Ask { cost: amount.min(MAX_QUOTA), ..due.ask };
            if ask.cost == 0 {
                continue;
            }
            let verdict = self.store.charge(&ask, clock::now());
            for judged in judged.iter_mut().filter(|judged| judged.place == ask.place) {
                judged.charged(ask.cost, verdict);
            }
        }
    }
}

impl Drop for Bill<'_> {
    fn drop(&mut self) {
        for due in self.dues.drain(..) {
            if self.admitted && matches!(due.cost, Cost::ResponseHeader(_)) {
                self.store.charge(&Ask { cost: 1, ..due.ask }, clock::now());
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
            price(&cost, &headers).0
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
