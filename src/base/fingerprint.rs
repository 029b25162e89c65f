//! A hash of 128 bits for a client's key, and which shard of a map a key belongs to.
//!
//! The hash is the same on every machine and does not reveal the key. It is BLAKE3 in a domain of the limit's name, without
//! a secret, so that gateways agree without sharing one. Clients choose keys, so the choice of a shard depends on a secret
//! of the map. Otherwise a client could find keys that all meet in the shard of another client, and evict its key.

use std::fmt;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;

use super::hex;

/// The first half of a BLAKE3 hash. The hash is cryptographic, so clients cannot find two keys that share a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u128);

/// Keeps the keys of different limits apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain([u8; 32]);

impl Domain {
    pub fn new(name: &str) -> Self {
        Self(*blake3::hash(name.as_bytes()).as_bytes())
    }

    pub fn fingerprint(&self, bytes: &[u8]) -> Fingerprint {
        Fingerprint::cut(&blake3::keyed_hash(&self.0, bytes))
    }
}

impl Fingerprint {
    /// Without a domain.
    pub fn of(bytes: &[u8]) -> Self {
        Self::cut(&blake3::hash(bytes))
    }

    /// Combining a value twice removes it again, since XOR cancels.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    pub fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn low(self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "the top 64 bits are not wanted")]
        let low = self.0 as u64;
        low
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        let (high, low) = digits.split_at_mut(16);
        high.copy_from_slice(&hex::digits(self.high()));
        low.copy_from_slice(&hex::digits(self.low()));
        digits
    }

    fn cut(hash: &blake3::Hash) -> Self {
        let (half, _) = hash.as_bytes().split_at(16);
        Self(half.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug, Default)]
pub struct Sharding(RandomState);

impl Sharding {
    /// 0 if there are no shards.
    pub fn shard(&self, key: Fingerprint, shards: usize) -> usize {
        let hash = u128::from(self.0.hash_one(key.high()));
        // The highest bits decide, so any number of shards gets equal shares.
        usize::try_from((hash * shards as u128) >> 64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_are_what_is_displayed(bits: u128) {
            let fingerprint = Fingerprint(bits);
            prop_assert_eq!(fingerprint.digits().to_vec(), fingerprint.to_string().into_bytes());
        }
    }

    #[test]
    fn keys_that_meet_in_one_map_are_apart_in_another() {
        const SHARDS: usize = 64;
        let (one, other) = (Sharding::default(), Sharding::default());
        let keys = (0..64_000_u32).map(|key| Fingerprint::of(&key.to_be_bytes()));
        let met: Vec<_> = keys.filter(|key| one.shard(*key, SHARDS) == 0).collect();
        assert!((800..1200).contains(&met.len()), "{}", met.len());
        let mut counts = [0; SHARDS];
        met.iter().for_each(|key| counts[other.shard(*key, SHARDS)] += 1);
        assert!(counts.iter().all(|count| *count < 100), "{counts:?}");
        assert_eq!(one.shard(met[0], 1), 0);
    }
}
