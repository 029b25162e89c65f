//! The jitter of Retry-After: clients that were refused in the same window are told different moments, so that they do not
//! all come back at the first one with room.

use super::forms::{SECOND, seconds};
use crate::base::clock::Time;

/// A moment from `until` on: later by a part of the wait that `random` chooses, up to `percent` of it.
///
/// In whole seconds, rounded up, it is not later by more than that either. So a share below a second adds no second.
pub(super) fn later(now: Time, until: Time, percent: u64, random: u64) -> Time {
    let wait = until.micros_since(now);
    let share = u64::try_from(u128::from(wait) * u128::from(percent) / 100).unwrap_or(u64::MAX);
    let latest = seconds(now, until).saturating_add(share / SECOND).saturating_mul(SECOND);
    let most = share.min(latest.saturating_sub(wait));
    let chosen = (u128::from(random) * (u128::from(most) + 1)) >> 64;
    until.after_micros(u64::try_from(chosen).unwrap_or(most))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const NOW: Time = Time::from_micros(1_700_000_000_300_000);

    proptest! {
        #[test]
        fn it_is_never_earlier_and_at_most_the_share_later(
            wait in 0_u64..1 << 42, shift in 0_u32..42, percent in 0_u64..=100, random: u64,
        ) {
            let until = NOW.after_micros(wait >> shift);
            let later = later(NOW, until, percent, random);
            prop_assert!(later >= until);
            prop_assert!(later.micros_since(until) * 100 <= until.micros_since(NOW) * percent);
            let (exact, told) = (seconds(NOW, until), seconds(NOW, later));
            prop_assert!(told * 100 <= exact * (100 + percent), "{exact}: {told}");
        }
    }

    #[test]
    fn moments_are_spread_over_the_whole_share() {
        let told = |wait, percent| -> BTreeSet<u64> {
            let until = NOW.after_micros(wait);
            (0..=u64::from(u16::MAX)).map(|part| seconds(NOW, later(NOW, until, percent, part << 48))).collect()
        };
        assert_eq!(told(60_000_000, 10), (60..=66).collect());
        assert_eq!(told(59_000_001, 10), (60..=65).collect(), "a tenth is less than six seconds");
        assert_eq!(told(3_200_000, 100), (4..=7).collect());
        assert_eq!(told(9_000_000, 10), [9].into(), "a tenth is less than a second");
        assert_eq!([told(60_000_000, 0), told(0, 100)], [[60].into(), [0].into()]);
        let last = later(NOW, Time::MAX, 100, u64::MAX);
        assert_eq!(last, Time::MAX);
    }
}
