//! Counters in this process: one cell per limit and key, decided under short locks, bounded in number.
//!
//! Keys are spread over shards, each a least-recently-used map under a lock of its own. A decision takes
//! the locks of all its shards in one order, so it is atomic and cannot deadlock.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use hashlink::LruCache;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::{Ask, Verdicts};
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit, Verdict};

/// Small enough that walking a shard for spent cells holds its lock for some tens of microseconds.
const KEYS_PER_SHARD: usize = 1024;
const MAX_SHARDS: usize = 8192;

/// The memory store.
#[derive(Debug)]
pub struct Memory {
    /// A power of two of them.
    shards: Box<[Mutex<Shard>]>,
    next_sweep: AtomicU64,
    evicted: AtomicU64,
}

/// A shard's cells. The hasher is seeded anew in every process, so that nobody can prepare keys that collide.
type Shard = LruCache<Fingerprint, Entry, RandomState>;

#[derive(Debug)]
struct Entry {
    cell: Cell,
    limit: Arc<Limit>,
}

impl Entry {
    fn is_spent(&self, now: Time) -> bool {
        self.cell.is_spent(self.limit.rates(), now)
    }
}

impl Memory {
    /// A store of at most `max_keys` keys; the coldest make room for new ones.
    pub fn new(max_keys: usize) -> Self {
        let wanted = (max_keys / KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let shards = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let capacity = (max_keys / shards).max(1);
        let shards = (0..shards).map(|_| Mutex::new(LruCache::with_hasher(capacity, RandomState::default()))).collect();
        Self { shards, next_sweep: AtomicU64::new(0), evicted: AtomicU64::new(0) }
    }

    /// Decides under the locks of all shards concerned: look at every cell, then charge all if all admit.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time) -> Verdicts {
        if let [ask] = asks {
            return iter::once((ask.place, self.decide_alone(ask, now))).collect();
        }
        let look = self.look(asks, now);
        self.judge_all(asks, now, look)
    }

