//! What is charged before the cost of a request is known, and corrected when it is.
//!
//! What was reserved too much is given back where it was counted, so that it is as if it had never been counted there. What
//! turns out to cost more is charged like anything else, at the moment at which it is known: in the place of the
//! reservation it might not matter any more, and whoever answers slowly would be let through for nothing.

use smallvec::SmallVec;

use super::cell::Cell;
use super::extension::Extension;
use super::low_water::LowWater;
use super::rate::{Rate, Strategy};
use super::sliding_log::longest;
use super::state::State;
use super::token_bucket::{drained, units};
use crate::clock::Time;

/// Where a charge was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    cost: u64,
    /// For each rate what names the place: of a sliding window and of the calendar the bucket, else the moment in
    /// microseconds since 1970.
    pub(super) marks: SmallVec<[u64; 2]>,
    /// For how many microseconds it was not followed.
    lag: u64,
    /// For each rate of a cell that was migrated since: how much of it is in the sum that was carried over, or `None` if the
    /// state was taken over as it was. Empty before a migration.
    carried: SmallVec<[Option<u64>; 2]>,
}

impl Reservation {
    pub(super) fn new(cost: u64, marks: impl Iterator<Item = u64>) -> Self {
        Self { cost, marks: marks.collect(), lag: 0, carried: SmallVec::new() }
    }

    /// The same in a cell that was migrated to other rates: for each the mark, and how much of it was carried over, if only
    /// the sum was.
    pub(super) fn migrated(&self, places: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let (marks, carried) = places.unzip();
        Self { cost: self.cost, marks, lag: self.lag, carried }
    }

    /// How much of the sum of the rate at `place` is of this reservation; `None` if it was not migrated as a sum.
    fn carried(&self, place: usize) -> Option<u64> {
        self.carried.get(place).copied().flatten()
    }

    /// How much is taken from the rate at `place` for `cost` that is given back. What was not carried over comes first, since
    /// it cannot be told from the rest.
    fn returnable(&self, place: usize, cost: u64) -> u64 {
        cost.saturating_sub(self.carried(place).map_or(0, |carried| self.cost - carried.min(self.cost)))
    }

    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// When it was charged, by what is noted of it for the rates whose state is kept as a whole, if there are any.
    pub fn moment(&self, rates: &[Rate]) -> Option<Time> {
        let marked = rates.iter().zip(&self.marks).filter(|(rate, _)| !rate.uses_counters());
        let moment = marked.map(|(rate, mark)| mark - if is_followed(rate) { self.lag.min(*mark) } else { 0 }).max()?;
        Some(Time::from_micros(moment))
    }

    /// The buckets of plain sums in which it was counted: the places of their rates, and what names the buckets.
    pub fn buckets<'a>(&'a self, rates: &'a [Rate]) -> impl Iterator<Item = (usize, u64)> {
        let marked = rates.iter().zip(&self.marks).enumerate();
        marked.filter(|(_, (rate, _))| rate.uses_counters()).map(|(place, (_, mark))| (place, *mark))
    }
}

/// Whether a rate keeps something of a reservation for as long as it is open.
pub(super) fn is_followed(rate: &Rate) -> bool {
    matches!(rate.strategy(), Strategy::TokenBucket { .. })
}

impl Cell {
    /// Where `cost`, which has just been charged at `now`, was counted.
    pub(super) fn place_of(&self, rates: &[Rate], now: Time, cost: u64) -> Reservation {
        let now = now.micros();
        let marks = self.rated(rates).map(|(_, state)| match state {
            State::SlidingWindow(window) => window.newest(),
            State::Calendar(window) => window.bucket(),
            State::FixedWindow(window) => now.max(window.start()),
            State::TokenBucket(bucket) => bucket.moment(),
            // It may be counted with a later one, but never with an earlier one.
            State::SlidingLog => now,
        });
        Reservation::new(cost, marks)
    }

    /// Follows a reservation until something of it is given back, or nothing: then what has drained of it is known.
    pub(super) fn follow(&mut self, rates: &[Rate], reservation: &mut Reservation) {
        let Self { states, extension } = self;
        let marked = rates.iter().zip(states).zip(&mut reservation.marks);
        for (place, ((_, state), mark)) in marked.enumerate() {
            let State::TokenBucket(bucket) = state else { continue };
            reservation.lag = bucket.moment().saturating_sub(*mark);
            *mark = bucket.moment();
            let Extension { low_water, .. } = &mut **extension.get_or_insert_default();
            match low_water.iter_mut().find(|(of, _)| *of == place) {
                Some((_, low_water)) => low_water.open(*mark),
                None => {
                    let mut opened = LowWater::default();
                    opened.open(*mark);
                    low_water.push((place, opened));
                }
            }
        }
    }

    /// What was taken back, `cost`, is not charged again: of what is followed less may be in the bucket than was seen.
    pub(super) fn took_back(&mut self, rates: &[Rate], cost: u64) {
        for (place, low_water) in self.extension.iter_mut().flat_map(|extension| &mut extension.low_water) {
            if let Some(rate) = rates.get(*place) {
                low_water.lower(units(rate, cost));
            }
        }
    }

    /// Gives back `cost` of a reservation where it was counted, as far as that still matters at `now`, to which the cell
    /// has been advanced: to every rate, or only to those whose state is kept as a whole.
    pub(super) fn give_back(
        &mut self,
        rates: &[Rate],
        now: Time,
        reservation: &Reservation,
        cost: u64,
        only_whole: bool,
    ) {
        let Self { states, extension } = self;
        let marked = rates.iter().zip(states).zip(&reservation.marks);
        for (place, ((rate, state), mark)) in marked.enumerate() {
            let cost = reservation.returnable(place, cost);
            match state {
                State::SlidingWindow(_) | State::Calendar(_) => {
                    if let Some(count) = state.counter_mut(*mark).filter(|_| !only_whole) {
                        *count = count.saturating_sub(cost);
                    }
                }
                State::FixedWindow(window) => window.give_back(*mark, cost),
                State::SlidingLog => {}
                State::TokenBucket(bucket) => {
                    let units = drained(rate, units(rate, cost), reservation.lag);
                    // Where the bucket was followed in this very cell, a reservation that is not followed any more has
                    // drained. In another cell, what cannot have drained is still certain.
                    let is_unknown = only_whole || reservation.carried(place).is_some();
                    let certain = if is_unknown { bucket.certain(rate, units, *mark) } else { 0 };
                    let low_water = extension.as_deref_mut().and_then(|extension| extension.low_water(place));
                    bucket.take_units(match low_water {
                        Some(low_water) => low_water.close(*mark, (units, certain), bucket.moment(), bucket.used()),
                        None => certain,
                    });
                }
            }
        }
        let Some(Extension { log, low_water }) = extension.as_deref_mut() else { return };
        let moving = rates.iter().position(|rate| *rate.strategy() == Strategy::SlidingLog);
        if let (Some(moving), Some(longest)) = (moving, longest(rates))
            && let Some(mark) = reservation.marks.get(moving)
            && now.micros().saturating_sub(*mark) < longest
        {
            log.give_back(*mark, reservation.returnable(moving, cost));
        }
        low_water.retain(|(_, low_water)| !low_water.is_empty());
        if low_water.is_empty() && log.newest().is_none() {
            *extension = None;
        }
    }
}
