//! What one limit decided: in total, over time, and for each key, compared with an exact log.
//!
//! Memory is bounded: only so many keys are followed one by one, and the comparison ends if the logs become too large.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::timeline::Timeline;
use crate::base::clock::{Time, micros};
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, CountedUnit, Limit, MAX_LOG, Rate, Strategy};

/// The peak of a key for each rate of the limit: the smallest quota that would not have refused the key.
pub(super) type Peaks = SmallVec<[u64; 2]>;

const MAX_KEYS: usize = 1 << 20;
/// In all exact logs of a limit together; each entry takes 16 bytes.
const MAX_ENTRIES: usize = 1 << 24;

/// What a limit decided, in numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Requests that the rates decided.
    pub(super) requests: u64,
    /// Requests that the rates would have rejected.
    pub(super) rejected: u64,
    pub(super) bans: u64,
    /// Requests that a ban refused, except those that began one.
    pub(super) banned: u64,
    /// Admitted requests that the limit would have held, and how full it was at most, in millionths.
    pub(super) held: u64,
    pub(super) fullest_held: u32,
    /// Requests without room, for which the pool was charged.
    pub(super) overflowed: u64,
    /// Requests of blocked keys that passed because the limit only reports.
    pub(super) reported_blocks: u64,
    /// Requests of keys that are not followed, because there are too many keys.
    pub(super) unfollowed: u64,
    /// Admitted although the exact log had no room.
    pub(super) wrongly_admitted: u64,
    /// Rejected although the exact log had room.
    pub(super) wrongly_rejected: u64,
    /// When the comparison ended because it took too much memory.
    pub(super) compared_until: Option<Time>,
    pub(super) timeline: Timeline,
}

pub(super) struct LimitStatistics {
    pub(super) counts: Counts,
    /// In boxes, because a table has up to twice as many places as entries.
    keys: HashMap<Fingerprint, Box<KeyStatistics>, RandomState>,
    /// Of all keys.
    told: ToldCosts,
    /// The limit's own rates, in a form that also counts requests over the limit.
    demand: Limit,
    /// In microseconds, among all rates that keys of the limit can have.
    longest: u64,
    entries: usize,
    max_keys: usize,
    max_entries: usize,
}

pub(super) struct KeyStatistics {
    /// As the log has it.
    pub(super) text: Box<str>,
    pub(super) requests: u64,
    pub(super) rejected: u64,
    pub(super) was_banned: bool,
    told: ToldCosts,
    log: ExactLog,
    /// All requests of the key, admitted or not.
    demand: Option<Cell>,
    peaks: Peaks,
}

/// What requests have cost by their responses, as the log tells.
#[derive(Clone, Copy, Debug, Default)]
struct ToldCosts {
    requests: u64,
    sum: u64,
}

impl ToldCosts {
    fn add(&mut self, cost: u64) {
        self.requests += 1;
        self.sum = self.sum.saturating_add(cost);
    }

    fn mean(self) -> Option<u64> {
        self.sum.checked_div(self.requests)
    }
}

pub(super) struct Decided<'a> {
    pub(super) key: Fingerprint,
    pub(super) time: Time,
    pub(super) limit: &'a Limit,
    /// Whether `limit` has the limit's own rates.
    pub(super) is_own: bool,
    /// What had to be free to admit the request.
    pub(super) need: u64,
    /// The final cost, if the request was admitted.
    pub(super) cost: u64,
    /// What it would have cost if no limit had refused it when it was logged: an estimate, if one had.
    pub(super) demand: u64,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All limits admitted the request.
    Charged,
    /// The limit had room, but another one refused the request.
    NotCharged,
    /// The limit had no room, and its pool was charged.
    Overflowed,
    Rejected,
}

impl LimitStatistics {
    /// `own` is the limit with its own rates, and `all` are all rates that its keys can have.
    pub(super) fn new(own: &Limit, all: &[Arc<Limit>]) -> Self {
        let rates = all.iter().flat_map(|limit| limit.rates());
        let longest = rates.map(|rate| micros(rate.window())).max().unwrap_or(0);
        let demand: Vec<_> = own.rates().iter().map(unlimited).collect();
        Self {
            counts: Counts::default(),
            keys: HashMap::default(),
            told: ToldCosts::default(),
            demand: Limit::new(own.name(), &demand),
            longest,
            entries: 0,
            max_keys: MAX_KEYS,
            max_entries: MAX_ENTRIES,
        }
    }

