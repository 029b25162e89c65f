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
pub struct Fingerprint {
    // Not a `u128`, whose alignment would make everything larger that contains one.
    high: u64,
    low: u64,
}

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
        Self { high: self.high ^ other.high, low: self.low ^ other.low }
    }

    pub fn high(self) -> u64 {
        self.high
    }

    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.high) << 64 | u128::from(self.low)).to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = |half: &[u8]| half.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        let (high, low) = bytes.split_at(8);
        Self { high: number(high), low: number(low) }
    }

    pub fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        let (high, low) = digits.split_at_mut(16);
        high.copy_from_slice(&hex::digits(self.high));
        low.copy_from_slice(&hex::digits(self.low));
        digits
    }

    fn cut(hash: &blake3::Hash) -> Self {
        Self::from_bytes(*hash.as_bytes().first_chunk().unwrap_or(&[0; 16]))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
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
        fn digits_are_what_is_displayed(bytes: [u8; 16]) {
            let fingerprint = Fingerprint::from_bytes(bytes);
            prop_assert_eq!(fingerprint.to_bytes(), bytes);
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
