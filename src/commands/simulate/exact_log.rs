//! An exact log of what a limit admitted for one key, to compare the limit's counters with.
//!
//! A request counts from its moment until exactly one window later, `(now - W, now]`, whatever the strategy of the limit
//! is. For a rate per day or month, a request counts within the calendar window.

use std::collections::VecDeque;

use crate::base::clock::Time;
use crate::limit::Rate;

#[derive(Clone, Debug, Default)]
pub(super) struct ExactLog {
    /// By time, the oldest first: the moment, and the sum of all admissions up to and including it.
    entries: VecDeque<(u64, u64)>,
    /// The sum of admissions before the first entry.
    before: u64,
}

impl ExactLog {
    pub(super) fn has_room(&self, rates: &[Rate], now: Time, need: u64) -> bool {
        rates.iter().all(|rate| self.count(rate, now).saturating_add(need) <= rate.quota())
    }

    fn count(&self, rate: &Rate, now: Time) -> u64 {
        let gone = rate.forgotten(now).map_or(0, |until| self.entries.partition_point(|(time, _)| *time <= until));
        let before =
            gone.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(self.before, |(_, total)| *total);
        self.total().saturating_sub(before)
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.before, |(_, total)| *total)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an admission at `now`, which is not before the last one. Returns the number of new entries.
    pub(super) fn add(&mut self, now: Time, cost: u64) -> usize {
        let total = self.total().saturating_add(cost);
        match self.entries.back_mut() {
            _ if cost == 0 => 0,
            // Many logs have no fractions of a second.
            Some(last) if last.0 == now.micros() => {
                last.1 = total;
                0
            }
            _ => {
                self.entries.push_back((now.micros(), total));
                1
            }
        }
    }

    /// Forgets admissions at or before `until`, in microseconds. Returns the number of removed entries.
    pub(super) fn forget(&mut self, until: u64) -> usize {
        let before = self.entries.len();
        while let Some((_, total)) = self.entries.front().filter(|(time, _)| *time <= until) {
            self.before = *total;
            self.entries.pop_front();
        }
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        before - self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every request, one by one.
    #[derive(Default)]
    struct Naive(Vec<(u64, u64)>);

    impl Naive {
        fn has_room(&self, rates: &[(u64, u64)], now: u64, need: u64) -> bool {
            rates.iter().all(|(quota, window)| {
                let counts = self.0.iter().filter(|(time, _)| time + window > now);
                counts.map(|(_, cost)| cost).sum::<u64>() + need <= *quota
            })
        }
    }

    proptest! {
        #[test]
        fn the_log_is_what_it_is_by_definition(
            steps in prop::collection::vec((0_u64..3_000, 1_u64..4), 1..200),
            first in (1_u64..20, 1_u64..10),
            second in (1_u64..60, 1_u64..100),
        ) {
            let rates = [first, second].map(|(quota, seconds)| format!("{quota}/{seconds}s").parse::<Rate>().unwrap());
            let plain = [first, second].map(|(quota, seconds)| (quota, seconds * 1_000_000));
            let longest = first.1.max(second.1) * 1_000_000;
            let (mut log, mut naive, mut entries) = (ExactLog::default(), Naive::default(), 0);
            let mut now = 1_800_000_000_000_000;
            for (millis, need) in steps {
                now += millis / 3 * 1_000;
                let time = Time::from_micros(now);
                entries -= log.forget(now - longest);
                let room = log.has_room(&rates, time, need);
                prop_assert_eq!(room, naive.has_room(&plain, now, need));
                if room {
                    entries += log.add(time, need);
                    naive.0.push((now, need));
                }
                prop_assert_eq!(entries, log.entries.len());
            }
        }
    }

    #[test]
    fn a_day_begins_at_midnight() {
        let rates = ["1/day".parse::<Rate>().unwrap()];
        let at = |hour: u64| Time::from_micros((1_800_057_600 + hour * 3_600) * 1_000_000);
        assert_eq!(at(0).seconds() % 86_400, 0);
        let mut log = ExactLog::default();
        log.add(at(23), 1);
        assert!(!log.has_room(&rates, at(23), 1));
        assert!(log.has_room(&rates, at(24), 1));
    }
}
