//! The quotas of keys, in bounded memory, for all workers.
//!
//! Clients can invent keys, but cannot make a source know them. So if there is no room, keys that the source does not know
//! are evicted first, except for a small share of the room, and lookups under way are kept apart from both. No cache crate is
//! used, because they evict by frequency of use, not by what the source has answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashlink::LinkedHashMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::yield_now;

use super::announced::Changed;
use super::quota::Quota;
use crate::base::back_off::{BackOff, jittered};
use crate::base::clock::Time;
use crate::base::fingerprint::{Fingerprint, Sharding};
use crate::base::metrics::SharedCounter;

/// With many shards, workers seldom wait for each other.
const MOST_SHARDS: usize = 64;

/// There is one shard for each this many keys, up to the maximum.
const KEYS_PER_SHARD: usize = 64;

/// A divisor: this share of a full shard is kept for keys that the source does not know. Otherwise each of their requests
/// would ask the source.
const RESERVED: usize = 16;

/// Pauses before a key whose lookups fail is looked up again.
const REPEATS: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

#[derive(Clone, Debug)]
pub(super) enum LookupAnswer {
    Quota(Arc<Quota>),
    Absent,
    /// The answer for this key is unusable; other keys have answers.
    Unusable,
    /// The source is unavailable, so no key has an answer.
    Nothing,
}

/// An entry of the cache.
#[derive(Clone, Debug)]
pub struct CachedQuota {
    /// `None` if the source does not know the key, or has never answered.
    pub quota: Option<Arc<Quota>>,
    /// The time of the last answer.
    pub answered: Option<Time>,
    /// The begin and the end of the time in which the key is not looked up again.
    fresh: (Time, Time),
    /// Failed lookups in a row.
    pub failures: u32,
    /// Whether the source has announced a change since the last answer.
    has_changed: bool,
    /// A hash of the key in the form in which it is sent.
    sent: Fingerprint,
}

impl CachedQuota {
    /// Whether the key must be looked up again.
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.fresh.1 || now.is_set_back_from(self.fresh.0)
    }

    /// Whether requests wait while the key is looked up again: the last answer has changed, or its key was idle for so long that
    /// nothing has renewed it in time.
    fn is_outdated(&self, now: Time, cache_for: Duration) -> bool {
        self.has_changed || self.answered.is_some_and(|answered| now >= answered.after(cache_for * 2))
    }

    fn expire(&mut self) {
        self.fresh = (Time::from_micros(0), Time::from_micros(0));
        self.has_changed = true;
    }
}

#[derive(Default)]
struct Shard {
    /// Keys that the source knows, the least recently used first.
    known: Entries,
    /// All other keys, in the same order.
    others: Entries,
    /// Lookups under way; a receiver is woken when its lookup has ended.
    under_way: HashMap<Fingerprint, watch::Receiver<()>, RandomState>,
}

impl Shard {
    /// Also marks the key as just used.
    fn find(&mut self, key: Fingerprint) -> Option<&mut CachedQuota> {
        self.known.to_back(&key).or_else(|| self.others.to_back(&key))
    }
}

type Entries = LinkedHashMap<Fingerprint, CachedQuota, RandomState>;

/// The answers of one source.
pub struct Cache {
    shards: Box<[Mutex<Shard>]>,
    per_shard: usize,
    sharding: Sharding,
    cache_for: Duration,
    pub evictions: SharedCounter,
}

/// What is known of a key now.
#[derive(Debug)]
pub struct CacheAnswer {
    /// What to use, fresh or not.
    pub quota: Option<Arc<Quota>>,
    /// The end of a lookup; then the cache must be asked again. `None` if there is nothing to wait for.
    pub wait: Option<watch::Receiver<()>>,
}

impl Cache {
    /// For at most `most` keys, whose answers are fresh for `cache_for`.
    pub(super) fn new(most: usize, cache_for: Duration) -> Self {
        let count = (most / KEYS_PER_SHARD).clamp(1, MOST_SHARDS);
        Self {
            shards: (0..count).map(|_| Mutex::default()).collect(),
            per_shard: (most / count).max(1),
            sharding: Sharding::default(),
            cache_for,
            evictions: SharedCounter::default(),
        }
    }

    fn shard(&self, key: Fingerprint) -> &Mutex<Shard> {
        &self.shards[self.sharding.shard(key, self.shards.len())]
    }

