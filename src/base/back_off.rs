//! How long to wait before the next attempt. The caller counts the failures, and waits.

use std::time::Duration;

/// Pauses that double.
#[derive(Clone, Copy, Debug)]
pub struct BackOff {
    /// After one failure.
    pub first: Duration,
    pub longest: Duration,
}

impl BackOff {
    /// After `failures` in a row; zero without failures.
    pub fn pause(self, failures: u32) -> Duration {
        let doubled = |doublings: u32| self.first.saturating_mul(1 << doublings.min(31)).min(self.longest);
        failures.checked_sub(1).map_or(Duration::ZERO, doubled)
    }
}

/// A random time that is shorter than `longest` by at most `share` of it, so that things that began together do not continue
/// together.
pub fn jittered(longest: Duration, share: f64) -> Duration {
    longest.mul_f64(1.0 - fastrand::f64() * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let back_off = BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };
        let pauses = [0, 1, 2, 3, 6, 7, 32, 33, u32::MAX].map(|failures| back_off.pause(failures).as_millis());
        assert_eq!(pauses, [0, 100, 200, 400, 3200, 5000, 5000, 5000, 5000]);
        let long = BackOff { first: Duration::MAX / 2, longest: Duration::MAX };
        assert_eq!([1, 3, 99].map(|failures| long.pause(failures)), [long.first, Duration::MAX, Duration::MAX]);
    }

    #[test]
    fn jitter_is_bounded_and_differs() {
        let longest = Duration::from_secs(1);
        let times: Vec<_> = (0..100).map(|_| jittered(longest, 0.5)).collect();
        assert!(times.iter().all(|time| (longest / 2..=longest).contains(time)), "{times:?}");
        assert!(times.iter().any(|time| *time != times[0]), "always the same");
    }
}
