//! The exact global sliding window, to judge a fleet.

use gateway::limit::{Edge, Rate, Strategy};

/// How much admissions exceeded a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Excess {
    /// The most that was admitted in any window, and how much this exceeds the limit.
    pub(crate) highest: u64,
    pub(crate) most: u64,
    /// The mean over all admissions of the excess in the window that ends with each.
    pub(crate) mean: f64,
    admissions: u64,
}

impl Excess {
    /// For one key. The times of its admissions are in nanoseconds, in any order.
    pub(crate) fn of(times: &mut [u64], quota: u64, window: u64) -> Self {
        times.sort_unstable();
        let (mut first, mut highest, mut sum) = (0, 0, 0);
        for (index, time) in times.iter().enumerate() {
            while times[first] + window <= *time {
                first += 1;
            }
            let count = (index - first + 1) as u64;
            highest = highest.max(count);
            sum += count.saturating_sub(quota);
        }
        let admissions = times.len() as u64;
        let mean = sum as f64 / admissions.max(1) as f64;
        Self { highest, most: highest.saturating_sub(quota), mean, admissions }
    }

    /// For several keys together.
    pub(crate) fn with(self, other: Self) -> Self {
        let admissions = self.admissions + other.admissions;
        let sum = self.mean * self.admissions as f64 + other.mean * other.admissions as f64;
        let (highest, most) = (self.highest.max(other.highest), self.most.max(other.most));
        Self { highest, most, mean: sum / admissions.max(1) as f64, admissions }
    }
}

/// A sliding window that by itself never admits more than its quota in any window, so all excess comes from the fleet.
pub(crate) fn exactly(rate: &str) -> Rate {
    let strategy = Strategy::SlidingWindow { precision: 10, edge: Edge::Whole };
    rate.parse::<Rate>().unwrap().with_strategy(strategy).unwrap()
}
