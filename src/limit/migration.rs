//! Migration: the cell with which a limit continues after a reload has changed how it counts.
//!
//! Each rate continues from the old rate of the same period. If both have the same layout of state, the state is copied.
//! Otherwise the new rate begins as if everything that the old one counts at the moment of the reload had come at that
//! moment. No request passes the limit because of that, since what has come before leaves the window later than it would
//! have, and at the latest one window after the reload. A rate whose period is new begins with nothing, because nothing was
//! counted for it.
//!
//! The first request for a key may come long after the reload. The cell is nevertheless migrated as of the reload, and
//! advanced from there. So the result does not depend on when that is done, and what was reserved before is found where it
//! was counted.

use smallvec::SmallVec;

use super::Limit;
use super::bounds::MAX_COUNT;
use super::cell::Cell;
use super::rate::{Rate, Strategy};
use super::reservation::Reservation;
use super::sliding_log::{self, Log};
use super::state::State;
use super::token_bucket::{draining, units};
use crate::clock::Time;

impl Rate {
    /// The index of the rate among the `old` ones from which this one continues: the one of the same period.
    pub fn predecessor(&self, old: &[Self]) -> Option<usize> {
        old.iter().position(|old| match (self.strategy(), old.strategy()) {
            (Strategy::Calendar(calendar), Strategy::Calendar(old)) => calendar.unit() == old.unit(),
            (Strategy::Calendar(_), _) | (_, Strategy::Calendar(_)) => false,
            _ => self.span() == old.span(),
        })
    }
}

impl Limit {
    /// Whether cells of this limit can continue from those of `old`.
    pub fn continues(&self, old: &Self) -> bool {
        self.rates.iter().any(|rate| rate.predecessor(&old.rates).is_some())
    }

    /// For how many microseconds after a migration its result can differ from a new cell.
    pub fn migration_memory(&self, old: &Self) -> u64 {
        let carried = self.rates.iter().filter_map(|rate| Some((rate, &old.rates[rate.predecessor(&old.rates)?])));
        let memory = carried.map(|(rate, old)| match rate.strategy() {
            Strategy::TokenBucket { burst } => {
                let most = old.capacity().max(*burst).max(rate.quota());
                draining(rate, units(rate, most))
            }
            _ => rate.memory(),
        });
        memory.max().unwrap_or(0)
    }

    /// The cell with which this limit continues for a key that `old` has counted in `cell` until it was replaced, at `at`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::clock::Time;
    /// use gateway::limit::{Cell, Limit, Rate, Strategy};
    ///
    /// let rate = Rate::new(5, Duration::from_secs(60))?;
    /// let old = Limit::new("a", &[rate.clone()]);
    /// let new = Limit::new("a", &[rate.with_strategy(Strategy::SlidingLog)?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(old.rates(), now);
    /// old.charge(&mut cell, now, 3);
    ///
    /// let cell = new.migrate(&old, cell, now);
    /// assert_eq!(new.judge(&cell, now, 1, true).remaining, 2);
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn migrate(&self, old: &Self, mut cell: Cell, at: Time) -> Cell {
        // Requests that were under way at the reload may have been counted a little after it.
        let at = Time::from_micros(at.micros().max(cell.latest()));
        cell.advance(&old.rates, at);
        let used = old.used(&cell, at);
        let mut migrated = Cell::new(&self.rates, at);
        for (rate, state) in migrated.rated_mut(&self.rates) {
            let Some(source) = rate.predecessor(&old.rates) else { continue };
            match cell.rated(&old.rates).nth(source) {
                Some((old_rate, old_state)) if rate.is_kept_like(old_rate) => state.clone_from(old_state),
                _ => state.begin(rate, used[source], at),
            }
        }
        let Some(mut extension) = cell.extension else {
            self.fill_log(&mut migrated, Log::default(), (old, &used), at);
            return migrated;
        };
        let low_water = std::mem::take(&mut extension.low_water).into_iter().filter_map(|(source, low_water)| {
            let before = old.rates.get(source)?;
            let place = self.rates.iter().position(|rate| rate.is_kept_like(before))?;
            Some((place, low_water))
        });
        let low_water: Vec<_> = low_water.collect();
        if !low_water.is_empty() {
            migrated.extension.get_or_insert_default().low_water = low_water;
        }
        self.fill_log(&mut migrated, extension.log, (old, &used), at);
        migrated
    }

