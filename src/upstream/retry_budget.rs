//! How many requests may be sent again: a share of all requests of the last ten seconds, and never fewer than three a second.
//!
//! Without a bound, an upstream that fails because it has too much to do would get even more. The rule is that of Finagle's
//! retry budgets.

use std::collections::VecDeque;

/// How many seconds are counted together.
const SECONDS: u64 = 10;
/// How many requests may be sent again in that time, however few there are.
const FEWEST: u64 = 3 * SECONDS;

/// The requests and retries of the last ten seconds.
#[derive(Debug, Default)]
pub(super) struct RetryBudget {
    /// The last seconds in which something was recorded, the oldest first.
    seconds: VecDeque<Second>,
}

#[derive(Debug)]
struct Second {
    second: u64,
    /// How many requests there had been in all before it.
    requests_before: u64,
    /// How many requests were sent again in it.
    retries: u64,
}

impl RetryBudget {
    /// Records that there have been so many requests in all. It has to be called every second, or a little more often.
    pub(super) fn observe(&mut self, second: u64, requests: u64) {
        // If the clock was set back, the later seconds are forgotten.
        while self.seconds.back().is_some_and(|last| last.second > second) {
            self.seconds.pop_back();
        }
        if self.seconds.back().is_none_or(|last| last.second < second) {
            self.seconds.push_back(Second { second, requests_before: requests, retries: 0 });
        }
        while self.seconds.front().is_some_and(|first| first.second + SECONDS <= second) {
            self.seconds.pop_front();
        }
    }

    /// Whether one more request may be sent again, of so many `requests` in all; then it is counted. At most `share` of the
    /// requests may be, in thousandths.
    pub(super) fn take(&mut self, second: u64, requests: u64, share: u32) -> bool {
        self.observe(second, requests);
        let before = self.seconds.front().map_or(requests, |first| first.requests_before);
        let retries: u64 = self.seconds.iter().map(|second| second.retries).sum();
        let allowed = requests.saturating_sub(before).saturating_mul(u64::from(share)) / 1000;
        let Some(last) = self.seconds.back_mut().filter(|_| retries < allowed.max(FEWEST)) else { return false };
        last.retries += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(budget: &mut RetryBudget, second: u64, requests: u64) -> usize {
        (0..10_000).take_while(|_| budget.take(second, requests, 200)).count()
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
                let got = (0..wanted).filter(|_| budget.take(second, requests, 200)).count();
                taken.push((second, got));
                let in_window = |at: u64| at + SECONDS > second;
                let sum: usize = taken.iter().filter(|(at, _)| in_window(*at)).map(|(_, got)| got).sum();
                // Those that were sent again at the beginning were allowed by requests of ten seconds before.
                let before = begun.iter().find(|(at, _)| at + 2 * SECONDS > second).map_or(0, |(_, before)| *before);
                prop_assert!(sum as u64 <= ((requests - before) / 5).max(FEWEST));
            }
        }
    }
}
