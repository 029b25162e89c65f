//! Migration: the cell with which a limit continues after a reload has changed how it counts.
//!
//! Each rate continues from the old rate of the same period. If both have the same layout of state, the state is copied.
//! Otherwise the new rate begins as if all that the old one counts had come at the moment of the reload. That admits nothing
//! more, since earlier requests leave the window later than they would have, but at the latest one window after the reload. A
//! rate with a new period begins with nothing, and so does every rate of a limit that counts in another unit.
//!
//! The first request for a key may come long after the reload. Its cell is migrated as of the reload and advanced from there,
//! so the result does not depend on when that happens, and earlier reservations are found where they were counted.
//!
//! Gateways that share counters reload at different moments, and each migrates what it knows, so one may migrate what another
//! has migrated already. Charging the sum would count it twice; raising a cell to the sum twice is the same as raising it
//! once.

use smallvec::SmallVec;

use super::Limit;
use super::cell::Cell;
use super::counting::Context;
use super::extension::Extension;
use super::log::AdmissionLog;
use super::rate::Rate;
use super::reservation::Reservation;
use super::sliding_log::{by_window, fill};
use super::state::State;
use crate::base::clock::Time;

impl Limit {
    /// Whether cells of this limit can continue from cells of `old`.
    pub fn continues(&self, old: &Self) -> bool {
        self.unit == old.unit && self.rates.iter().any(|rate| rate.predecessor(&old.rates).is_some())
    }

    /// For how many microseconds after a migration its result can differ from a new cell.
    pub fn migration_memory(&self, old: &Self) -> u64 {
        let carried = self.rates.iter().filter_map(|rate| Some((rate, &old.rates[rate.predecessor(&old.rates)?])));
        carried.map(|(rate, old)| rate.memory_after(old.capacity().max(rate.quota()))).max().unwrap_or(0)
    }

    /// The cell with which this limit continues for a key. `old` counted the key in `cell` until it was replaced at `at`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
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
        // Requests in flight during the reload may have been counted a little after it.
        let at = Time::from_micros(at.micros().max(cell.latest()));
        cell.advance(&old.rates, at);
        let used: SmallVec<[u64; 4]> = cell.usages(&old.rates, at).map(|usage| usage.used).collect();
        let mut migrated = Cell::new(&self.rates, at);
        for (rate, state) in migrated.rated_mut(&self.rates) {
            let Some(source) = rate.predecessor(&old.rates) else { continue };
            match cell.rated(&old.rates).nth(source) {
                Some((old_rate, old_state)) if rate.is_kept_like(old_rate) => state.clone_from(old_state),
                _ => state.change(|state| state.begin(rate, used[source], at)),
            }
        }
        let Extension { mut log, low_water } = cell.extension.map(|extension| *extension).unwrap_or_default();
        if self.grows() {
            fill(&mut log, &self.rates, |rate| Some(used[rate.predecessor(&old.rates)?]), at);
        } else {
            log = AdmissionLog::default();
        }
        let low_water = low_water.into_iter().filter_map(|(source, low_water)| {
            let before = old.rates.get(source)?;
            let place = self.rates.iter().position(|rate| rate.is_kept_like(before))?;
            Some((place, low_water))
        });
        let extension = Extension { log, low_water: low_water.collect() };
        migrated.extension = Some(extension).filter(|extension| !extension.is_empty()).map(Box::new);
        migrated
    }

    /// Converts a reservation that `old` made before it was replaced at `at`, so that it can be given back to a migrated
    /// cell. What did not count any more at `at`, or cannot be distinguished from other requests, stays charged.
    pub fn migrate_reservation(&self, old: &Self, reservation: &Reservation, at: Time) -> Reservation {
        let counted = |rate: &Rate| {
            let source = rate.predecessor(&old.rates)?;
            let (rate, mark) = (&old.rates[source], *reservation.marks.get(source)?);
            let state = State::new(rate, at);
            Some((source, state.read(|state| state.certain_at(rate, reservation.cost(), mark, at))))
        };
        // All sliding logs share one log, and the reservation was entered for the shortest window in which it counted.
        let in_log = by_window(&self.rates).find_map(|(rate, shorter)| {
            let (source, counted) = counted(rate).filter(|(_, counted)| *counted == reservation.cost())?;
            let is_same = rate.is_kept_like(&old.rates[source]);
            let moment = at.micros().saturating_sub(shorter);
            Some((if is_same { reservation.marks[source] } else { moment }, Some(counted)))
        });
        let places = self.rates.iter().map(|rate| match counted(rate) {
            _ if rate.is_logged() => in_log.unwrap_or((at.micros(), Some(0))),
            Some((source, _)) if rate.is_kept_like(&old.rates[source]) => (reservation.marks[source], None),
            counted => {
                let mark = State::new(rate, at).read(|state| state.mark(at));
                (mark, Some(counted.map_or(0, |(_, counted)| counted)))
            }
        });
        reservation.migrated(places)
    }
}

/// For [stores that are shared](super::shared).
impl Limit {
    /// Raises what each rate counts in `cell` to what it counts in `least`, if that is more. Both cells must belong to this
    /// limit and be advanced to `now`.
    ///
    /// If a rate has counted nothing in `cell`, its state is copied from `least`. Otherwise the difference is added as if it
    /// had come at `now`, so it may count for longer than in `least`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::{Cell, Limit, Rate};
    ///
    /// let limit = Limit::new("a", &[Rate::new(9, Duration::from_secs(60))?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let [mut cell, mut least] = [(); 2].map(|()| Cell::new(limit.rates(), now));
    /// limit.charge(&mut cell, now, 2);
    /// limit.charge(&mut least, now, 5);
    ///
    /// limit.raise(&mut cell, &least, now);
    /// assert_eq!(limit.judge(&cell, now, 1, true).remaining, 4);
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn raise(&self, cell: &mut Cell, least: &Cell, now: Time) {
        let Cell { states, extension } = cell;
        for (place, ((rate, state), of_least)) in self.rates.iter().zip(states).zip(&least.states).enumerate() {
            let mut context = Context { rates: &self.rates, place, rate, extension };
            state.raise(&mut context, of_least, least.log(), now);
        }
    }
}
