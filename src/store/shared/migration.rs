//! Cells after a reload: which cell counts a key now, and what it continues from.
//!
//! A limit that counts in another way has counters with other names. At its first use its cell continues from what this
//! gateway knows of the replaced limits' cells, migrated ([`Limit::migrate`]). The old counters are not read, so what only
//! other gateways know is lost. A request in flight, or a held one that asks again, is decided by the limit that counts the
//! key now.
//!
//! A missing counter is created with that count. If another gateway was faster, the larger count goes on here, while the
//! counter stays as it is and later charges are added as usual. Adding the difference would count twice what both gateways
//! know. A state that is one value is replaced by the larger one.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::OwnedAsk;
use super::cached_cell::CachedCell;
use super::cells::{CellPlace, Cells};
use super::counters::CounterId;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};
use crate::store::LimitChanges;
use crate::store::reloads::Migration;

impl Cells {
    /// Applies a reload or a change of overrides. Returns whether cells must be dropped because of it, now or later.
    pub(super) fn reload(&mut self, changes: &LimitChanges, now: Time) -> bool {
        let has_dropped = self.reloads.add(changes, now);
        self.migrating_until = self.reloads.until();
        has_dropped
    }

    /// Forgets expired migrations. Returns the time until the last one expires, if any.
    pub(super) fn expire_migrations(&mut self, now: Time) -> Option<Duration> {
        if let Some(rest) = self.reloads.expired(now) {
            self.reloads = rest;
        }
        let left = self.reloads.until().micros_since(now);
        (left > 0).then(|| Duration::from_micros(left))
    }

    /// The migration to the limit that counts the key now, if a reload has replaced this one.
    pub(super) fn successor(&self, limit: &Limit, key: Fingerprint, now: Time) -> Option<&Migration> {
        if now >= self.migrating_until {
            return None;
        }
        self.reloads.successor(limit, key, |to| self.find(key.with(to.shape())).is_some())
    }

    /// If a reload has replaced the limit, asks the limit that counts the key now.
    pub(super) fn follow(&self, ask: &mut OwnedAsk, now: Time) {
        if let Some(Migration { to, .. }) = self.successor(&ask.limit, ask.key, now) {
            let replaced = mem::replace(&mut ask.limit, to.clone());
            ask.requested.get_or_insert(replaced);
        }
    }

    /// Whether a reload has replaced or removed the limit of this cell lately.
    pub(super) fn is_replaced(&self, place: CellPlace) -> bool {
        let CachedCell { names, key, now, .. } = self.peek(place);
        *now < self.migrating_until && !self.reloads.is_in_use(&names.limit, *key)
    }

    /// If the cell is used for the first time after a reload, and its limit has replaced another one since its last use, the
    /// cell continues from that limit's cell, as far as it is known here.
    pub(super) fn see_reload(&mut self, place: CellPlace, limit: &Arc<Limit>, now: Time) {
        let (count, CachedCell { key, reload, .. }) = (self.reloads.count(), self.peek(place));
        let key = *key;
        if *reload == count || !self.reloads.is_in_use(limit, key) {
            return;
        }
        let before = mem::replace(&mut self.at(place).reload, count);
        let is_new = |migration: &&Migration| migration.is_open(now) && migration.reload > before;
        let migrations: Vec<Migration> = self.reloads.before(limit, key).filter(is_new).cloned().collect();
        for Migration { from, at, .. } in migrations {
            let Some(old) = self.find(key.with(from.shape())) else { continue };
            let counted = self.peek(old).counted();
            let cached = self.at(place);
            cached.advance(limit, now.max(cached.now));
            cached.continue_from(limit.migrate(&from, counted, at), limit);
        }
    }
}

impl CachedCell {
    /// The counts from which a replacing limit continues: all but leases that are given back as soon as they are granted.
    fn counted(&self) -> Cell {
        let mut counted = self.cell.clone();
        self.correct_withdrawn(&mut counted, u64::saturating_sub);
        counted
    }

    /// Corrects, in a copy of its cell, what such leases have counted.
    fn correct_withdrawn(&self, cell: &mut Cell, correct: fn(u64, u64) -> u64) {
        for charge in self.withdrawn() {
            let cost = charge.ticket.cost();
            charge.buckets().for_each(|(rate, bucket)| cell.correct(rate, bucket, |count| correct(count, cost)));
        }
    }

    /// Counts no less than a replaced limit's cell that was `migrated` to this limit. Earlier reads do not suffice any more.
    fn continue_from(&mut self, mut migrated: Cell, limit: &Limit) {
        let (rates, now) = (limit.rates(), self.now);
        migrated.advance(rates, now);
        if migrated.is_spent(rates, now) {
            return;
        }
        // What will be given back is added on top.
        let mut raised = self.counted();
        limit.raise(&mut raised, &migrated, now);
        self.correct_withdrawn(&mut raised, u64::saturating_add);
        for (rate, bucket, count) in raised.counts_mut().filter(|(.., count)| **count > 0) {
            self.counters.hold(CounterId { rate, bucket }, *count);
        }
        self.cell = raised;
        if let Some(state) = &mut self.versioned {
            state.hold(migrated, limit, now);
        }
        self.must_be_read();
    }
}
