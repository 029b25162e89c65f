//! The requests of the last minutes by outcome and second, and the refusals of the last hour by limit and minute.
//!
//! Requests are totals, and the page computes rates from their differences, so a missing second distorts nothing. The admin
//! thread reads the workers' counters once a second, which costs the workers nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::admin::dashboard;
use crate::base::clock::Time;
use crate::proxy::telemetry::Outcome;

/// One sample a second.
const SAMPLES: usize = 300;
/// For each limit.
const MINUTES: usize = 60;

/// In the order of [`Outcome::ALL`].
pub(super) type ByOutcome = [u64; Outcome::ALL.len()];

#[derive(Debug, Default)]
pub(super) struct History {
    /// The counts at the last reading.
    routes: BTreeMap<String, ByOutcome>,
    /// Requests of all routes since the start. The total does not shrink when a reload removes routes with their counters.
    pub(super) total: ByOutcome,
    /// The oldest first.
    samples: VecDeque<(Time, ByOutcome)>,
    /// The minute of the newest buckets, since 1970.
    pub(super) minute: u64,
    limits: BTreeMap<String, Refusals>,
}

#[derive(Debug, Default)]
struct Refusals {
    /// The count at the last reading.
    counted: u64,
    /// By minute, the oldest first.
    by_minute: VecDeque<u64>,
}

impl History {
    /// Records what routes and limits have counted until `now`, and forgets those that have gone.
    pub(super) fn record<'a>(
        &mut self,
        now: Time,
        routes: impl Iterator<Item = (&'a str, ByOutcome)>,
        limits: impl Iterator<Item = (&'a str, u64)>,
    ) {
        let mut earlier = std::mem::take(&mut self.routes);
        for (name, counted) in routes {
            let (name, before) = earlier.remove_entry(name).unwrap_or_else(|| (name.to_owned(), ByOutcome::default()));
            for ((total, now), before) in self.total.iter_mut().zip(counted).zip(before) {
                *total += grown(before, now);
            }
            self.routes.insert(name, counted);
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, self.total));
        self.record_limits(now.seconds() / 60, limits);
    }

    fn record_limits<'a>(&mut self, minute: u64, limits: impl Iterator<Item = (&'a str, u64)>) {
        // If the clock was set back, the buckets only get other times.
        let passed = usize::try_from(minute.saturating_sub(self.minute)).unwrap_or(MINUTES).min(MINUTES);
        self.minute = minute;
        let mut earlier = std::mem::take(&mut self.limits);
        for (name, counted) in limits {
            let found = earlier.remove_entry(name);
            let (name, mut refusals) = found.unwrap_or_else(|| (name.to_owned(), Refusals::default()));
            refusals.advance(passed);
            if let Some(last) = refusals.by_minute.back_mut() {
                *last += grown(refusals.counted, counted);
            }
            refusals.counted = counted;
            self.limits.insert(name, refusals);
        }
    }

    /// When the total was read last.
    pub(super) fn time(&self) -> Option<Time> {
        self.samples.back().map(|(time, _)| *time)
    }

    pub(super) fn refused_this_minute(&self, limit: &str) -> u64 {
        self.limits.get(limit).and_then(|refusals| refusals.by_minute.back()).copied().unwrap_or(0)
    }

    pub(super) fn refused_in_hour(&self, limit: &str) -> u64 {
        self.limits.get(limit).map_or(0, |refusals| refusals.by_minute.iter().sum())
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = (&str, &ByOutcome)> {
        self.routes.iter().map(|(name, counted)| (name.as_str(), counted))
    }

    /// Leaves out outcomes that never occurred.
    pub(super) fn describe(&self) -> dashboard::History {
        let totals = |index: usize| self.samples.iter().map(|(_, total)| total[index]).collect();
        let occurred = Outcome::ALL.iter().enumerate().filter(|(index, _)| self.total[*index] > 0);
        let by_minute = |refusals: &Refusals| refusals.by_minute.iter().copied().collect();
        dashboard::History {
            times_ms: self.samples.iter().map(|(time, _)| time.micros() / 1000).collect(),
            requests: occurred.map(|(index, outcome)| (outcome.name().to_owned(), totals(index))).collect(),
            minute: self.minute,
            refused_by_minute: self.limits.iter().map(|(name, limit)| (name.clone(), by_minute(limit))).collect(),
        }
    }
}

