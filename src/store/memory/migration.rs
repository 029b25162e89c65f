//! Reloads that change how a limit counts: the cell of a key is migrated when the key is used next.
//!
//! A reload touches no cell, because a million would take too long. If a key has no cell, the store looks for its cell of the
//! previous limit, and moves it with both shards locked. One comparison of times tells whether such a cell may exist, only
//! for keys without a cell, and only until the longest period is over.
//! The reservation of a request in flight is given back to the migrated cell. A held request that asks again is decided by
//! the limit that counts its key now. Several reloads are applied from the oldest to the newest, so that a rate that is
//! missing in between is not lost.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::shard::CellEntry;
use super::{Locked, Memory};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Limit, Verdict};
use crate::store::reloads::{Migration, Reloads, translated};
use crate::store::{Ask, Asks, LimitChanges, Reply, Reserved, Ticket};

/// What reloads have changed. Any thread may read or change it; a lock orders the changes.
#[derive(Debug, Default)]
pub(super) struct ReloadsSoFar {
    newest: ArcSwap<Reloads>,
    /// In microseconds since 1970. Until then a key without a cell may have one from before a reload.
    migrating_until: AtomicU64,
    /// Held during each change.
    changing: Mutex<()>,
}

impl ReloadsSoFar {
    pub(super) fn load(&self) -> Guard<Arc<Reloads>> {
        self.newest.load()
    }

    /// `change` returns `None` to change nothing.
    fn change(&self, change: impl FnOnce(&Reloads) -> Option<Reloads>) {
        let _alone = self.changing.lock();
        if let Some(changed) = change(&self.newest.load()) {
            let until = changed.until();
            self.newest.store(Arc::new(changed));
            self.migrating_until.store(until.micros(), Ordering::Relaxed);
        }
    }
}

