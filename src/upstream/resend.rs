//! Whether a request is sent again after an attempt, and where. No other file decides that. Pure, so a test goes through all
//! combinations.
//!
//! A server may get a request twice only if its method is idempotent (RFC 9110, section 9.2.2), or if the server has certainly
//! not processed it (RFC 9113, section 8.7).

use std::collections::VecDeque;

use super::load::ClientBit;

/// Of the window in which retries are counted.
const SECONDS: u64 = 10;
/// How many requests may always be sent again in that time.
const FEWEST: u64 = 3 * SECONDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// There is no connection to the server, so nothing was sent.
    NotConnected,
    /// The server has certainly not processed the request: it says so, or its connection had ended before.
    NotProcessed,
    /// A connection that had carried other requests ended before a byte of a response came. The server may have closed it before
    /// the request came.
    Stale,
    /// Nobody knows whether the server has processed the request.
    Unknown,
    /// There is a response, with a status after which the configuration wants another attempt.
    Listed,
    /// There is a response for the client, or the failure is not the server's.
    Final,
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "five independent properties of a request")]
pub(super) struct Situation {
    pub(super) is_idempotent: bool,
    /// Even if some of it was sent before.
    pub(super) has_whole_body: bool,
    /// A part of a response was passed to the client.
    pub(super) has_response: bool,
    /// Whether it was already sent twice to the same server, this one or an earlier one.
    pub(super) is_repeated: bool,
    /// An endpoint was not tried and has room.
    pub(super) has_other: bool,
    /// How often it may still be sent to another endpoint although one may have processed it.
    pub(super) retries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resend {
    /// To the same endpoint, over another connection.
    SameServer,
    /// To another endpoint, because this one has certainly not processed it.
    OtherServer,
    /// To another endpoint, although this one may have processed it.
    Retry,
}

impl Ending {
    /// Whether and where the request is sent again. `budget` is called last, and only for a [`Resend::Retry`].
    pub(super) fn again(self, situation: Situation, budget: impl FnOnce() -> bool) -> Option<Resend> {
        let Situation { is_idempotent, has_whole_body, has_response, is_repeated, has_other, retries } = situation;
        if self == Self::Final || !has_whole_body || has_response {
            return None;
        }
        match self {
            Self::NotProcessed if !is_repeated => Some(Resend::SameServer),
            Self::Stale if !is_repeated && is_idempotent => Some(Resend::SameServer),
            Self::NotConnected | Self::NotProcessed => has_other.then_some(Resend::OtherServer),
            _ => (is_idempotent && has_other && retries > 0 && budget()).then_some(Resend::Retry),
        }
    }

    pub(super) fn is_unprocessed(self) -> bool {
        matches!(self, Self::NotConnected | Self::NotProcessed)
    }
}

/// How many requests may be sent again: a share of all requests of the last ten seconds, and never fewer than three a second.
///
/// Without a bound, an upstream that fails because it is overloaded would get even more requests. The rule is that of Finagle's
/// retry budgets. A client with requests that always fail must not use up the budget of others, so while there are others, it
/// gets at most half.
#[derive(Debug, Default)]
pub(super) struct RetryBudget {
    /// The last seconds in which something was recorded, the oldest first.
    seconds: VecDeque<Second>,
}

#[derive(Debug)]
struct Second {
    second: u64,
    /// How many requests there had been in all before this second.
    requests_before: u64,
    /// For each group of clients.
    retries: [u32; 64],
}

impl RetryBudget {
    /// `requests` is the total so far. Must be called every second, or a little more often.
    pub(super) fn observe(&mut self, second: u64, requests: u64) {
        // If the clock was set back, the later seconds are forgotten.
        while self.seconds.back().is_some_and(|last| last.second > second) {
            self.seconds.pop_back();
        }
        if self.seconds.back().is_none_or(|last| last.second < second) {
            self.seconds.push_back(Second { second, requests_before: requests, retries: [0; 64] });
        }
        while self.seconds.front().is_some_and(|first| first.second + SECONDS <= second) {
            self.seconds.pop_front();
        }
    }

