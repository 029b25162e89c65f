//! When requests came and were rejected, in a bounded number of intervals. The intervals double whenever time exceeds
//! them.

use crate::base::clock::Time;

const INTERVALS: usize = 240;
/// In seconds.
const SHORTEST: u64 = 1;

#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    /// In seconds since 1970.
    start: Option<u64>,
    /// In seconds.
    width: u64,
    intervals: Vec<Interval>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) requests: u64,
    pub(super) rejected: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Columns {
    /// In seconds since 1970.
    pub(super) start: u64,
    /// In seconds.
    pub(super) width: u64,
    pub(super) columns: Vec<Interval>,
}

impl Interval {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.rejected += other.rejected;
    }
}

impl Timeline {
    /// Requests from before the first one count as of its moment.
    pub(super) fn add(&mut self, time: Time, is_rejected: bool) {
        let start = *self.start.get_or_insert(time.seconds());
        let after = time.seconds().saturating_sub(start);
        self.width = self.width.max(SHORTEST);
        while after / self.width >= INTERVALS as u64 {
            self.intervals = merged(&self.intervals, 2);
            self.width *= 2;
        }
        let at = usize::try_from(after / self.width).unwrap_or(0);
        if self.intervals.len() <= at {
            self.intervals.resize(at + 1, Interval::default());
        }
        if let Some(interval) = self.intervals.get_mut(at) {
            interval.add(Interval { requests: 1, rejected: u64::from(is_rejected) });
        }
    }

    pub(super) fn columns(&self, most: usize) -> Columns {
        let together = self.intervals.len().div_ceil(most.max(1)).max(1);
        let width = self.width.saturating_mul(together as u64);
        Columns { start: self.start.unwrap_or(0), width, columns: merged(&self.intervals, together) }
    }
}

/// Adds up groups of `together` intervals.
fn merged(intervals: &[Interval], together: usize) -> Vec<Interval> {
    let sum = |intervals: &[Interval]| {
        let mut sum = Interval::default();
        intervals.iter().for_each(|interval| sum.add(*interval));
        sum
    };
    intervals.chunks(together).map(sum).collect()
}

/// One character for each value: a bar as high as the value's share of the largest one. Zero is a space, and every other
/// value is visible.
pub(super) fn sparkline(values: impl Iterator<Item = u64> + Clone) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.clone().max().unwrap_or(0).max(1);
    let bar = |value: u64| match value {
        0 => ' ',
        _ => {
            let height = u128::from(value) * BARS.len() as u128;
            let at = height.div_ceil(u128::from(most)).saturating_sub(1);
            usize::try_from(at).ok().and_then(|at| BARS.get(at)).copied().unwrap_or('█')
        }
    };
    values.map(bar).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn intervals_double_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        for second in 0..10_000 {
            timeline.add(Time::from_micros((5_000 + second) * 1_000_000), second >= 5_000);
        }
        assert_eq!((timeline.width, timeline.intervals.len()), (64, 157));
        let columns = timeline.columns(60);
        assert_eq!((columns.start, columns.width, columns.columns.len()), (5_000, 192, 53));
        assert_eq!(columns.columns[0], Interval { requests: 192, rejected: 0 });
        assert_eq!(columns.columns.iter().map(|column| column.rejected).sum::<u64>(), 5_000);
    }

    #[test]
    fn every_value_but_zero_is_visible() {
        assert_eq!(sparkline([0, 1, 50, 99, 100].into_iter()), " ▁▄██");
        assert_eq!(sparkline([u64::MAX, 1].into_iter()), "█▁");
        assert_eq!(sparkline([0, 0].into_iter()), "  ");
        assert_eq!(sparkline(std::iter::empty()), "");
    }

    proptest! {
        #[test]
        fn the_number_of_intervals_is_bounded(times: Vec<u64>, most in 0_usize..100) {
            let mut timeline = Timeline::default();
            times.iter().for_each(|time| timeline.add(Time::from_micros(*time), false));
            prop_assert!(timeline.intervals.len() <= INTERVALS);
            let columns = timeline.columns(most).columns;
            prop_assert!(columns.len() <= most.max(1));
            prop_assert_eq!(columns.iter().map(|column| column.requests).sum::<u64>(), times.len() as u64);
        }
    }
}
