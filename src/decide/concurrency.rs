//! How many requests of a key are under way in this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::fingerprint::Fingerprint;

/// Enough that workers seldom meet.
const SHARDS: u64 = 64;

/// The requests under way, by key. Nothing is kept of a key without any.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    shards: Box<[Shard]>,
}

type Shard = Mutex<HashMap<Fingerprint, u64, RandomState>>;

/// A request under way; dropping it ends it.
#[derive(Debug)]
pub struct ConcurrencyPermit {
    concurrency: Arc<ConcurrencyLimiter>,
    key: Fingerprint,
}

impl Default for ConcurrencyLimiter {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl ConcurrencyLimiter {
    /// Lets one more of this key go if fewer than `most` are under way; and how many more could then.
    pub fn enter(self: &Arc<Self>, key: Fingerprint, most: u64) -> Option<(ConcurrencyPermit, u64)> {
        let mut shard = self.shard(key).lock();
        let under_way = shard.entry(key).or_insert(0);
        let left = most.checked_sub(*under_way + 1)?;
        *under_way += 1;
        Some((ConcurrencyPermit { concurrency: self.clone(), key }, left))
    }

    /// How many keys have requests under way.
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, key: Fingerprint) -> &Shard {
        &self.shards[usize::try_from(key.high() % SHARDS).unwrap_or(0)]
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut under_way) = self.concurrency.shard(self.key).lock().entry(self.key) {
            match under_way.get() - 1 {
                0 => drop(under_way.remove()),
                less => *under_way.get_mut() = less,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_come_back_and_leave_nothing_behind() {
        let concurrency = Arc::new(ConcurrencyLimiter::default());
        let (a, b) = (Fingerprint::of(b"a"), Fingerprint::of(b"b"));
        let (first, left) = concurrency.enter(a, 2).unwrap();
        assert_eq!(left, 1);
        let (second, left) = concurrency.enter(a, 2).unwrap();
        assert_eq!(left, 0);
        assert!(concurrency.enter(a, 2).is_none());
        assert!(concurrency.enter(b, 1).is_some());
        drop(first);
        assert!(concurrency.enter(a, 2).is_some());
        drop(second);
        assert_eq!(concurrency.keys(), 0);
    }
}
