//! The last readings of numbers that only grow, from which rates are computed. A reading that was missed changes nothing.

use std::collections::VecDeque;

use super::format::float;

/// How much older than asked a reading may be, in milliseconds, since one comes about each second.
const TOLERANCE: u64 = 500;

/// Readings with their times in milliseconds since 1970, the oldest first.
#[derive(Debug)]
pub(super) struct Recent<T> {
    /// For how many milliseconds readings are kept.
    span: u64,
    all: VecDeque<(u64, T)>,
}

/// What has changed between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth<'a, T> {
    pub(super) before: &'a T,
    pub(super) now: &'a T,
    /// The time in between; more than 0.
    pub(super) seconds: f64,
}

impl<T> Recent<T> {
    /// None yet.
    pub(super) fn new(span: u64) -> Self {
        Self { span, all: VecDeque::new() }
    }

    /// Adds a reading. One of the same time as the last is left out. If time has gone back, the others are forgotten.
    pub(super) fn add(&mut self, time: u64, reading: T) {
        match self.all.back() {
            Some((last, _)) if *last == time => return,
            Some((last, _)) if *last > time => self.all.clear(),
            _ => {}
        }
        self.all.push_back((time, reading));
        let oldest = time.saturating_sub(self.span + TOLERANCE);
        while self.all.front().is_some_and(|(time, _)| *time < oldest) {
            self.all.pop_front();
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// What has changed in the last `milliseconds`; `None` if there are no two readings.
    pub(super) fn growth(&self, milliseconds: u64) -> Option<Growth<'_, T>> {
        let (end, _) = self.all.back()?;
        self.between(end.saturating_sub(milliseconds + TOLERANCE), *end)
    }

    /// What has changed in each of `count` equal parts of the time for which readings are kept, the oldest first.
    pub(super) fn parts(&self, count: usize) -> Vec<Option<Growth<'_, T>>> {
        let (Some((end, _)), parts) = (self.all.back(), count as u64) else { return Vec::new() };
        let edge = |part: u64| end.saturating_sub(self.span * (parts - part) / parts);
        // A part shorter than the time between readings begins with the last one before it.
        let begin = |part: u64| edge(part).saturating_sub(2 * TOLERANCE);
        (0..parts).map(|part| self.between(begin(part), edge(part + 1))).collect()
    }

    /// From the first reading not before `begin` to the last not after `end`.
    fn between(&self, begin: u64, end: u64) -> Option<Growth<'_, T>> {
        let first = self.all.get(self.all.partition_point(|(time, _)| *time < begin))?;
        let last = self.all.get(self.all.partition_point(|(time, _)| *time <= end).checked_sub(1)?)?;
        let milliseconds = last.0.checked_sub(first.0).filter(|milliseconds| *milliseconds > 0)?;
        Some(Growth { before: &first.1, now: &last.1, seconds: float(milliseconds) / 1000.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(parts: &[Option<Growth<'_, u64>>]) -> Vec<Option<f64>> {
        parts.iter().map(|part| part.map(|part| float(part.now - part.before) / part.seconds)).collect()
    }

    #[test]
    fn rates_are_differences_over_the_wanted_time() {
        let mut recent = Recent::new(10_000);
        assert!(recent.growth(5_000).is_none() && recent.parts(4).is_empty());
        for second in 0..100_u64 {
            // 10 per second, and then 20.
            recent.add(1_000 * second, if second <= 95 { 10 * second } else { 950 + 20 * (second - 95) });
        }
        assert_eq!(recent.all.len(), 11);
        let growth = recent.growth(2_000).unwrap();
        assert_eq!((growth.now - growth.before, growth.seconds), (40, 2.0));
        // Missing readings change nothing.
        recent.all.remove(9);
        assert_eq!(rates(&[recent.growth(3_000)]), [Some(20.0)]);
    }

    #[test]
    fn parts_without_readings_are_unknown() {
        let mut recent = Recent::new(10_000);
        for second in 50..55_u64 {
            recent.add(1_000 * second, 7 * second);
        }
        assert_eq!(rates(&recent.parts(5)), [None, None, None, Some(7.0), Some(7.0)]);
        // More parts than readings.
        assert_eq!(rates(&recent.parts(20))[15..], [Some(7.0); 5]);
        assert!(rates(&recent.parts(20))[..11].iter().all(Option::is_none));
    }

    #[test]
    fn a_clock_that_is_set_back_begins_anew() {
        let mut recent = Recent::new(10_000);
        for (time, reading) in [(5_000, 1), (6_000, 2), (6_000, 3)] {
            recent.add(time, reading);
        }
        assert_eq!(recent.all.back(), Some(&(6_000, 2)));
        recent.add(1_000, 4);
        assert_eq!((recent.all.len(), recent.growth(5_000).is_none()), (1, true));
        recent.add(u64::MAX, 5);
        assert_eq!((recent.all.len(), recent.parts(3).len()), (1, 3));
    }
}
