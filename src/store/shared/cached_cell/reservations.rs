//! Reservations: what is charged until it is known what a request costs, and what is given back then.
//!
//! It is given back where it was counted, as an increment that is negative. Where it is unknown whether increments have
//! arrived, no more is than was added since: what never was there would be taken from others.

use super::CachedCell;
use crate::base::clock::Time;
use crate::limit::{Limit, Reservation, Verdict};
use crate::store::shared::OwnedAsk;
use crate::store::shared::counters::{CounterId, signed};
use crate::store::{Reserved, Ticket};

impl CachedCell {
    /// What is settled later: it was just charged, and before that the verdict was `refunded`. If the charge is final and not
    /// provisional, the reservation follows it from now on.
    pub(in crate::store::shared) fn reserve(
        &mut self,
        ask: &OwnedAsk,
        now: Time,
        refunded: Verdict,
        is_final: bool,
    ) -> Reserved {
        let OwnedAsk { limit, place, requested, .. } = ask;
        let mut ticket = self.ticket(ask, now);
        if is_final {
            limit.follow(&mut self.cell, &mut ticket.reservation);
        }
        let requested = requested.as_ref().unwrap_or(limit).clone();
        Reserved { place: *place, ticket, requested, refunded: Some(refunded) }
    }

    /// The ticket of what this ask was charged just now.
    pub(in crate::store::shared) fn ticket(&self, ask: &OwnedAsk, now: Time) -> Ticket {
        let limit = ask.limit.clone();
        let reservation = limit.place_of(&self.cell, now, ask.cost);
        Ticket { limit, key: self.key, cell: self.number, reservation }
    }

    /// Settles what was reserved, which costs so much in the end. It has been advanced to the moment of that.
    pub(in crate::store::shared) fn settle(&mut self, ticket: &Ticket, cost: u64) {
        let Ticket { limit, reservation, .. } = ticket;
        let (given, more) = (ticket.cost().saturating_sub(cost), cost.saturating_sub(ticket.cost()));
        if given > 0 {
            self.counters.may_shrink();
        }
        self.take_back(limit, reservation, given);
        if more > 0 {
            self.charge(limit, self.now, more);
        }
    }

    /// Takes back `cost` of what was charged, where that was counted; with 0 a reservation only ends. This is the only way in
    /// which a charge is undone: of a request that is refused in the end, of a reservation, and of a lease.
    pub(in crate::store::shared) fn take_back(&mut self, limit: &Limit, reservation: &Reservation, cost: u64) {
        self.take_back_sums(limit, reservation, cost);
        if let Some(state) = &mut self.versioned {
            state.give_back(&mut self.cell, limit, self.now, reservation, cost);
        }
    }

    /// The same, but only from sums: what is kept as a whole was never charged.
    pub(in crate::store::shared) fn take_back_sums(&mut self, limit: &Limit, reservation: &Reservation, cost: u64) {
        let Self { cell, counters, .. } = self;
        for (rate, bucket) in reservation.buckets(limit.rates()).filter(|_| cost > 0) {
            let id = CounterId { rate, bucket };
            if counters.can_give_back(id, cost) && cell.count(rate, bucket).is_some() {
                cell.correct(rate, bucket, |count| count.saturating_sub(cost));
                counters.add(id, -signed(cost));
            }
        }
    }
}
