//! Reservations: what is charged until it is known what a request costs, and what is given back then.
//!
//! It is given back where it was counted, as an increment that is negative. Where it is unknown whether increments have
//! arrived, no more is than was added since: what never was there would be taken from others.

use super::OwnedAsk;
use super::cached_cell::CachedCell;
use super::counters::{CounterId, signed};
use super::message::Settlement;
use crate::clock::Time;
use crate::limit::Verdict;
use crate::store::Reserved;

impl CachedCell {
    /// What is settled later: it was just charged, and before that the verdict was `refunded`. If the charge is final and not
    /// provisional, the reservation follows it from now on.
    pub(super) fn reserve(&mut self, ask: &OwnedAsk, (now, refunded): (Time, Verdict), is_final: bool) -> Reserved {
        let OwnedAsk { limit, cost, place, .. } = ask;
        let mut reservation = limit.place_of(&self.cell, now, *cost);
        if is_final {
            limit.follow(&mut self.cell, &mut reservation);
        }
        Reserved { place: *place, reservation, cell: self.number, refunded: Some(refunded), by: None }
    }

    /// Settles a reservation. It has been advanced to the moment of that.
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement { ask, now, reservation, given, more, .. } = settlement;
        let limit = &*ask.limit;
        let Self { cell, counters, versioned, carry_over, .. } = self;
        if let Some(carry_over) = carry_over {
            carry_over.give_back(limit, now, &reservation, given);
        }
        for (rate, bucket, given) in reservation.buckets(limit.rates(), given) {
            let id = CounterId { rate, bucket };
            if given > 0 && counters.can_give_back(id, given) && cell.count(limit.rates(), rate, bucket).is_some() {
                cell.correct(limit.rates(), rate, bucket, |count| count.saturating_sub(given));
                counters.may_shrink();
                counters.add(id, -signed(given));
            }
        }
        if let Some(state) = versioned {
            state.give_back(cell, (limit, now), (&reservation, given));
        }
        if more > 0 {
            self.charge(limit, now, more);
        }
    }
}
