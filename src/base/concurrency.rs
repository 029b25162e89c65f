//! Counts what a key has at the same time in this process: requests in flight, or connections.
//!
//! A place under `max_in_flight` is released when the request ends, and while it is held.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::base::fingerprint::{Fingerprint, Sharding};

/// Enough that workers seldom wait for the same lock.
const SHARDS: usize = 64;

/// The number of requests in flight by key. A key with none has no entry.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    shards: Box<[ConcurrencyShard]>,
    sharding: Sharding,
}

type ConcurrencyShard = Mutex<HashMap<Fingerprint, u64, RandomState>>;

/// Counts one request as in flight until it is dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit {
    concurrency: Arc<ConcurrencyLimiter>,
    key: Fingerprint,
}

impl Default for ConcurrencyLimiter {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), sharding: Sharding::default() }
    }
}

impl ConcurrencyLimiter {
    /// Counts a request of this key if there is room. Returns its permit and the number of places that are still free.
    pub fn acquire(self: &Arc<Self>, key: Fingerprint, max_in_flight: u64) -> Option<(ConcurrencyPermit, u64)> {
        let mut shard = self.shard(key).lock();
        let in_flight = shard.entry(key).or_insert(0);
        let remaining = max_in_flight.checked_sub(*in_flight + 1)?;
        *in_flight += 1;
        Some((ConcurrencyPermit { concurrency: self.clone(), key }, remaining))
    }

    fn shard(&self, key: Fingerprint) -> &ConcurrencyShard {
        &self.shards[self.sharding.shard(key, SHARDS)]
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut in_flight) = self.concurrency.shard(self.key).lock().entry(self.key) {
            match in_flight.get() - 1 {
                0 => drop(in_flight.remove()),
                less => *in_flight.get_mut() = less,
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
        let (first, remaining) = concurrency.acquire(a, 2).unwrap();
        assert_eq!(remaining, 1);
        let (second, remaining) = concurrency.acquire(a, 2).unwrap();
        assert_eq!(remaining, 0);
        assert!(concurrency.acquire(a, 2).is_none());
        assert!(concurrency.acquire(b, 1).is_some());
        drop(first);
        assert!(concurrency.acquire(a, 2).is_some());
        drop(second);
        assert!(concurrency.shards.iter().all(|shard| shard.lock().is_empty()));
    }
}