    /// What each rate counts at `now`, to which the cell has been advanced.
    pub(super) fn used(&self, cell: &Cell, now: Time) -> SmallVec<[u64; 4]> {
        cell.usages(&self.rates, now).map(|usage| usage.used()).collect()
    }

    /// Gives the cell the log for all of its sliding logs. It begins with this log, and what is `used` of the `old` limit's
    /// rates beyond what the log has is added to it. What a window counts beyond the next shorter one is entered at the
    /// moment at which it has just left the shorter one.
    pub(super) fn fill_log(&self, cell: &mut Cell, log: Log, (old, used): (&Self, &[u64]), at: Time) {
        let mut added: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        for (rate, shorter) in self.logged() {
            let Some(source) = rate.predecessor(&old.rates) else { continue };
            let known = added.iter().fold(0, |sum: u64, (_, cost)| sum.saturating_add(*cost));
            let seen = sliding_log::Usage::new(rate, Some(&log), at).count().saturating_add(known);
            let lacking = used[source].min(MAX_COUNT).saturating_sub(seen);
            added.push((at.micros().saturating_sub(shorter), lacking));
        }
        added.retain(|(_, cost)| *cost > 0);
        if added.is_empty() {
            if log.newest().is_some() && self.grows() {
                cell.set_log(log);
            }
            return;
        }
        let mut entries: Vec<(u64, u64)> = log.iter().chain(added).collect();
        entries.sort_by_key(|(time, _)| *time);
        let mut log = Log::default();
        entries.into_iter().for_each(|(time, cost)| log.add(time, cost));
        cell.set_log(log);
    }

    /// The rates that use the log, beginning with the shortest window, each with the next shorter window, which is 0 for the
    /// first.
    fn logged(&self) -> impl Iterator<Item = (&Rate, u64)> {
        let mut logged: SmallVec<[&Rate; 4]> =
            self.rates.iter().filter(|rate| *rate.strategy() == Strategy::SlidingLog).collect();
        logged.sort_unstable_by_key(|rate| rate.span());
        let mut shorter = 0;
        logged.into_iter().map(move |rate| (rate, std::mem::replace(&mut shorter, rate.span())))
    }

    /// A reservation that `old` made before it was replaced at `at`, changed so that it can be given back to a cell that has
    /// been migrated since. The part of it that did not count any more at `at`, or that cannot be distinguished from other
    /// requests, stays charged.
    pub fn migrate_reservation(&self, old: &Self, reservation: &Reservation, at: Time) -> Reservation {
        let counted = |rate: &Rate| {
            let source = rate.predecessor(&old.rates)?;
            let (rate, mark) = (&old.rates[source], *reservation.marks.get(source)?);
            Some((source, State::new(rate, at).certain_at(rate, reservation.cost(), mark, at)))
        };
        // All sliding logs share one log, and the reservation was entered for the shortest window in which it counted.
        let in_log = self.logged().find_map(|(rate, shorter)| {
            let (source, counted) = counted(rate).filter(|(_, counted)| *counted == reservation.cost())?;
            let is_same = rate.is_kept_like(&old.rates[source]);
            let moment = at.micros().saturating_sub(shorter);
            Some((if is_same { reservation.marks[source] } else { moment }, Some(counted)))
        });
        let places = self.rates.iter().map(|rate| match (rate.strategy(), counted(rate)) {
            (Strategy::SlidingLog, _) => in_log.unwrap_or((at.micros(), Some(0))),
            (_, Some((source, _))) if rate.is_kept_like(&old.rates[source]) => (reservation.marks[source], None),
            (_, counted) => (State::new(rate, at).mark(at), Some(counted.map_or(0, |(_, counted)| counted))),
        });
        reservation.migrated(places)
    }
}