    /// `text` writes the key.
    pub(super) fn add(&mut self, decided: &Decided<'_>, text: impl FnOnce() -> String) {
        let rejected = u64::from(decided.outcome == Outcome::Rejected);
        self.counts.requests += 1;
        self.counts.rejected += rejected;
        self.counts.overflowed += u64::from(decided.outcome == Outcome::Overflowed);
        self.counts.timeline.add(decided.time, rejected > 0);
        let is_full = self.keys.len() >= self.max_keys;
        let key = if is_full {
            let Some(key) = self.keys.get_mut(&decided.key) else {
                self.counts.unfollowed += 1;
                return;
            };
            key
        } else {
            self.keys.entry(decided.key).or_insert_with(|| Box::new(KeyStatistics::new(text())))
        };
        key.requests += 1;
        key.rejected += rejected;
        if self.counts.compared_until.is_some() {
            return;
        }
        let until = decided.time.micros().checked_sub(self.longest);
        self.entries -= until.map_or(0, |until| key.log.forget(until));
        let is_admitted = matches!(decided.outcome, Outcome::Charged | Outcome::NotCharged);
        match (is_admitted, key.log.has_room(decided.limit.rates(), decided.time, decided.need)) {
            (true, false) => self.counts.wrongly_admitted += 1,
            (false, true) => self.counts.wrongly_rejected += 1,
            (true, true) | (false, false) => {}
        }
        if decided.outcome == Outcome::Charged {
            self.entries += key.log.add(decided.time, decided.cost);
        }
        if decided.is_own {
            self.entries += usize::from(self.demand.grows());
            key.add_demand(&self.demand, decided);
        }
        if self.entries > self.max_entries {
            self.free(decided.time);
        }
    }

    /// Learns from a response what a request of this key has cost.
    pub(super) fn learn(&mut self, key: Fingerprint, cost: u64) {
        self.told.add(cost);
        self.keys.get_mut(&key).into_iter().for_each(|key| key.told.add(cost));
    }

    /// The mean cost of the requests of a key so far, without any that of all keys.
    pub(super) fn mean_cost(&self, key: Fingerprint) -> Option<u64> {
        self.keys.get(&key).and_then(|key| key.told.mean()).or_else(|| self.told.mean())
    }

    pub(super) fn begin_ban(&mut self, key: Fingerprint) {
        self.counts.bans += 1;
        self.keys.get_mut(&key).into_iter().for_each(|key| key.was_banned = true);
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyStatistics> {
        self.keys.values().map(|key| &**key)
    }

    /// The peaks of keys with the limit's own rates; empty if the comparison ended early.
    pub(super) fn peaks(&self) -> Vec<Peaks> {
        let keys = self.keys.values().filter(|key| !key.peaks.is_empty() && self.counts.compared_until.is_none());
        keys.map(|key| key.peaks.clone()).collect()
    }

    /// Forgets what no longer counts. If that is not enough, the comparison ends.
    fn free(&mut self, now: Time) {
        self.entries = 0;
        let until = now.micros().saturating_sub(self.longest);
        for key in self.keys.values_mut() {
            key.log.forget(until);
            if let Some(demand) = key.demand.as_mut().filter(|_| self.demand.grows()) {
                demand.advance(self.demand.rates(), now);
                self.entries += demand.allocations().sum::<usize>() / size_of::<(u64, u64)>();
            }
            self.entries += key.log.len();
        }
        if self.entries > self.max_entries / 2 {
            self.counts.compared_until = Some(now);
            for key in self.keys.values_mut() {
                (key.log, key.demand) = (ExactLog::default(), None);
            }
        }
    }
}

/// The rate in a form that also counts requests over the limit. A token bucket cannot do this, because it drains at a
/// speed that depends on its quota. A bucket never refuses a key that stays within the quota in every window.
fn unlimited(rate: &Rate) -> Rate {
    let log = || {
        Rate::new(rate.quota().min(MAX_LOG), rate.window()).and_then(|rate| rate.with_strategy(Strategy::SlidingLog))
    };
    match rate.strategy() {
        Strategy::TokenBucket { .. } => log().unwrap_or_else(|_| rate.clone()),
        _ => rate.clone(),
    }
}

impl KeyStatistics {
    fn new(text: String) -> Self {
        let (told, log, peaks) = (ToldCosts::default(), ExactLog::default(), Peaks::new());
        Self {
            text: text.into_boxed_str(),
            requests: 0,
            rejected: 0,
            was_banned: false,
            told,
            log,
            demand: None,
            peaks,
        }
    }

    fn add_demand(&mut self, demand: &Limit, decided: &Decided<'_>) {
        let (rates, now) = (demand.rates(), decided.time);
        let cell = self.demand.get_or_insert_with(|| Cell::new(rates, now));
        cell.advance(rates, now);
        let in_bytes = if decided.limit.unit() == CountedUnit::Bytes { decided.demand } else { 0 };
        self.peaks.resize(rates.len(), 0);
        for (peak, usage) in self.peaks.iter_mut().zip(demand.usages(cell, now)) {
            *peak = (*peak).max(usage.used.saturating_add(decided.need.max(in_bytes)));
        }
        demand.charge(cell, now, decided.demand);
    }
}

#[derive(Clone, Debug, Default)]
struct ExactLog {
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

