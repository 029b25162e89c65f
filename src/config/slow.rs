//! `slow`: requests that a limit admits are held, the longer the fuller the limit is.

use std::time::Duration;

use crate::base::share::WHOLE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// The share of a rate from which requests are held, in millionths, below [`WHOLE`].
    pub from: u32,
    /// The hold if a rate is fully used.
    pub up_to: Duration,
    /// The maximum number of held requests per key in this process, at least 1.
    pub max_delayed: usize,
}

impl Slow {
    /// The hold of a request that finds this share of a rate used, in millionths: proportional to the excess over `from`.
    pub fn hold(&self, level: u32) -> Duration {
        let over = level.min(WHOLE).saturating_sub(self.from);
        self.up_to * over / WHOLE.saturating_sub(self.from).max(1)
    }

    /// As the file spells it.
    pub fn from_as_fraction(&self) -> f64 {
        f64::from(self.from) / f64::from(WHOLE)
    }

    pub fn in_words(&self) -> String {
        let Self { up_to, max_delayed, .. } = self;
        let percent = f64::from(self.from) / f64::from(WHOLE / 100);
        format!(
            "held from {percent} % of a rate on, for up to {up_to:?} at 100 %, at most {max_delayed} per key at the same time"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slow(from: u32, up_to: Duration) -> Slow {
        Slow { from, up_to, max_delayed: 100 }
    }

    #[test]
    fn a_request_is_held_in_proportion() {
        let slow = slow(800_000, Duration::from_secs(2));
        for (level, millis) in [(0, 0), (800_000, 0), (850_000, 500), (900_000, 1000), (990_000, 1900), (WHOLE, 2000)] {
            assert_eq!(slow.hold(level), Duration::from_millis(millis), "{level}");
        }
        assert_eq!(
            slow.in_words(),
            "held from 80 % of a rate on, for up to 2s at 100 %, at most 100 per key at the same time"
        );
    }

    proptest! {
        #[test]
        fn nobody_is_held_longer_than_that(from in 0..WHOLE, levels in prop::array::uniform2(0..=2 * WHOLE), seconds in 0..=300_u64) {
            let slow = slow(from, Duration::from_secs(seconds));
            let [low, high] = [levels[0].min(levels[1]), levels[0].max(levels[1])];
            prop_assert!(slow.hold(low) <= slow.hold(high) && slow.hold(high) <= slow.up_to);
            prop_assert_eq!(slow.hold(from), Duration::ZERO);
            prop_assert_eq!(slow.hold(WHOLE), slow.up_to);
        }
    }
}
