//! Which requests pass while not all can: those of the highest priorities first.
//!
//! This is the admission level of DAGOR (Zhou et al., "Overload Control for Scaling WeChat Microservices", SoCC 2018, section
//! 4.2). A histogram of the arrived ranks says from which rank on as many requests pass as can be served. So some clients are
//! served in full, rather than all in part. Unlike DAGOR, the lowest rank that passes does so in part, so that one client with
//! most of the requests does not alternate between all and nothing.

use std::net::IpAddr;

use crate::config::HIGHEST_PRIORITY;

/// In each priority.
pub const GROUPS: usize = 32;
pub const RANKS: usize = (HIGHEST_PRIORITY as usize + 1) * GROUPS;

/// A level can admit some of these parts of a rank.
const PARTS: u32 = 256;
/// For how many seconds a client stays in its group. Then others are shed, as in DAGOR, section 4.2.2.
const REGROUPED_EVERY: u64 = 3600;

/// What is shed: everything below a rank, and a part of the requests of that rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u32);

/// The rank of a request, from its priority, its client's address and the time in seconds. The addresses of an IPv6 network of
/// 64 bits are one client.
pub fn rank(priority: u8, client: IpAddr, seconds: u64) -> usize {
    let address = match client {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        // The client chooses the other 64 bits itself.
        IpAddr::V6(address) => u64::try_from(address.to_bits() >> 64).unwrap_or_default(),
    };
    let group = mixed(address ^ mixed(seconds / REGROUPED_EVERY)) >> (u64::BITS - GROUPS.ilog2());
    usize::from(priority.min(HIGHEST_PRIORITY)) * GROUPS + usize::try_from(group).unwrap_or_default()
}

/// Spreads the bits of a number (the finalizer of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014). All gateways use the same one, so that they serve the same clients.
fn mixed(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Level {
    pub const NONE: Self = Self(0);

    /// The level at which `admitted` requests pass. `arrived` counts the requests of each rank.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the parts of a rank")]
    pub fn for_share(arrived: &[f64], admitted: f64) -> Self {
        let mut left = admitted;
        for (rank, count) in arrived.iter().enumerate().rev() {
            if *count > left {
                let shed = (1.0 - left / count) * f64::from(PARTS);
                return Self(u32::try_from(rank).unwrap_or(0) * PARTS + (shed as u32).min(PARTS));
            }
            left -= count;
        }
        Self::NONE
    }

    /// Whether a request of this rank passes. `random` is called only for the rank of which a part passes.
    pub fn admits(self, rank: usize, random: impl FnOnce() -> u8) -> bool {
        let (lowest, shed) = (self.0 / PARTS, self.0 % PARTS);
        match u32::try_from(rank).unwrap_or(u32::MAX).cmp(&lowest) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => u32::from(random()) >= shed,
            std::cmp::Ordering::Greater => true,
        }
    }

    /// How much is shed, in priorities: 2.5 is everything of the priorities 0 and 1, and half of 2.
    pub fn in_priorities(self) -> f64 {
        let per_priority = u32::try_from(GROUPS).unwrap_or(1) * PARTS;
        f64::from(self.0) / f64::from(per_priority)
    }

    /// For an atomic.
    pub fn bits(self) -> u32 {
        self.0
    }

    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shed(level: Level, rank: usize) -> usize {
        (0..=u8::MAX).filter(|random| !level.admits(rank, || *random)).count()
    }

    #[test]
    fn the_lowest_priorities_are_shed_first() {
        let mut arrived = vec![0.0; RANKS];
        arrived[rank(2, [10, 0, 0, 1].into(), 0)] = 100.0;
        arrived[rank(7, [10, 0, 0, 2].into(), 0)] = 100.0;
        let [low, high] = [rank(2, [10, 0, 0, 1].into(), 0), rank(7, [10, 0, 0, 2].into(), 0)];
        for (admitted, low_shed, high_shed) in
            [(1000.0, 0, 0), (200.0, 0, 0), (150.0, 128, 0), (100.0, 256, 0), (75.0, 256, 64), (0.0, 256, 256)]
        {
            let level = Level::for_share(&arrived, admitted);
            assert_eq!((shed(level, low), shed(level, high)), (low_shed, high_shed), "{admitted}");
        }
        assert_eq!(Level::for_share(&arrived, 200.0), Level::NONE);
    }

    #[test]
    fn clients_are_spread_and_change_their_groups() {
        let mut counts = vec![0; GROUPS];
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        (0..32_000).for_each(|number| counts[rank(0, address(number), 0)] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        let moved = (0..1000).filter(|number| rank(0, address(*number), 0) != rank(0, address(*number), 3600)).count();
        assert!(moved > 900, "{moved}");
        assert_eq!(rank(3, address(7), 0), rank(3, address(7), 3599));
        let v6 = |text: &str| rank(9, text.parse().unwrap(), 0);
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff"), "one client has a whole network");
        assert!((0..9).any(|net| v6(&format!("2001:db8:{net}::1")) != v6("2001:db8::1")));
    }

    proptest! {
        #[test]
        fn as_many_pass_as_are_wanted(counts in prop::collection::vec(0u32..1000, RANKS), share in 0.0..1.0f64) {
            let arrived: Vec<_> = counts.iter().map(|count| f64::from(*count)).collect();
            let total: f64 = arrived.iter().sum();
            let level = Level::for_share(&arrived, total * share);
            let passed = |rank: usize| f64::from(u32::try_from(256 - shed(level, rank)).unwrap()) / 256.0;
            let sum: f64 = arrived.iter().enumerate().map(|(rank, count)| count * passed(rank)).sum();
            let rounding = arrived.iter().copied().fold(0.0, f64::max) / 256.0 + 1e-6;
            prop_assert!((sum - total * share).abs() <= rounding, "{sum} of {total} instead of {share}");
            let shares: Vec<_> = (0..RANKS).map(passed).collect();
            prop_assert!(shares.is_sorted(), "a lower rank passes more");
            prop_assert!(level.in_priorities() <= 10.0);
        }
    }
}