    /// What is known of a key. If a lookup is due, `begin` makes it, unless it cannot be made, and returns its end. The argument
    /// says whether something is cached: then nobody waits for the lookup, unless the answer is outdated.
    pub(super) fn get(
        &self,
        key: Fingerprint,
        now: Time,
        begin: impl FnOnce(bool) -> Option<watch::Receiver<()>>,
    ) -> CacheAnswer {
        let mut shard = self.shard(key).lock();
        let (quota, is_renewal, must_wait) = match shard.find(key) {
            Some(entry) if !entry.is_due(now) => return CacheAnswer { quota: entry.quota.clone(), wait: None },
            Some(entry) => (entry.quota.clone(), true, entry.is_outdated(now, self.cache_for)),
            None => (None, false, true),
        };
        let end = match shard.under_way.get(&key) {
            Some(end) => Some(end.clone()),
            None => begin(is_renewal).inspect(|end| _ = shard.under_way.insert(key, end.clone())),
        };
        CacheAnswer { quota, wait: end.filter(|_| must_wait) }
    }

    /// The entry of a key, without a lookup.
    pub(super) fn peek(&self, key: Fingerprint) -> Option<CachedQuota> {
        let shard = self.shard(key).lock();
        shard.known.get(&key).or_else(|| shard.others.get(&key)).cloned()
    }

    /// Replaces the quota of a key by the same answer, read by newer terms.
    pub(super) fn replace(&self, key: Fingerprint, quota: &Arc<Quota>) {
        if let Some(entry) = self.shard(key).lock().known.get_mut(&key)
            && entry.quota.as_ref().is_some_and(|before| before.version < quota.version)
        {
            entry.quota = Some(quota.clone());
        }
    }

    /// Records the result of a lookup. `sent` is a hash of what was sent.
    pub(super) fn end(&self, key: Fingerprint, sent: Fingerprint, found: LookupAnswer, now: Time) {
        let mut shard = self.shard(key).lock();
        shard.under_way.remove(&key);
        let before = shard.known.remove(&key).or_else(|| shard.others.remove(&key));
        let failures = before.as_ref().map_or(0, |entry| entry.failures);
        let answered = |quota| CachedQuota {
            quota,
            answered: Some(now),
            // With jitter, so keys that were looked up together are not renewed together.
            fresh: (now, now.after(jittered(self.cache_for, 0.1))),
            failures: 0,
            has_changed: false,
            sent,
        };
        let entry = match (found, before) {
            (LookupAnswer::Quota(quota), _) => answered(Some(quota)),
            (LookupAnswer::Absent, _) => answered(None),
            (LookupAnswer::Unusable, before) => {
                let failures = failures.saturating_add(1);
                let fresh = (now, now.after(REPEATS.pause(failures)));
                let never = CachedQuota { quota: None, answered: None, fresh, failures, has_changed: false, sent };
                CachedQuota { fresh, failures, sent, ..before.unwrap_or(never) }
            }
            // Says nothing about the key: the known quota stays in use, and is renewed a little later.
            (LookupAnswer::Nothing, Some(before)) => CachedQuota { fresh: (now, now.after(REPEATS.first)), ..before },
            (LookupAnswer::Nothing, None) => return,
        };
        self.insert(&mut shard, key, entry);
    }

    /// Makes changed keys due for renewal. Visits all keys, with pauses in which the thread can do other work.
    pub(super) async fn expire(&self, changed: &Changed) {
        for shard in &self.shards {
            {
                let mut shard = shard.lock();
                let Shard { known, others, .. } = &mut *shard;
                let all = known.iter_mut().chain(others.iter_mut()).map(|(_, entry)| entry);
                all.filter(|entry| changed.has(entry.sent)).for_each(CachedQuota::expire);
            }
            yield_now().await;
        }
    }

    pub(super) fn expire_key(&self, key: Fingerprint) {
        let mut shard = self.shard(key).lock();
        let Shard { known, others, .. } = &mut *shard;
        known.get_mut(&key).or_else(|| others.get_mut(&key)).into_iter().for_each(CachedQuota::expire);
    }

    fn insert(&self, shard: &mut Shard, key: Fingerprint, entry: CachedQuota) {
        let Shard { known, others, .. } = shard;
        let is_known = entry.quota.is_some();
        if known.len() + others.len() >= self.per_shard {
            let reserved = self.per_shard / RESERVED;
            let evicted = match is_known {
                // The reserve is evicted only if there is nothing else.
                true if others.len() > reserved || known.is_empty() => others.pop_front(),
                true => known.pop_front(),
                false if others.len() >= reserved.max(1) => others.pop_front(),
                false if reserved > 0 => known.pop_front(),
                // The shard is full of keys that the source knows.
                false => return,
            };
            self.evictions.add(evicted.is_some().into());
        }
        if is_known {
            known.insert(key, entry)
        } else {
            others.insert(key, entry)
        };
    }

    /// The numbers of keys that the source knows, and of others.
    pub fn len(&self) -> (usize, usize) {
        let each = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.known.len(), shard.others.len())
        });
        each.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
    }
}

#[cfg(test)]
mod tests;
