//! Cells after a reload: which cell counts a key now, and which replaced limits it continues.
//!
//! A reload may replace the limit of a request that is under way, or of one that is held and asks again. Then the limit decides
//! that counts the key now.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::OwnedAsk;
use super::cached_cell::CachedCell;
use super::carry_over::{CarryOver, Source};
use super::cells::{Cells, Place};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::LimitChanges;
use crate::store::reloads::Migration;

impl Cells {
    /// Applies a reload, or a change of overrides, that takes effect at `now`. Returns whether there are cells to be dropped
    /// because of it, now or later.
    pub(super) fn reload(&mut self, changes: &LimitChanges, now: Time) -> bool {
        let has_dropped = self.reloads.add(changes, now);
        self.migrating_until = self.reloads.until();
        has_dropped
    }

    /// Forgets migrations that have expired. Returns how long it takes until the last one does, if there is one.
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

    /// Asks the limit that counts the key now, if a reload has replaced the one that is asked.
    pub(super) fn follow(&self, ask: &mut OwnedAsk, now: Time) {
        if let Some(Migration { to, .. }) = self.successor(&ask.limit, ask.key, now) {
            let replaced = mem::replace(&mut ask.limit, to.clone());
            ask.asked.get_or_insert(replaced);
        }
    }

    /// Whether a reload has replaced or removed the limit of this cell lately.
    pub(super) fn is_replaced(&self, place: Place) -> bool {
        let CachedCell { names, key, now, .. } = self.peek(place);
        *now < self.migrating_until && !self.reloads.is_in_use(&names.limit, *key)
    }

    /// Sees whether a cell is used for the first time after a reload. If its limit has replaced another one since it
    /// was used last, it continues from that.
    pub(super) fn see_reload(&mut self, place: Place, limit: &Arc<Limit>, now: Time) {
        let (count, CachedCell { key, reload, .. }) = (self.reloads.count(), self.peek(place));
        let key = *key;
        if *reload == count || !self.reloads.is_in_use(limit, key) {
            return;
        }
        let before = mem::replace(&mut self.at(place).reload, count);
        let is_new = |migration: &&Migration| migration.is_open(now) && migration.reload > before;
        let migrations: Vec<Migration> = self.reloads.before(limit, key).filter(is_new).cloned().collect();
        if migrations.is_empty() {
            return;
        }
        let (mut sources, mut pending, mut number) = (Vec::new(), Vec::new(), None);
        for Migration { from, at, .. } in migrations {
            let old = self.find(key.with(from.shape()));
            let cached = old.map(|old| {
                let old = self.at(old);
                number = number.or(Some(old.number));
                let (cell, more) = old.hand_over(limit);
                pending.extend(more);
                cell
            });
            sources.push(Source { names: self.names_of(&from), at, cached });
        }
        let unused = self.unused_number();
        let cached = self.at(place);
        cached.number = number.unwrap_or(cached.number);
        cached.advance(limit, now.max(cached.now));
        let carry_over = CarryOver::new(sources, limit, unused, cached.now);
        cached.begin_carry_over(carry_over, pending);
    }
}
