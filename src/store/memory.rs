//! The counters in this process: one cell for each limit and key, in shards with short locks, bounded in number and in bytes.
//!
//! A decision locks its shards in ascending order, so it is atomic and cannot deadlock; eviction from another shard only
//! tries its lock. If the bytes of all shards exceed the bound, shards evict in turn, an eighth of a shard at a time, because
//! a map frees its nodes only together. A new key that is refused gets no cell, so a flood of new keys behind a global limit
//! evicts no other key.

mod shard;
mod migration;
mod inspection;
mod saved;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::{iter, mem};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::plan::Plan;
use super::{Ask, Asks, Pooled, Reply, Reserved, Ticket, Verdicts, outlasts};
use crate::base::clock::Time;
use crate::base::fingerprint::{Fingerprint, Sharding};
use crate::limit::{Cell, Limit, Verdict};

use migration::ReloadsSoFar;
pub use saved::{NAME as SAVED_NAME, NotRestored, RestoredCounters};
use shard::{CellEntry, Shard};

/// Small enough that a sweep holds the lock of a shard for only some tens of microseconds.
const KEYS_PER_SHARD: usize = 1024;
const MAX_SHARDS: usize = 8192;

#[derive(Debug)]
pub struct Memory {
    /// Their number is a power of two.
    shards: Box<[Mutex<Shard>]>,
    sharding: Sharding,
    keys_per_shard: usize,
    pub max_bytes: usize,
    bytes: AtomicUsize,
    next_sweep: AtomicU64,
    next_evicted: AtomicUsize,
    evicted: AtomicU64,
    /// It may wrap.
    next_cell: AtomicU32,
    reloads: ReloadsSoFar,
}

impl Memory {
    /// At most `max_keys` keys, which take at most `max_bytes` of memory. New keys evict the least recently used.
    pub fn new(max_keys: usize, max_bytes: usize) -> Self {
        let wanted = (max_keys / KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let shards = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let keys_per_shard = (max_keys / shards).max(1);
        let shards: Box<[Mutex<Shard>]> = (0..shards).map(|_| Mutex::default()).collect();
        Self {
            bytes: AtomicUsize::new(size_of_val(&*shards)),
            shards,
            sharding: Sharding::default(),
            keys_per_shard,
            max_bytes,
            next_sweep: AtomicU64::new(0),
            next_evicted: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            next_cell: AtomicU32::new(0),
            reloads: ReloadsSoFar::default(),
        }
    }

    /// Locks all shards concerned: checks every cell, then charges all if the request passes.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time) -> Reply {
        if let [ask] = asks {
            let mut reserved = Vec::new();
            return match self.decide_alone(ask, now, &mut reserved) {
                Some(verdict) => {
                    let verdicts = iter::once((ask.place, verdict)).collect();
                    let mut reply = Reply { verdicts, reserved, ..Reply::default() };
                    if ask.limit.watched.is_some() {
                        self.note_reached(asks, now, &mut reply);
                    }
                    reply
                }
                None => self.decide_migrating(asks, now),
            };
        }
        if let Some(reply) = self.decide_by_bans(asks, now) {
            return reply;
        }
        let lookup = self.look_up(asks, now);
        if lookup.is_missing && self.is_migrating(now) {
            drop(lookup);
            return self.decide_migrating(asks, now);
        }
        self.judge_all(asks, now, lookup)
    }

    /// See [`Store::decide_one`](super::Store::decide_one).
    pub(super) fn decide_one(&self, ask: &Ask<'_>, now: Time) -> Option<Verdict> {
        self.decide_alone(ask, now, &mut Vec::new())
    }

