//! The quotas of keys, in bounded memory, for all workers.
//!
//! Clients can invent keys, but cannot make a source know them. So if there is no room, keys that the source does not know
//! are evicted first, except for a small share of the room, and lookups under way are kept apart from both. No cache crate is
//! used, because they evict by frequency of use, not by what the source has answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

#[derive(Clone, Debug)]
struct LookedUp {
    /// `None` if the source does not know the key, or has never answered.
    quota: Option<Arc<Quota>>,
    /// The time of the last answer.
    answered: Option<Time>,
    /// The begin and the end of the time in which the key is not looked up again.
    fresh: (Time, Time),
    /// Failed lookups in a row.
    failures: u32,
    /// A hash of the key in the form in which it is sent.
    sent: Fingerprint,
}

impl LookedUp {
    fn is_fresh(&self, now: Time) -> bool {
        now < self.fresh.1 && !now.is_set_back_from(self.fresh.0)
    }

    fn expire(&mut self) {
        self.fresh = (Time::from_micros(0), Time::from_micros(0));
    }
}

/// An entry of the cache, for people.
#[derive(Clone, Debug)]
pub struct CachedQuota {
    /// `None` if the source does not know the key, or has never answered.
    pub quota: Option<Arc<Quota>>,
    /// The time of the last answer.
    pub answered: Option<Time>,
    /// Whether the key is due to be looked up again.
    pub is_due: bool,
    /// Failed lookups in a row.
    pub failures: u32,
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
    fn find(&mut self, key: Fingerprint) -> Option<&mut LookedUp> {
        self.known.to_back(&key).or_else(|| self.others.to_back(&key))
    }
}

type Entries = LinkedHashMap<Fingerprint, LookedUp, RandomState>;

/// The answers of one source.
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    per_shard: usize,
    sharding: Sharding,
    cache_for: Duration,
    evictions: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Known {
    /// What to use, fresh or not.
    pub(super) quota: Option<Arc<Quota>>,
    pub(super) next: NextLookup,
}

#[derive(Debug)]
pub(super) enum NextLookup {
    Nothing,
    /// The key is being looked up. There is nothing to use until that ends.
    Wait(watch::Receiver<()>),
    /// The caller must make this lookup. A request waits for it if there is nothing to use.
    LookUp(NewLookup),
}

/// A lookup that only its owner makes.
#[derive(Debug)]
pub(super) struct NewLookup {
    pub(super) key: Fingerprint,
    /// Dropping it wakes all who wait, and they look into the cache again.
    pub(super) done: watch::Sender<()>,
    pub(super) waiting: watch::Receiver<()>,
    /// Whether something is cached already.
    pub(super) is_renewal: bool,
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
            evictions: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: Fingerprint) -> &Mutex<Shard> {
        &self.shards[self.sharding.shard(key, self.shards.len())]
    }

    pub(super) fn fresh(&self, key: Fingerprint, now: Time) -> Option<Known> {
        let mut shard = self.shard(key).lock();
        let entry = shard.find(key).filter(|entry| entry.is_fresh(now))?;
        Some(Known { quota: entry.quota.clone(), next: NextLookup::Nothing })
    }

    /// What is known of a key. If a lookup is due, `may_ask` decides whether it can be made; its argument says whether
    /// something is cached.
    pub(super) fn get(&self, key: Fingerprint, now: Time, may_ask: impl FnOnce(bool) -> bool) -> Known {
        let mut shard = self.shard(key).lock();
        let quota = match shard.find(key) {
            Some(entry) if entry.is_fresh(now) => {
                return Known { quota: entry.quota.clone(), next: NextLookup::Nothing };
            }
            Some(entry) => Some(entry.quota.clone()),
            None => None,
        };
        let is_renewal = quota.is_some();
        let quota = quota.flatten();
        let next = match shard.under_way.get(&key) {
            Some(_) if is_renewal => NextLookup::Nothing,
            Some(waiting) => NextLookup::Wait(waiting.clone()),
            None if may_ask(is_renewal) => {
                let (done, waiting) = watch::channel(());
                shard.under_way.insert(key, waiting.clone());
                NextLookup::LookUp(NewLookup { key, done, waiting, is_renewal })
            }
            None => NextLookup::Nothing,
        };
        Known { quota, next }
    }

    /// The entry of a key, without a lookup.
    pub(super) fn peek(&self, key: Fingerprint, now: Time) -> Option<CachedQuota> {
        let shard = self.shard(key).lock();
        let entry = shard.known.get(&key).or_else(|| shard.others.get(&key))?;
        let LookedUp { quota, answered, failures, .. } = entry.clone();
        Some(CachedQuota { quota, answered, is_due: !entry.is_fresh(now), failures })
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
        let answered = |quota| LookedUp {
            quota,
            answered: Some(now),
            // With jitter, so keys that were looked up together are not renewed together.
            fresh: (now, now.after(jittered(self.cache_for, 0.1))),
            failures: 0,
            sent,
        };
        let entry = match (found, before) {
            (LookupAnswer::Quota(quota), _) => answered(Some(quota)),
            (LookupAnswer::Absent, _) => answered(None),
            (LookupAnswer::Unusable, before) => {
                let failures = failures.saturating_add(1);
                let fresh = (now, now.after(REPEATS.pause(failures)));
                let (quota, answered) = before.map_or((None, None), |before| (before.quota, before.answered));
                LookedUp { quota, answered, fresh, failures, sent }
            }
            // Says nothing about the key: the known quota stays in use, and is renewed a little later.
            (LookupAnswer::Nothing, Some(before)) => LookedUp { fresh: (now, now.after(REPEATS.first)), ..before },
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
                all.filter(|entry| changed.has(entry.sent)).for_each(LookedUp::expire);
            }
            yield_now().await;
        }
    }

    pub(super) fn expire_key(&self, key: Fingerprint) {
        let mut shard = self.shard(key).lock();
        let Shard { known, others, .. } = &mut *shard;
        known.get_mut(&key).or_else(|| others.get_mut(&key)).into_iter().for_each(LookedUp::expire);
    }

    fn insert(&self, shard: &mut Shard, key: Fingerprint, entry: LookedUp) {
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
            self.evictions.fetch_add(u64::from(evicted.is_some()), Ordering::Relaxed);
        }
        if is_known {
            known.insert(key, entry)
        } else {
            others.insert(key, entry)
        };
    }

    /// The numbers of keys that the source knows, and of others.
    pub(super) fn len(&self) -> (usize, usize) {
        let each = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.known.len(), shard.others.len())
        });
        each.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
