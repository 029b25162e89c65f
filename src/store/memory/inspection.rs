//! What an operator does with one key: see its counts, and reset them.
//!
//! After a reload the counts of a key may be in the cell of another limit than the one that counts the key now. So both
//! functions lock every cell that the key may have, and no thread migrates one of them meanwhile.

use std::iter;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Locked, Memory};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};
use crate::store::KeyUsage;
use crate::store::reloads::Reloads;

impl Memory {
    /// Changes nothing: the key is neither moved to the front nor migrated.
    pub fn peek(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> KeyUsage {
        let (limit, mut cell) = self.with_cells(limit, key, |reloads, shards| {
            let mut find = |limit: &Limit| {
                let (shard, key) = self.place(limit, key);
                Some(shards.of(shard)?.peek_mut(&key)?.cell.clone())
            };
            if let Some(cell) = find(limit) {
                return (limit.clone(), cell);
            }
            if !reloads.is_in_use(limit, key) {
                let mut successors = reloads.after(limit, key).map(|migration| &migration.to);
                let counted = successors.find_map(|to| Some((to.clone(), find(to)?)));
                return counted.unwrap_or_else(|| (limit.clone(), Cell::new(limit.rates(), now)));
            }
            let mut migrations = reloads.before(limit, key);
            let migrated = migrations.find_map(|old| Some(limit.migrate(&old.from, find(&old.from)?, old.at)));
            (limit.clone(), migrated.unwrap_or_else(|| Cell::new(limit.rates(), now)))
        });
        cell.advance(limit.rates(), now);
        KeyUsage::of(limit, &cell, now)
    }

    /// Forgets the counts of a key. Earlier reservations are not taken from what is counted afterwards.
    pub fn reset(&self, limit: &Arc<Limit>, key: Fingerprint) {
        self.with_cells(limit, key, |reloads, shards| {
            for limit in related(reloads, limit, key) {
                let (shard, key) = self.place(limit, key);
                shards.of(shard).and_then(|shard| shard.remove(&key));
            }
            for (_, shard) in &mut shards.0 {
                shard.report_to(&self.bytes);
            }
        });
    }

    fn with_cells<T>(
        &self,
        limit: &Arc<Limit>,
        key: Fingerprint,
        act: impl FnOnce(&Reloads, &mut Locked<'_>) -> T,
    ) -> T {
        loop {
            let reloads = self.reloads.load();
            let places: SmallVec<[_; 4]> = related(&reloads, limit, key).map(|limit| self.place(limit, key)).collect();
            let mut shards = Locked::take(&self.shards, &places);
            // A reload before the locks may have led to a cell that is not locked.
            if Arc::ptr_eq(&reloads, &self.reloads.load()) {
                return act(&reloads, &mut shards);
            }
        }
    }
}

/// The limits in whose cells a key of `limit` may have counts: that limit and its successors, each with its predecessors.
fn related<'a>(reloads: &'a Reloads, limit: &'a Arc<Limit>, key: Fingerprint) -> impl Iterator<Item = &'a Arc<Limit>> {
    let successors = reloads.after(limit, key).map(|migration| &migration.to);
    let counting = iter::once(limit).chain(successors);
    counting.flat_map(move |to| iter::once(to).chain(reloads.before(to, key).map(|migration| &migration.from)))
}