    /// The reply if the request is refused. Charges nothing.
    pub fn refusal(&self, asks: &[Ask<'_>], now: Time) -> Option<Reply> {
        let free: Asks<'_> = asks.iter().map(|ask| Ask { cost: 0, settles: false, held_above: None, ..*ask }).collect();
        let reply = self.decide(&free, now);
        let is_refused = reply.refusals(asks).next().is_some();
        is_refused.then_some(reply)
    }

    fn look_up(&self, asks: &[Ask<'_>], now: Time) -> DecisionLookup<'_> {
        let places: SmallVec<[(usize, Fingerprint); 4]> =
            asks.iter().map(|ask| self.place(ask.limit, ask.key)).collect();
        let mut shards = Locked::take(&self.shards, &places);
        let mut is_missing = false;
        let plan = Plan::new(&asks.iter().copied(), |index, demand| {
            let (ask, (shard, key)) = (&asks[index], places[index]);
            let Some(entry) = shards.of(shard).and_then(|shard| entry(shard, key, ask, now)) else {
                is_missing = true;
                return demand.need <= ask.limit.capacity();
            };
            ask.limit.admits(&entry.cell, now, demand.need)
        });
        DecisionLookup { places, shards, plan, is_missing }
    }

    fn judge_all(&self, asks: &[Ask<'_>], now: Time, lookup: DecisionLookup<'_>) -> Reply {
        let DecisionLookup { places, mut shards, plan, .. } = lookup;
        let mut reply = Reply::default();
        let mut level = |(ask, (shard, key)): (&Ask<'_>, &(usize, Fingerprint))| {
            let entry = ask.held_above.and_then(|_| shards.of(*shard)?.peek_mut(key));
            entry.map_or(0, |entry| ask.level(&entry.cell, now))
        };
        let levels: SmallVec<[u32; 4]> = asks.iter().zip(&places).map(&mut level).collect();
        let mut with_room = asks.iter().zip(&levels).zip(&plan.parts).filter(|(_, part)| part.has_room);
        let may_be_held = with_room.any(|((ask, level), _)| ask.may_be_held(*level));
        for (((ask, (shard, key)), part), level) in asks.iter().zip(&places).zip(&plan.parts).zip(&levels) {
            let Some(shard) = shards.of(*shard) else { continue };
            let (place, mut charged) = (ask.place, part.charged);
            let ask = &Ask { settles: ask.settles || may_be_held, ..*ask };
            if !ask.is_idle() {
                let ask = Ask { cost: mem::take(&mut charged), ..*ask };
                let verdict = self.judge(shard, *key, &ask, now, part.has_room, &mut reply.reserved);
                let level = if part.has_room { *level } else { 0 };
                reply.verdicts.push((place, Verdict { level, ..verdict }));
            }
            if let Some((demand, fits)) = part.pooled {
                let ask = Ask { need: demand.need, cost: charged, ..*ask };
                let verdict = self.judge(shard, *key, &ask, now, fits, &mut reply.reserved);
                reply.pooled.push(Pooled { place, demand, verdict });
            }
        }
        drop(shards);
        if asks.iter().any(|ask| ask.limit.watched.is_some()) {
            self.note_reached(asks, now, &mut reply);
        }
        reply
    }

    /// For a route with one limit: a single lookup. `None` if the key has no cell, but may have one from before a reload.
    fn decide_alone(&self, ask: &Ask<'_>, now: Time, reserved: &mut Vec<Reserved>) -> Option<Verdict> {
        let (shard, key) = self.place(ask.limit, ask.key);
        let shard = &mut *self.shards[shard].lock();
        let Some(entry) = entry(shard, key, ask, now) else {
            if self.is_migrating(now) {
                return None;
            }
            let admitted = ask.need <= ask.limit.capacity();
            let ask = Ask { cost: if admitted { ask.cost } else { 0 }, ..*ask };
            return Some(self.judge(shard, key, &ask, now, admitted, reserved));
        };
        let fullest = match ask.limit.fullest(&entry.cell, now, ask.need) {
            Ok(fullest) => fullest,
            Err(refusal) => return Some(refusal),
        };
        let level = ask.level(&entry.cell, now);
        let ask = &Ask { settles: ask.settles || ask.may_be_held(level), ..*ask };
        if ask.cost > 0 {
            entry.charge(ask, now, reserved);
        }
        let verdict = Verdict { level, ..ask.limit.passed(&entry.cell, now, fullest) };
        if ask.limit.grows() || ask.settles {
            let grown = entry.measure();
            shard.grow(grown);
            self.bound(shard, now);
        }
        Some(verdict)
    }

    /// Settles a ticket in its cell. If the request costs less, gives back the rest, unless the cell is gone; if it costs
    /// more, charges the difference even if there is no room. Returns the verdict afterwards.
    fn settle_here(&self, ticket: &Ticket, cost: u64, now: Time) -> Verdict {
        let Ticket { limit, reservation, .. } = ticket;
        let more = cost.saturating_sub(ticket.cost());
        let ask = Ask { need: 0, ..Ask::new(limit, ticket.key, more) };
        let (shard, key) = self.place(limit, ticket.key);
        let shard = &mut *self.shards[shard].lock();
        if let Some(entry) = entry(shard, key, &ask, now).filter(|entry| ticket.is_of(entry.number)) {
            let given = ticket.cost().saturating_sub(cost);
            if reservation.is_of_any() {
                let charges = limit.newest_charges(&entry.cell, now, given);
                charges.iter().for_each(|charge| limit.give_back(&mut entry.cell, now, charge, given));
            } else {
                limit.give_back(&mut entry.cell, now, reservation, given);
            }
            let grown = entry.measure();
            shard.grow(grown);
        }
        self.judge(shard, key, &ask, now, true, &mut Vec::new())
    }

    /// The index of the cell's shard, and its key there.
    fn place(&self, limit: &Limit, key: Fingerprint) -> (usize, Fingerprint) {
        let key = key.with(limit.shape());
        (self.shard(key), key)
    }

    /// The verdict of one limit, after the cost of the ask is charged. If there is a cell, it must be advanced to `now`.
    fn judge(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        ask: &Ask<'_>,
        now: Time,
        admitted: bool,
        reserved: &mut Vec<Reserved>,
    ) -> Verdict {
        let fresh = || Cell::new(ask.limit.rates(), now);
        // Only charges create cells, so that refused requests cannot evict other keys.
        let charged = ask.cost > 0;
        if charged && !shard.contains_key(&key) {
            let number = self.next_cell.fetch_add(1, Ordering::Relaxed);
            self.insert(shard, key, CellEntry::new(fresh(), Arc::clone(ask.limit), number), now);
        }
        let Some(entry) = shard.peek_mut(&key) else { return ask.limit.judge(&fresh(), now, ask.need, admitted) };
        if charged {
            entry.charge(ask, now, reserved);
        }
        let verdict = ask.limit.judge(&entry.cell, now, ask.need, admitted);
        if charged {
            let grown = entry.measure();
            shard.grow(grown);
            self.bound(shard, now);
        }
        verdict
    }

    /// The key must have no entry. A full shard evicts its least recently used entry.
    fn insert(&self, shard: &mut Shard, key: Fingerprint, entry: CellEntry, now: Time) {
        if shard.len() >= self.keys_per_shard && shard.remove_oldest(now) {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        shard.insert(key, entry);
    }

    /// Adds the cell of a key, unless it has one. `key` is the key in its shard.
    fn put(&self, key: Fingerprint, cell: Cell, limit: &Arc<Limit>, now: Time) {
        let shard = &mut *self.shards[self.shard(key)].lock();
        if shard.contains_key(&key) {
            return;
        }
        let number = self.next_cell.fetch_add(1, Ordering::Relaxed);
        self.insert(shard, key, CellEntry::new(cell, Arc::clone(limit), number), now);
        self.bound(shard, now);
    }

    /// Drops cells without effect in `1/parts` of the shards. Has to be called regularly.
    pub fn sweep(&self, parts: usize, now: Time) {
        self.expire_migrations(now);
        let reloads = self.reloads.load();
        for _ in 0..self.shards.len().div_ceil(parts.max(1)) {
            let next = self.next_sweep.fetch_add(1, Ordering::Relaxed);
            let index = usize::try_from(next).unwrap_or(0) & (self.shards.len() - 1);
            self.sweep_shard(&self.shards[index], |key, entry| {
                !reloads.is_spent(&entry.limit, &entry.cell, now)
                    && reloads.is_needed(&entry.limit, key.with(entry.limit.shape()))
            });
        }
    }

    fn sweep_shard(&self, shard: &Mutex<Shard>, needed: impl Fn(&Fingerprint, &CellEntry) -> bool) {
        let mut shard = shard.lock();
        shard.sweep(needed);
        shard.report_to(&self.bytes);
    }

    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub fn max_keys(&self) -> usize {
        self.shards.len() * self.keys_per_shard
    }

    /// How many keys were evicted while their counts mattered.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn shard(&self, key: Fingerprint) -> usize {
        self.sharding.shard(key, self.shards.len())
    }

    /// Reports the size of a shard, and evicts cells if the store has become too large.
    fn bound(&self, shard: &mut Shard, now: Time) {
        if let Some(mut total) = shard.report_to(&self.bytes).filter(|total| *total > self.max_bytes) {
            // Shards take turns, since old cells are in all of them. Only try their locks, since this thread holds one.
            for _ in 0..self.shards.len() {
                let next = self.next_evicted.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
                let Some(mut other) = self.shards[next].try_lock() else { continue };
                self.evict(&mut other, total - self.max_bytes, 0, now);
                total = self.bytes();
                if total <= self.max_bytes {
                    return;
                }
            }
            // The entry that was just used is kept.
            self.evict(shard, total - self.max_bytes, 1, now);
        }
    }

    fn evict(&self, shard: &mut Shard, bytes: usize, kept: usize, now: Time) {
        let evicted = shard.evict(bytes, kept, now);
        shard.report_to(&self.bytes);
        self.evicted.fetch_add(evicted, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The reply if bans alone decide: no key of the request has a ban, as hardly any has, or a ban outlasts anything else
    /// that could refuse it.
    fn decide_by_bans(&self, asks: &[Ask<'_>], now: Time) -> Option<Reply> {
        let (mut verdicts, mut was_banned) = (Verdicts::new(), false);
        for ask in asks.iter().filter(|ask| ask.looks_at_bans()) {
            let (shard, key) = self.place(ask.limit, ask.key);
            let shard = &mut *self.shards[shard].lock();
            let Some(entry) = entry(shard, key, ask, now) else {
                let remaining = ask.limit.capacity();
                verdicts.push((ask.place, Verdict { admitted: true, rate: 0, remaining, wait: None, level: 0 }));
                continue;
            };
            was_banned = true;
            if let Some(refusal) = ask.limit.refuses(&entry.cell, now, ask.need).filter(|one| outlasts(one, asks)) {
                let verdicts = [(ask.place, refusal)].into_iter().collect();
                return Some(Reply { verdicts, ..Reply::default() });
            }
        }
        if was_banned || verdicts.is_empty() {
            return None;
        }
        let others: Asks<'_> = asks.iter().filter(|ask| !ask.looks_at_bans()).copied().collect();
        let mut reply = if others.is_empty() { Reply::default() } else { self.decide(&others, now) };
        reply.verdicts.extend(verdicts);
        Some(reply)
    }
}

/// The entry of this key, advanced to `now`. It becomes the most recently used.
fn entry<'s>(shard: &'s mut Shard, key: Fingerprint, ask: &Ask<'_>, now: Time) -> Option<&'s mut CellEntry> {
    let entry = shard.get_mut(&key)?;
    entry.cell.advance(ask.limit.rates(), now);
    // An override, a tier, a source of quotas or a reload may have given the key other rates.
    if !Arc::ptr_eq(&entry.limit, ask.limit) {
        entry.limit = Arc::clone(ask.limit);
    }
    Some(entry)
}

struct DecisionLookup<'a> {
    places: SmallVec<[(usize, Fingerprint); 4]>,
    shards: Locked<'a>,
    plan: Plan,
    is_missing: bool,
}

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