    fn decided(limit: &Limit, key: &str, seconds: u64, is_admitted: bool) -> (Fingerprint, Time, bool, Limit) {
        (Fingerprint::of(key.as_bytes()), Time::from_micros(seconds * 1_000_000), is_admitted, limit.clone())
    }

    fn add(statistics: &mut LimitStatistics, (key, time, is_admitted, limit): &(Fingerprint, Time, bool, Limit)) {
        let outcome = if *is_admitted { Outcome::Charged } else { Outcome::Rejected };
        let decided = Decided { key: *key, time: *time, limit, is_own: true, need: 1, cost: 1, demand: 1, outcome };
        statistics.add(&decided, || "key".to_owned());
    }

    #[test]
    fn decisions_are_compared_with_the_exact_log() {
        let limit = Limit::new("a", &["2/10s".parse().unwrap()]);
        let mut statistics = LimitStatistics::new(&limit, &[Arc::new(limit.clone())]);
        // A third admission in the window, a refusal although there was room, and a right decision.
        for (seconds, is_admitted) in [(100, true), (101, true), (102, true), (113, false), (114, true)] {
            add(&mut statistics, &decided(&limit, "a", seconds, is_admitted));
        }
        assert_eq!((statistics.counts.wrongly_admitted, statistics.counts.wrongly_rejected), (1, 1));
        assert_eq!((statistics.counts.requests, statistics.counts.rejected, statistics.keys.len()), (5, 1, 1));
    }

    proptest! {
        #[test]
        fn the_comparison_is_that_of_its_definition(
            steps in prop::collection::vec((0_u64..1_200, 0_u8..3, 1_u64..3), 1..200),
            quotas in (1_u64..8, 1_u64..30),
            bucket in 1_u64..5,
        ) {
            let rate = |quota: u64, seconds: u64| format!("{quota}/{seconds}s").parse::<Rate>().unwrap();
            let limit = Limit::new("a", &[rate(quotas.0, bucket), rate(quotas.1, 10)]);
            let mut statistics = LimitStatistics::new(&limit, &[Arc::new(limit.clone())]);
            let mut cells: HashMap<u8, Cell> = HashMap::new();
            // Everything that was admitted: key, moment and cost.
            let mut admitted: Vec<(u8, u64, u64)> = Vec::new();
            let (mut now, mut wrong) = (1_800_000_000_000_000, (0, 0));
            for (millis, key, need) in steps {
                now += millis / 4 * 4_000;
                let time = Time::from_micros(now);
                let cell = cells.entry(key).or_insert_with(|| Cell::new(limit.rates(), time));
                let is_admitted = limit.decide(cell, time, need).admitted;
                let count = |seconds: u64| {
                    let counts = admitted.iter().filter(|(of, at, _)| *of == key && at + seconds * 1_000_000 > now);
                    counts.map(|(_, _, cost)| cost).sum::<u64>()
                };
                let has_room = count(bucket) + need <= quotas.0 && count(10) + need <= quotas.1;
                wrong.0 += u64::from(is_admitted && !has_room);
                wrong.1 += u64::from(!is_admitted && has_room);
                if is_admitted {
                    admitted.push((key, now, need));
                }
                let outcome = if is_admitted { Outcome::Charged } else { Outcome::Rejected };
                let (key, limit, cost) = (Fingerprint::of(&[key]), &limit, need);
                let decided = Decided { key, time, limit, is_own: true, need, cost, demand: cost, outcome };
                statistics.add(&decided, String::new);
            }
            prop_assert_eq!((statistics.counts.wrongly_admitted, statistics.counts.wrongly_rejected), wrong);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let limit = Limit::new("a", &["2/10s".parse().unwrap()]);
        let new = || LimitStatistics::new(&limit, &[Arc::new(limit.clone())]);
        let mut statistics = LimitStatistics { max_keys: 2, ..new() };
        for key in ["a", "b", "c", "a", "c"] {
            add(&mut statistics, &decided(&limit, key, 1, true));
        }
        assert_eq!((statistics.counts.requests, statistics.keys.len(), statistics.counts.unfollowed), (5, 2, 2));
        let mut statistics = LimitStatistics { max_entries: 4, ..new() };
        // Old entries of other keys are forgotten first.
        for (key, seconds) in [("a", 1), ("a", 2), ("b", 100), ("b", 101), ("c", 102)] {
            add(&mut statistics, &decided(&limit, key, seconds, true));
        }
        assert!(statistics.counts.compared_until.is_some(), "three of four entries still count");
        assert!(statistics.peaks().is_empty());
        let mut statistics = LimitStatistics { max_entries: 4, ..new() };
        for (key, seconds) in [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("c", 102), ("c", 103)] {
            add(&mut statistics, &decided(&limit, key, seconds, true));
        }
        assert_eq!((statistics.counts.compared_until, statistics.entries), (None, 2));
    }

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
