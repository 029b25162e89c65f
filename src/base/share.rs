//! Computes shares in millionths: the one place where quotas become shares.

pub const WHOLE: u32 = 1_000_000;

/// From 0 to [`WHOLE`]. Of a capacity of 0, all is used.
pub fn share(used: u64, capacity: u64) -> u32 {
    if used >= capacity {
        return WHOLE;
    }
    let whole = u64::from(WHOLE);
    // Divides first if the capacity is too large for the product: seven digits stay exact.
    let share = used.checked_mul(whole).map_or_else(|| used / (capacity / whole), |product| product / capacity);
    u32::try_from(share).unwrap_or(WHOLE).min(WHOLE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_share_is_between_nothing_and_the_whole() {
        for (used, capacity, expected) in [(0, 4, 0), (1, 4, 250_000), (4, 4, WHOLE), (5, 4, WHOLE), (0, 0, WHOLE)] {
            assert_eq!(share(used, capacity), expected, "{used} of {capacity}");
        }
        assert_eq!(share(u64::MAX / 2, u64::MAX), 500_000);
    }

    proptest! {
        #[test]
        fn it_is_rounded_down(used in 0..=1_u64 << 40, more in 1..=1_u64 << 40) {
            let exact = u128::from(used) * u128::from(WHOLE) / u128::from(used + more);
            prop_assert_eq!(u128::from(share(used, used + more)), exact);
        }
    }
}