    /// Whether one more request of this client may be sent again, and counts it then. `requests` is the total so far, and `share`
    /// the part of them that may be sent again, in thousandths. The client `is_alone` if no others are answered.
    pub(super) fn take(&mut self, second: u64, requests: u64, share: u32, client: ClientBit, is_alone: bool) -> bool {
        self.observe(second, requests);
        let before = self.seconds.front().map_or(requests, |first| first.requests_before);
        let by_share = requests.saturating_sub(before).saturating_mul(u64::from(share)) / 1000;
        let allowed = by_share.max(FEWEST);
        let all: u64 = self.seconds.iter().flat_map(|second| second.retries).map(u64::from).sum();
        let retries_of = |second: &Second| second.retries.get(client.group()).copied().unwrap_or_default();
        let own: u64 = self.seconds.iter().map(|second| u64::from(retries_of(second))).sum();
        let is_allowed = all < allowed && (is_alone || own < allowed / 2);
        let last = self.seconds.back_mut().filter(|_| is_allowed);
        last.and_then(|last| last.retries.get_mut(client.group())).map(|retries| *retries += 1).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const ALL: [Ending; 6] =
        [Ending::NotConnected, Ending::NotProcessed, Ending::Stale, Ending::Unknown, Ending::Listed, Ending::Final];

    /// A request that may be sent again for every reason.
    const BEST: Situation = Situation {
        is_idempotent: true,
        has_whole_body: true,
        has_response: false,
        is_repeated: false,
        has_other: true,
        retries: 1,
    };

    #[test]
    fn each_ending_has_its_rule() {
        let (same, other, retry) = (Some(Resend::SameServer), Some(Resend::OtherServer), Some(Resend::Retry));
        let post = Situation { is_idempotent: false, ..BEST };
        let repeated = |situation| Situation { is_repeated: true, ..situation };
        let alone = |situation| Situation { has_other: false, ..situation };
        for (situation, expected) in [
            (BEST, [other, same, same, retry, retry, None]),
            (repeated(BEST), [other, other, retry, retry, retry, None]),
            (alone(BEST), [None, same, same, None, None, None]),
            (alone(repeated(BEST)), [None; 6]),
            (Situation { retries: 0, ..BEST }, [other, same, same, None, None, None]),
            (post, [other, same, None, None, None, None]),
            (repeated(post), [other, other, None, None, None, None]),
            (alone(post), [None, same, None, None, None, None]),
            (Situation { has_whole_body: false, ..BEST }, [None; 6]),
            (Situation { has_response: true, ..BEST }, [None; 6]),
        ] {
            assert_eq!(ALL.map(|ending| ending.again(situation, || true)), expected, "{situation:?}");
            let over_budget = expected.map(|again| again.filter(|again| *again != Resend::Retry));
            assert_eq!(ALL.map(|ending| ending.again(situation, || false)), over_budget, "{situation:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_processed_twice_that_must_not_be(
            ending in prop::sample::select(&ALL[..]), facts in any::<[bool; 5]>(), retries in 0_u32..3, allows in any::<bool>(),
        ) {
            let [is_idempotent, has_whole_body, has_response, is_repeated, has_other] = facts;
            let situation =
                Situation { is_idempotent, has_whole_body, has_response, is_repeated, has_other, retries };
            let asked = Cell::new(false);
            let again = ending.again(situation, || {
                asked.set(true);
                allows
            });
            prop_assert!(again.is_none() || (has_whole_body && !has_response && ending != Ending::Final));
            prop_assert!(again.is_none() || is_idempotent || ending.is_unprocessed(), "RFC 9110, section 9.2.2");
            prop_assert!(again != Some(Resend::SameServer) || !is_repeated, "one server at most gets it twice");
            prop_assert!(matches!(again, None | Some(Resend::SameServer)) || has_other);
            prop_assert_eq!(again == Some(Resend::Retry), asked.get() && allows, "each retry is one of the budget");
        }
    }

    fn taken(budget: &mut RetryBudget, second: u64, requests: u64) -> usize {
        (0..10_000).take_while(|_| budget.take(second, requests, 200, ClientBit::OWN, true)).count()
    }

    #[test]
    fn a_few_are_always_allowed_but_only_once_in_ten_seconds() {
        let mut budget = RetryBudget::default();
        assert_eq!(taken(&mut budget, 100, 0), 30);
        assert_eq!(taken(&mut budget, 109, 10), 0);
        assert_eq!(taken(&mut budget, 110, 10), 30);
        assert_eq!(taken(&mut budget, 50, 10), 30, "the clock was set back");
    }

    #[test]
    fn a_share_of_the_requests_of_the_last_ten_seconds_is_allowed() {
        let mut budget = RetryBudget::default();
        (100..105).for_each(|second| budget.observe(second, (second - 100) * 100));
        assert_eq!(taken(&mut budget, 105, 500), 100);
        (106..110).for_each(|second| budget.observe(second, 500));
        assert_eq!(taken(&mut budget, 109, 500), 0);
        budget.observe(114, 500);
        assert_eq!(taken(&mut budget, 114, 1000), 0, "those 100 were less than ten seconds ago");
        assert_eq!(taken(&mut budget, 115, 1000), 100);
    }

    #[test]
    fn one_client_takes_at_most_half_while_there_are_others() {
        let mut budget = RetryBudget::default();
        budget.observe(100, 0);
        let mut taken = |second, client, is_alone| {
            let take = |_: &usize| budget.take(second, 1000, 200, ClientBit(client), is_alone);
            (0..10_000).take_while(take).count()
        };
        assert_eq!(
            [taken(100, 1, false), taken(101, 1, false), taken(101, 2, false), taken(102, 4, false)],
            [100, 0, 100, 0]
        );
        assert_eq!([taken(120, 1, true), taken(120, 2, false)], [30, 0], "nobody has asked before");
    }

    proptest! {
        #[test]
        fn never_more_than_allowed(seconds in prop::collection::vec((0u64..3, 0u64..1000, 0usize..300), 1..40)) {
            let mut budget = RetryBudget::default();
            let (mut second, mut requests, mut taken) = (1000, 0, Vec::new());
            let mut begun = vec![];
            for (later, more, wanted) in seconds {
                second += later;
                budget.observe(second, requests);
                begun.push((second, requests));
                requests += more;
                let one = |number: usize| ClientBit(1 << (number % 3));
                let got = (0..wanted).filter(|wanted| budget.take(second, requests, 200, one(*wanted), false)).count();
                taken.push((second, got));
                let in_window = |at: u64| at + SECONDS > second;
                let sum: usize = taken.iter().filter(|(at, _)| in_window(*at)).map(|(_, got)| got).sum();
                // Retries at the beginning were allowed by requests of ten seconds before.
                let before = begun.iter().find(|(at, _)| at + 2 * SECONDS > second).map_or(0, |(_, before)| *before);
                prop_assert!(sum as u64 <= ((requests - before) / 5).max(FEWEST));
            }
        }
    }
}
