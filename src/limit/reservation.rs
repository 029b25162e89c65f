//! Reservations: what is charged before the cost of a request is known, and corrected when it is.
//!
//! An excess is given back where it was counted, as if it had never been counted. A shortfall is charged at the moment when
//! the cost becomes known: at the moment of the reservation it might not matter any more, so clients could avoid their limits
//! with requests that take long. Parallel requests of unknown cost cannot pass together, since each is charged. If a request
//! ends without telling its cost, the reservation stays charged.

use smallvec::SmallVec;

use super::Limit;
use super::cell::Cell;
use super::counting::{Buckets, GivenBack};
use super::log::AdmissionLog;
use super::rate::Rate;
use super::state::State;
use crate::base::clock::Time;

/// Where a charge was counted, so that it can be given back there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    cost: u64,
    /// Names the place for each rate: the bucket for rates that use counters, else the moment in microseconds since 1970.
    pub(super) marks: SmallVec<[u64; 2]>,
    /// For how many microseconds after the charge nobody tracked it.
    lag: u64,
    /// After a migration, for each rate: how much of the reservation is in the sum that was carried over, or `None` if the
    /// state was copied. Empty before a migration.
    carried: SmallVec<[Option<u64>; 2]>,
}

impl Reservation {
    fn new(cost: u64, marks: impl Iterator<Item = u64>) -> Self {
        Self { cost, marks: marks.collect(), lag: 0, carried: SmallVec::new() }
    }

    /// The reservation in a migrated cell. For each rate: the mark, and how much was carried over if only a sum was.
    pub(super) fn migrated(&self, places: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let (marks, carried) = places.unzip();
        Self { cost: self.cost, marks, lag: self.lag, carried }
    }

    /// Stands for `cost` of what is counted when it is given back, whoever was charged for it.
    pub fn of_any(cost: u64) -> Self {
        Self { cost, ..Self::default() }
    }

    /// Whether it names no place, because it is one of [`Self::of_any`].
    pub fn is_of_any(&self) -> bool {
        self.cost > 0 && self.marks.is_empty()
    }

    /// How much of the sum of the rate at `place` is of this reservation; `None` if no sum was carried over.
    fn carried(&self, place: usize) -> Option<u64> {
        self.carried.get(place).copied().flatten()
    }

    /// How much the rate at `place` returns if `cost` is given back. The part that was not carried over is given back first,
    /// because it is unknown which part of the cost it was.
    pub(crate) fn returnable(&self, place: usize, cost: u64) -> u64 {
        cost.saturating_sub(self.carried(place).map_or(0, |carried| self.cost - carried.min(self.cost)))
    }

    /// The cost that was charged.
    pub fn cost(&self) -> u64 {
        self.cost
    }
}

impl Limit {
    /// Where up to `cost` of what the cell counts can be given back, the newest first: each rate has its own places, so it
    /// never gives back more than it counts. Only the first reservation is about rates whose state is kept as a whole. The
    /// cell must be advanced to `now`.
    pub fn newest_charges(&self, cell: &Cell, now: Time, cost: u64) -> Vec<Reservation> {
        let places: Vec<_> = cell.rated(&self.rates).map(|(_, state)| newest_places(cell, state, now, cost)).collect();
        let most = places.iter().map(SmallVec::len).max().unwrap_or(0);
        let nth = |nth: usize| {
            let of_rates = places.iter().map(|places| places.get(nth).copied().unwrap_or_default());
            let (marks, carried) = of_rates.map(|(mark, part)| (mark, Some(part))).unzip();
            Reservation { cost, marks, lag: 0, carried }
        };
        (0..most).map(nth).collect()
    }
}

/// Places of what the state counts, up to `cost` in all: marks, and how much is there.
fn newest_places(cell: &Cell, state: &State, now: Time, cost: u64) -> SmallVec<[(u64, u64); 2]> {
    let mut left = cost;
    match (state, state.buckets().map(Buckets::counters)) {
        (_, Some((newest, counts))) => (0..)
            .zip(counts)
            .map(|(age, count)| {
                let part = left.min(*count);
                left -= part;
                (newest.saturating_sub(age), part)
            })
            .filter(|(_, part)| *part > 0)
            .collect(),
        (State::SlidingLog(_), None) => {
            let entries = || cell.log().into_iter().flat_map(AdmissionLog::iter);
            let mut later: u64 = entries().map(|(_, count)| count).sum();
            // The newest entries that have so much begin with this one.
            let first = entries().find(|(_, count)| {
                later -= count;
                later < cost
            });
            first.map(|(time, _)| (time, cost)).into_iter().collect()
        }
        (_, None) => SmallVec::from_iter([(state.read(|state| state.mark(now)), cost)]),
    }
}

