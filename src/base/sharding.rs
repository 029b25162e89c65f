//! Which shard of a map a key belongs to. Clients choose keys, and the hash of a key is the same everywhere, so the choice
//! depends on a secret of the map. Otherwise a client could find keys that all meet in the shard of another client, and evict
//! its key.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;

use crate::base::fingerprint::Fingerprint;

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
    use super::*;

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