impl Refusals {
    fn advance(&mut self, minutes: usize) {
        if self.by_minute.is_empty() {
            self.by_minute.resize(MINUTES, 0);
        }
        for _ in 0..minutes.min(MINUTES) {
            self.by_minute.pop_front();
            self.by_minute.push_back(0);
        }
    }
}

/// The growth of a counter. A counter that is smaller than before has started again.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    fn forwarded(count: u64) -> ByOutcome {
        let mut all = ByOutcome::default();
        all[Outcome::Forwarded as usize] = count;
        all
    }

    fn record(history: &mut History, seconds: u64, refused: u64) {
        history.record(at(seconds), [].into_iter(), [("l", refused)].into_iter());
    }

    fn by_minute(history: &History) -> Vec<u64> {
        history.limits["l"].by_minute.iter().copied().collect()
    }

    #[test]
    fn refusals_go_to_the_minute_in_which_they_were_counted() {
        let mut history = History::default();
        for (seconds, refused) in [(600, 5), (659, 7), (660, 8), (780, 8), (839, 20)] {
            record(&mut history, seconds, refused);
        }
        let buckets = by_minute(&history);
        assert_eq!((buckets.len(), &buckets[MINUTES - 4..]), (MINUTES, &[7, 1, 0, 12][..]));
        assert_eq!((history.minute, history.refused_this_minute("l")), (13, 12));
        record(&mut history, 839 + 3600, 21);
        assert_eq!(by_minute(&history).iter().sum::<u64>(), 1, "an hour later only the new ones are left");
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_the_buckets() {
        let mut history = History::default();
        record(&mut history, 6000, 5);
        record(&mut history, 6060, 6);
        record(&mut history, 1000, 9);
        assert_eq!(by_minute(&history)[MINUTES - 2..], [5, 4]);
        record(&mut history, 1060, 10);
        assert_eq!(by_minute(&history)[MINUTES - 3..], [5, 4, 1]);
        record(&mut history, u64::MAX / 1_000_000, 10);
        assert_eq!(by_minute(&history).iter().sum::<u64>(), 0);
    }

    #[test]
    fn totals_never_shrink_when_a_route_or_its_counters_are_gone() {
        let mut history = History::default();
        let mut record = |seconds, routes: &[(&'static str, u64)]| {
            let routes = routes.iter().map(|(name, count)| (*name, forwarded(*count)));
            history.record(at(seconds), routes, [].into_iter());
            history.total[Outcome::Forwarded as usize]
        };
        assert_eq!(record(1, &[("a", 10), ("b", 5)]), 15);
        assert_eq!(record(2, &[("a", 12)]), 17);
        assert_eq!(record(3, &[("a", 12), ("b", 1)]), 18);
        assert_eq!(record(4, &[("a", 2), ("b", 1)]), 20);
    }

    #[test]
    fn memory_is_bounded_and_names_that_are_gone_are_forgotten() {
        let mut history = History::default();
        for second in 0..1000 {
            let name = format!("route-{second}");
            history.record(at(second), [(&*name, forwarded(1))].into_iter(), [(&*name, 1)].into_iter());
        }
        assert_eq!((history.samples.len(), history.routes.len(), history.limits.len()), (SAMPLES, 1, 1));
        let shown = history.describe();
        assert_eq!(shown.times_ms.len(), SAMPLES);
        assert_eq!(shown.times_ms[SAMPLES - 1], 999_000);
        assert_eq!(shown.requests["forwarded"][SAMPLES - 1], 1000);
        assert_eq!(shown.requests.len(), 1, "other outcomes did not occur");
        assert_eq!(shown.refused_by_minute["route-999"][MINUTES - 1], 1);
    }
}
