//! Cells after a reload: which cell counts a key now, what it continues from, and when the cells of removed limits go.
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

use tokio::time::Instant;

use super::OwnedAsk;
use super::cached_cell::CachedCell;
use super::cells::{CellPlace, Cells};
use super::counters::CounterId;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};
use crate::store::LimitChanges;
use crate::store::reloads::Migration;

/// The number of cells per step of a sweep: some tens of microseconds.
const STEP: usize = 1024;
/// When a sweep examines needed cells again, for example while a server is away that has yet to get their charges.
const AGAIN: Duration = Duration::from_secs(10);

impl Cells {
    /// Applies a reload or a change of overrides. Returns whether cells must be dropped because of it, now or later.
    pub(super) fn reload(&mut self, changes: &LimitChanges, now: Time) -> bool {
        let has_dropped = self.reloads.add(changes, now);
        self.migrating_until = self.reloads.until();
        has_dropped
    }

    /// Forgets expired migrations. Returns the time until the last one expires, if any.
    fn expire_migrations(&mut self, now: Time) -> Option<Duration> {
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
        self.withdrawn().for_each(|charge| charge.correct(&mut counted, u64::saturating_sub));
        counted
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
        self.withdrawn().for_each(|charge| charge.correct(&mut raised, u64::saturating_add));
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

/// Drops the cells of removed limits, some at a time. Pending charges to them are written first; on the server their
/// counters expire.
#[derive(Debug)]
pub(super) struct Sweep {
    next: usize,
    needed: usize,
    pub(super) at: Instant,
}

impl Sweep {
    pub(super) fn new(at: Instant) -> Self {
        Self { next: 0, needed: 0, at }
    }

    pub(super) fn step(mut self, cells: &mut Cells, at: Instant, now: Time) -> Option<Self> {
        if self.next == 0 {
            // Cells of replaced limits stay until their counts no longer matter.
            cells.expire_migrations(now);
        }
        match cells.forget(self.next..self.next + STEP, now) {
            Some(needed) => {
                self.next += STEP;
                self.needed += needed;
                self.at = at;
            }
            None => {
                let again = if self.needed > 0 { Some(AGAIN) } else { cells.expire_migrations(now) };
                self = Self::new(at + again?);
            }
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Replaced;
    use crate::store::shared::cached_cell::ExchangeStage;
    use crate::store::shared::tests::ask;

    fn of_limit(cells: &mut Cells, name: &str) -> usize {
        let places = 0..u32::try_from(cells.len()).unwrap();
        places.filter(|place| cells.at(*place).names.limit.name() == name).count()
    }

    #[test]
    fn all_cells_of_removed_limits_go_once_they_are_not_needed() {
        let now = (Instant::now(), Time::from_micros(1_800_000_000_000_000));
        let mut cells = Cells::on(&["a:1"]);
        let [stays, goes] = ["stays", "goes"].map(|name| Arc::new(Limit::new(name, &["9/d".parse().unwrap()])));
        let mut cell = |limit: &Arc<Limit>, key: usize| {
            let key = Fingerprint::of(&key.to_be_bytes());
            cells.of(limit, key, now.1).0
        };
        let needed = cell(&goes, 0);
        cell(&stays, usize::MAX);
        for key in 1..=2 * STEP {
            cell(&goes, key);
        }
        cells.at(needed).stage = ExchangeStage::InFlight;
        cells.reload(
            &LimitChanges { in_use: vec![stays.clone()], replaced: Vec::new(), ..LimitChanges::default() },
            now.1,
        );
        let mut sweep = Sweep::new(now.0);
        let mut steps = 0;
        while sweep.at == now.0 {
            sweep = sweep.step(&mut cells, now.0, now.1).unwrap();
            steps += 1;
        }
        assert_eq!((steps, sweep.at), (4, now.0 + AGAIN), "one cell is still needed");
        assert_eq!(of_limit(&mut cells, "goes"), 1);
        cells.at(needed).stage = ExchangeStage::Idle;
        let later = (sweep.at, now.1);
        let mut sweep = Some(sweep);
        while let Some(next) = sweep {
            assert_eq!(next.at, later.0);
            sweep = next.step(&mut cells, later.0, later.1);
        }
        assert_eq!((of_limit(&mut cells, "goes"), of_limit(&mut cells, "stays")), (0, 1));
    }

    #[test]
    fn cells_of_replaced_limits_go_when_their_counts_matter_no_more() {
        let (instant, now) = (Instant::now(), Time::from_micros(1_800_000_000_000_000));
        let mut cells = Cells::on(&["a:1"]);
        let limit = |rate: &str| Arc::new(Limit::new("l", &[rate.parse().unwrap()]));
        let [old, new] = ["9/m", "9/m burst 9"].map(limit);
        let key = Fingerprint::of(b"k");
        let ask = ask(&old, key);
        cells.of(&ask.limit, ask.key, now);
        cells.reload(
            &LimitChanges {
                in_use: vec![new.clone()],
                replaced: vec![Replaced { key: None, from: old, to: new }],
                ..LimitChanges::default()
            },
            now,
        );
        let sweep = Sweep::new(instant).step(&mut cells, instant, now).unwrap();
        let sweep = sweep.step(&mut cells, instant, now).unwrap();
        assert_eq!((of_limit(&mut cells, "l"), sweep.at), (1, instant + Duration::from_secs(60)));
        let (instant, now) = (sweep.at, now.after(Duration::from_secs(60)));
        let sweep = sweep.step(&mut cells, instant, now).unwrap();
        assert_eq!(of_limit(&mut cells, "l"), 0);
        assert!(sweep.step(&mut cells, instant, now).is_none());
    }
}
