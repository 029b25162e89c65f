//! Reservations: charges whose cost is corrected later. What is given back is a negative increment where the charge was
//! counted. While it is unknown whether increments have arrived, no more is given back than was added since: otherwise it
//! might be taken from others.

use super::CachedCell;
use crate::base::clock::Time;
use crate::limit::{Limit, Reservation, Verdict};
use crate::store::shared::OwnedAsk;
use crate::store::shared::counters::{CounterId, signed};
use crate::store::{Reserved, Ticket};

impl CachedCell {
    /// The reservation of a charge made just now; `refunded` was the verdict before it. A final charge is tracked from now
    /// on.
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

    pub(in crate::store::shared) fn ticket(&self, ask: &OwnedAsk, now: Time) -> Ticket {
        let limit = ask.limit.clone();
        let reservation = limit.place_of(&self.cell, now, ask.cost);
        Ticket { limit, key: self.key, cell: self.number, reservation }
    }

    /// `cost` is the real cost. The cell must be advanced to the present.
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

    /// Takes back `cost` of a charge where it was counted; with 0 a reservation only ends. Every charge is undone here: of a
    /// request that is refused in the end, of a reservation, and of a lease.
    pub(in crate::store::shared) fn take_back(&mut self, limit: &Limit, reservation: &Reservation, cost: u64) {
        self.take_back_sums(limit, reservation, cost);
        if let Some(state) = &mut self.versioned {
            state.give_back(&mut self.cell, limit, self.now, reservation, cost);
        }
    }

    /// [`Self::take_back`], but only from sums: the state that is kept as a whole was never charged.
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
