//! Where a shared store counted a reservation, and how it is given back there.

use super::super::Limit;
use super::super::cell::Cell;
use super::super::rate::Rate;
use super::super::reservation::Reservation;
use crate::base::clock::Time;

/// For [stores that are shared](super).
impl Limit {
    /// Where `cost`, which has just been charged at `now`, was counted. Nothing of it is followed yet: see [`Self::follow`].
    pub fn place_of(&self, cell: &Cell, now: Time, cost: u64) -> Reservation {
        cell.place_of(&self.rates, now, cost)
    }

    /// Follows a reservation from now on, so that it is known how much of it has drained when it is given back.
    pub fn follow(&self, cell: &mut Cell, reservation: &mut Reservation) {
        cell.follow(reservation);
    }

    /// The same as [`Self::give_back`], but only for the rates whose state is kept as a whole.
    pub fn give_back_whole(&self, cell: &mut Cell, now: Time, reservation: &Reservation, cost: u64) {
        cell.give_back(&self.rates, now, reservation, cost, true);
    }
}

/// For [stores that are shared](super).
impl Reservation {
    /// Says that another cost was counted at the same place.
    pub fn set_cost(&mut self, cost: u64) {
        self.cost = cost;
    }

    /// What was counted of the rates whose state is kept as a whole: in windows at the moment `mark`, and in buckets such that
    /// it may have drained since the moment `from`.
    pub(super) fn of_whole(rates: &[Rate], cost: u64, mark: Time, from: Time) -> Self {
        let moment = |rate: &Rate| if rate.drains() { from.micros() } else { mark.micros() };
        Self::new(cost, rates.iter().map(moment))
    }

    /// The same if it is given back at `now`, before it can have drained from a bucket: somebody was charged and not admitted.
    #[must_use]
    pub fn not_admitted(&self, rates: &[Rate], now: Time) -> Self {
        // No reservation that is followed has a later moment than now.
        let later = now.micros().saturating_add(1);
        let marks = rates.iter().zip(&self.marks).map(|(rate, mark)| if rate.drains() { later } else { *mark });
        Self::new(self.cost, marks)
    }

    /// When it was charged. `None` if no rate keeps its state as a whole, because only those remember the moment.
    pub fn moment(&self, rates: &[Rate]) -> Option<Time> {
        let (mark, from) = self.moments(rates);
        rates.iter().any(|rate| !rate.uses_counters()).then(|| mark.max(from))
    }

    /// When it was charged, as windows remember that, and since when it may have drained from buckets; 0 if it has none.
    pub(super) fn moments(&self, rates: &[Rate]) -> (Time, Time) {
        let (mut mark, mut from) = (0, 0);
        for (rate, moment) in rates.iter().zip(&self.marks).filter(|(rate, _)| !rate.uses_counters()) {
            let which = if rate.drains() { &mut from } else { &mut mark };
            *which = (*which).max(moment - if rate.drains() { self.lag.min(*moment) } else { 0 });
        }
        (Time::from_micros(mark), Time::from_micros(from))
    }

    /// The counters to which it was added: the index of the rate, and what names the bucket.
    pub fn buckets<'a>(&'a self, rates: &'a [Rate]) -> impl Iterator<Item = (usize, u64)> {
        let marked = rates.iter().zip(&self.marks).enumerate();
        marked.filter(|(_, (rate, _))| rate.uses_counters()).map(|(place, (_, mark))| (place, *mark))
    }
}