impl Memory {
    /// From now on, cells of removed limits are dropped, and cells of limits that count differently are migrated. A limit that
    /// is added again begins without cells, since only those from before its removal can be left.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        self.reloads.change(|reloads| {
            let added = reloads.added(changes);
            if !added.is_empty() {
                let is_other = |_: &Fingerprint, entry: &CellEntry| !added.contains(&entry.limit.name());
                self.shards.iter().for_each(|shard| self.sweep_shard(shard, is_other));
            }
            let mut reloads = reloads.clone();
            reloads.add(changes, now);
            Some(reloads)
        });
    }

    pub(super) fn expire_migrations(&self, now: Time) {
        self.reloads.change(|reloads| reloads.expired(now));
    }

    /// Whether a key without a cell may have one of a replaced limit.
    pub(in crate::store) fn is_migrating(&self, now: Time) -> bool {
        now.micros() < self.reloads.migrating_until.load(Ordering::Relaxed)
    }

    pub(super) fn decide_migrating(&self, asks: &[Ask<'_>], now: Time) -> Reply {
        let reloads = self.reloads.load();
        let successors: SmallVec<[Option<Arc<Limit>>; 2]> = asks
            .iter()
            .map(|ask| {
                let is_known = |to: &Limit| self.has_cell(to, ask.key);
                let successor = reloads.successor(ask.limit, ask.key, is_known).map(|migration| migration.to.clone());
                self.migrate(&reloads, &Ask { limit: successor.as_ref().unwrap_or(ask.limit), ..*ask }, now);
                successor
            })
            .collect();
        let counted = asks.iter().zip(&successors);
        let counted: Asks<'_> =
            counted.map(|(ask, to)| Ask { limit: to.as_ref().unwrap_or(ask.limit), ..*ask }).collect();
        let mut reply = self.judge_all(&counted, now, self.look_up(&counted, now));
        for (asked, counted) in asks.iter().zip(&counted) {
            reply.translate(asked.place, asked.limit, counted.limit);
            let reserved = reply.reserved.iter_mut().filter(|reserved| reserved.place == asked.place);
            reserved.for_each(|reserved| reserved.requested = asked.limit.clone());
        }
        reply
    }

    fn has_cell(&self, limit: &Limit, key: Fingerprint) -> bool {
        let (shard, key) = self.place(limit, key);
        self.shards[shard].lock().contains_key(&key)
    }

    /// Settles a reservation in the cell that has it now. Returns the verdict afterwards.
    pub fn settle(&self, reserved: &Reserved, cost: u64, now: Time) -> Verdict {
        let Reserved { ticket, requested, watch, .. } = reserved;
        let is_there = |limit: &Limit| {
            let (shard, key) = self.place(limit, ticket.key);
            self.shards[shard].lock().peek_mut(&key).is_some_and(|entry| entry.number == ticket.cell)
        };
        let moved = if self.is_migrating(now) && !is_there(&ticket.limit) {
            let reloads = self.reloads.load();
            let mut all = reloads.after(&ticket.limit, ticket.key);
            all.find_map(|Migration { from, to, at, .. }| {
                // A later reload may have replaced that limit before its cell was migrated again.
                let later = reloads.before(to, ticket.key).filter(|between| between.at > *at);
                let limit = iter::once(to).chain(later.map(|between| &between.from)).find(|limit| is_there(limit))?;
                let reservation = limit.migrate_reservation(from, &ticket.reservation, *at);
                Some(Ticket { limit: limit.clone(), reservation, ..ticket.clone() })
            })
        } else {
            None
        };
        let ticket = moved.as_ref().unwrap_or(ticket);
        let verdict = self.settle_here(ticket, cost, now);
        if !watch.is_nobody() {
            self.tell(watch, &ticket.limit, ticket.key, now);
        }
        translated(requested, &ticket.limit, verdict)
    }

    /// Migrates all keys that were not used since a reload replaced their limit, but no overrides: these end with the
    /// process.
    pub(super) fn migrate_all(&self, now: Time) {
        let reloads = self.reloads.load();
        for shard in &self.shards {
            // The key of a cell includes the limit's shape. Combining the shape a second time removes it, since XOR cancels.
            let of = |(key, entry): (&Fingerprint, &CellEntry)| (key.with(entry.limit.shape()), entry.limit.clone());
            let is_old = |(_, limit): &(Fingerprint, Arc<Limit>)| !reloads.has(limit);
            let old: Vec<_> = shard.lock().iter().map(of).filter(is_old).collect();
            for (key, limit) in old {
                let newest = reloads.after(&limit, key).find(|migration| reloads.has(&migration.to));
                if let Some(Migration { to, .. }) = newest {
                    self.migrate(&reloads, &Ask::new(to, key, 0), now);
                }
            }
        }
    }

    /// If the key has no cell of this limit, but one of a replaced limit, migrates that.
    fn migrate(&self, reloads: &Reloads, ask: &Ask<'_>, now: Time) {
        let place = self.place(ask.limit, ask.key);
        for Migration { from, at, .. } in reloads.before(ask.limit, ask.key) {
            let old = self.place(from, ask.key);
            // Both are locked, so that no other thread finds the key without a cell.
            let mut locked = Locked::take(&self.shards, &[place, old]);
            if locked.of(place.0).is_none_or(|shard| shard.contains_key(&place.1)) {
                return;
            }
            let Some(entry) = locked.of(old.0).and_then(|shard| shard.remove(&old.1)) else { continue };
            let cell = ask.limit.migrate(from, entry.cell, *at);
            if let Some(shard) = locked.of(place.0).filter(|_| !cell.is_spent(ask.limit.rates(), now)) {
                self.insert(shard, place.1, CellEntry::new(cell, Arc::clone(ask.limit), entry.number), now);
            }
            for (_, shard) in &mut locked.0 {
                self.bound(shard, now);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::store::Replaced;

    #[test]
    fn reloads_at_the_same_time_all_count() {
        const EACH: u64 = 200;
        let memory = Memory::new(100, usize::MAX);
        let now = Time::from_micros(1_800_000_000_000_000);
        let limit = |rate: &str| Arc::new(Limit::new("l", &[rate.parse().unwrap()]));
        let (own, other) = (limit("9/d"), limit("9/d burst 9"));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (memory, own, other) = (&memory, &own, &other);
                scope.spawn(move || {
                    for number in thread * EACH..(thread + 1) * EACH {
                        let key = Some(Fingerprint::of(&number.to_be_bytes()));
                        let replaced = vec![Replaced { key, from: own.clone(), to: other.clone() }];
                        let in_use = vec![own.clone(), other.clone()];
                        memory.reload(&LimitChanges { in_use, replaced, ..LimitChanges::default() }, now);
                        memory.expire_migrations(now);
                    }
                });
            }
        });
        assert_eq!(u64::from(memory.reloads.load().count()), 4 * EACH);
        let key = |number: u64| Fingerprint::of(&number.to_be_bytes());
        let reloads = memory.reloads.load();
        assert!((0..4 * EACH).all(|number| reloads.successor(&own, key(number), |_| false).is_some()));
        assert!(memory.is_migrating(now));
    }
}
