//! The exact global sliding window, by which a fleet is judged.

/// By how much admissions have exceeded a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Excess {
    /// The most in any window, less the limit.
    pub(crate) most: u64,
    /// The mean over all admissions of what the window that ends with each has too much.
    pub(crate) mean: f64,
    admissions: u64,
}

impl Excess {
    /// Of one key, from the times of its admissions in nanoseconds, in any order.
    pub(crate) fn of(times: &mut [u64], quota: u64, window: u64) -> Self {
        times.sort_unstable();
        let (mut first, mut most, mut sum) = (0, 0, 0);
        for (index, time) in times.iter().enumerate() {
            while times[first] + window <= *time {
                first += 1;
            }
            let over = ((index - first + 1) as u64).saturating_sub(quota);
            most = most.max(over);
            sum += over;
        }
        let admissions = times.len() as u64;
        Self { most, mean: sum as f64 / admissions.max(1) as f64, admissions }
    }

    /// Of several keys together.
    pub(crate) fn with(self, other: Self) -> Self {
        let admissions = self.admissions + other.admissions;
        let sum = self.mean * self.admissions as f64 + other.mean * other.admissions as f64;
        Self { most: self.most.max(other.most), mean: sum / admissions.max(1) as f64, admissions }
    }
}