impl Cell {
    /// Gives back `cost` of a reservation where it was counted, as far as that still matters: to every rate, or only to those
    /// whose state is kept as a whole. The cell must be advanced to `now`.
    pub(super) fn give_back(
        &mut self,
        rates: &[Rate],
        now: Time,
        reservation: &Reservation,
        cost: u64,
        only_whole: bool,
    ) {
        self.each(rates, |state, context| {
            let place = context.place;
            let Some(mark) =
                reservation.marks.get(place).copied().filter(|_| !only_whole || !context.rate.uses_counters())
            else {
                return;
            };
            let (cost, lag) = (reservation.returnable(place, cost), reservation.lag);
            let is_elsewhere = only_whole || reservation.carried(place).is_some();
            state.give_back(context, GivenBack { now, mark, cost, lag, is_elsewhere });
        });
        self.extension.take_if(|extension| {
            extension.low_water.retain(|(_, low_water)| !low_water.is_empty());
            extension.is_empty()
        });
    }
}

/// For [stores that are shared](super::shared).
impl Limit {
    /// Where `cost`, which has just been charged at `now`, was counted. Nothing is tracked before [`Self::follow`].
    pub fn place_of(&self, cell: &Cell, now: Time, cost: u64) -> Reservation {
        Reservation::new(cost, cell.rated(&self.rates).map(|(_, state)| state.read(|state| state.mark(now))))
    }

    /// Tracks a reservation from now on, so that its drained part is known when it is given back.
    pub fn follow(&self, cell: &mut Cell, reservation: &mut Reservation) {
        let Reservation { marks, lag, .. } = reservation;
        for (place, (state, mark)) in cell.states.iter().zip(marks).enumerate() {
            if let State::TokenBucket(bucket) = state {
                let since = bucket.follow(cell.extension.get_or_insert_default(), place);
                *lag = since.saturating_sub(*mark);
                *mark = since;
            }
        }
    }

    /// [`Self::give_back`], but only for the rates whose state is kept as a whole.
    pub fn give_back_whole(&self, cell: &mut Cell, now: Time, reservation: &Reservation, cost: u64) {
        cell.give_back(&self.rates, now, reservation, cost, true);
    }
}

/// For [stores that are shared](super::shared).
impl Reservation {
    /// Sets the cost that was counted at the same place.
    pub fn set_cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// A charge to the rates whose state is kept as a whole: windows counted it at the moment `mark`; from buckets it may
    /// have drained since the moment `from`.
    pub(super) fn of_whole(rates: &[Rate], cost: u64, mark: Time, from: Time) -> Self {
        let moment = |rate: &Rate| if rate.drains() { from.micros() } else { mark.micros() };
        Self::new(cost, rates.iter().map(moment))
    }

    /// The reservation of a request that was charged but not admitted, given back before it can have drained from a bucket.
    #[must_use]
    pub fn not_admitted(&self, rates: &[Rate], now: Time) -> Self {
        // No tracked reservation has a later moment than now.
        let later = now.micros().saturating_add(1);
        let marks = rates.iter().zip(&self.marks).map(|(rate, mark)| if rate.drains() { later } else { *mark });
        Self::new(self.cost, marks)
    }

    /// When it was charged. `None` if no rate keeps its state as a whole, because only those remember the moment.
    pub fn moment(&self, rates: &[Rate]) -> Option<Time> {
        let (mark, from) = self.moments(rates);
        rates.iter().any(|rate| !rate.uses_counters()).then(|| mark.max(from))
    }

    /// When it was charged, as windows remember it, and since when it may have drained from buckets; 0 without such rates.
    pub(super) fn moments(&self, rates: &[Rate]) -> (Time, Time) {
        let (mut mark, mut from) = (0, 0);
        for (rate, moment) in rates.iter().zip(&self.marks).filter(|(rate, _)| !rate.uses_counters()) {
            let which = if rate.drains() { &mut from } else { &mut mark };
            *which = (*which).max(moment - if rate.drains() { self.lag.min(*moment) } else { 0 });
        }
        (Time::from_micros(mark), Time::from_micros(from))
    }

    /// The counters to which it was added: the index of the rate, and the name of the bucket.
    pub fn buckets<'a>(&'a self, rates: &'a [Rate]) -> impl Iterator<Item = (usize, u64)> {
        let marked = rates.iter().zip(&self.marks).enumerate();
        marked.filter(|(_, (rate, _))| rate.uses_counters()).map(|(place, (_, mark))| (place, *mark))
    }
}