    /// The verdicts on a request that would be refused. Charges nothing.
    pub fn refuses(&self, asks: &[Ask<'_>], now: Time) -> Option<Verdicts> {
        if let [ask] = asks {
            return Some(iter::once((ask.place, self.refuses_alone(ask, now)?)).collect());
        }
        let look = self.look(asks, now);
        (!look.all).then(|| self.judge_all(asks, now, look))
    }

    fn look(&self, asks: &[Ask<'_>], now: Time) -> Look<'_> {
        let places: SmallVec<[(usize, Fingerprint); 4]> = asks.iter().map(|ask| self.place(ask)).collect();
        let mut shards = Locked::take(&self.shards, &places);
        let mut looks = |(ask, (shard, key)): (&Ask<'_>, &(usize, Fingerprint))| {
            shards.of(*shard).is_none_or(|shard| admits(shard, *key, ask, now))
        };
        let admitted: SmallVec<[bool; 4]> = asks.iter().zip(&places).map(&mut looks).collect();
        let all = asks.iter().zip(&admitted).all(|(ask, admitted)| *admitted || ask.advisory);
        Look { places, shards, admitted, all }
    }

    fn judge_all(&self, asks: &[Ask<'_>], now: Time, look: Look<'_>) -> Verdicts {
        let Look { places, mut shards, admitted, all } = look;
        let judged = asks.iter().zip(&places).zip(&admitted).filter_map(|((ask, (shard, key)), admitted)| {
            let shard = shards.of(*shard)?;
            Some((ask.place, self.judge(shard, *key, ask, now, (*admitted, all && *admitted))))
        });
        judged.collect()
    }

    /// Most routes have one limit, and most keys a cell: then it is looked up once.
    fn decide_alone(&self, ask: &Ask<'_>, now: Time) -> Verdict {
        let (shard, key) = self.place(ask);
        let shard = &mut *self.shards[shard].lock();
        let Some(cell) = cell(shard, key, ask, now) else {
            let admitted = ask.need <= ask.limit.capacity();
            return self.judge(shard, key, ask, now, (admitted, admitted));
        };
        if let Some(refusal) = ask.limit.refuses(cell, now, ask.need) {
            return refusal;
        }
        if ask.cost > 0 {
            ask.limit.charge(cell, now, ask.cost);
        }
        ask.limit.judge(cell, now, ask.need, true)
    }

    fn refuses_alone(&self, ask: &Ask<'_>, now: Time) -> Option<Verdict> {
        let (shard, key) = self.place(ask);
        let shard = &mut *self.shards[shard].lock();
        // Whose cell has made room for others may be admitted.
        ask.limit.refuses(cell(shard, key, ask, now)?, now, ask.need)
    }

    /// Charges, whether there is room or not.
    pub fn charge(&self, ask: &Ask<'_>, now: Time) -> Verdict {
        let (shard, key) = self.place(ask);
        let shard = &mut *self.shards[shard].lock();
        admits(shard, key, ask, now);
        self.judge(shard, key, ask, now, (true, true))
    }

    fn place(&self, ask: &Ask<'_>) -> (usize, Fingerprint) {
        let key = ask.key.with(ask.limit.shape());
        (self.shard(key), key)
    }

    /// The verdict of one limit on a request that it admits or not, and that is charged or not. The cell is as of
    /// `now` if there is one.
    fn judge(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        ask: &Ask<'_>,
        now: Time,
        (admitted, charged): (bool, bool),
    ) -> Verdict {
        let fresh = || Cell::new(ask.limit.rates(), now);
        // Only a charge makes a cell: refused newcomers cannot push others out.
        let charged = charged && ask.cost > 0;
        if charged && !shard.contains_key(&key) {
            self.make_room(shard, now);
            shard.insert(key, Entry { cell: fresh(), limit: Arc::clone(ask.limit) });
        }
        match shard.peek_mut(&key) {
            Some(entry) => {
                if charged {
                    ask.limit.charge(&mut entry.cell, now, ask.cost);
                }
                ask.limit.judge(&entry.cell, now, ask.need, admitted)
            }
            None => ask.limit.judge(&fresh(), now, ask.need, admitted),
        }
    }

    /// Drops cells that can no longer matter, in `1/parts` of the shards; call it regularly.
    pub fn sweep(&self, parts: usize, now: Time) {
        for _ in 0..self.shards.len().div_ceil(parts.max(1)) {
            let next = self.next_sweep.fetch_add(1, Ordering::Relaxed);
            let index = usize::try_from(next).unwrap_or(0) & (self.shards.len() - 1);
            self.shards[index].lock().retain(|_, entry| !entry.is_spent(now));
        }
    }

    /// How many keys are held.
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many keys still in use had to make room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn shard(&self, key: Fingerprint) -> usize {
        usize::try_from(key.high() & (self.shards.len() as u64 - 1)).unwrap_or(0)
    }

    fn make_room(&self, shard: &mut Shard, now: Time) {
        if shard.len() == shard.capacity()
            && let Some((_, entry)) = shard.remove_lru()
            && !entry.is_spent(now)
        {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The cell of this key as of `now`, if there is one. That is the key's most recent use.
fn cell<'s>(shard: &'s mut Shard, key: Fingerprint, ask: &Ask<'_>, now: Time) -> Option<&'s mut Cell> {
    let Entry { cell, .. } = shard.get_mut(&key)?;
    cell.advance(ask.limit.rates(), now);
    Some(cell)
}

/// Whether the limit has room.
fn admits(shard: &mut Shard, key: Fingerprint, ask: &Ask<'_>, now: Time) -> bool {
    match cell(shard, key, ask, now) {
        Some(cell) => ask.limit.admits(cell, now, ask.need),
        None => ask.need <= ask.limit.capacity(),
    }
}

/// What a decision about several limits finds.
struct Look<'a> {
    places: SmallVec<[(usize, Fingerprint); 4]>,
    shards: Locked<'a>,
    admitted: SmallVec<[bool; 4]>,
    /// Whether all admit that are not advisory.
    all: bool,
}

/// The shards of one decision, locked.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl<'a> Locked<'a> {
    fn take(shards: &'a [Mutex<Shard>], places: &[(usize, Fingerprint)]) -> Self {
        let mut wanted: SmallVec<[usize; 4]> = places.iter().map(|(shard, _)| *shard).collect();
        wanted.sort_unstable();
        wanted.dedup();
        Self(wanted.iter().map(|index| (*index, shards[*index].lock())).collect())
    }

    fn of(&mut self, index: usize) -> Option<&mut Shard> {
        self.0.iter_mut().find(|(locked, _)| *locked == index).map(|(_, shard)| &mut **shard)
    }
}
