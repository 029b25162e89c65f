//! Reservations: what is charged until it is known what a request costs, and what is given back then.
//!
//! It is given back where it was counted, as an increment that is negative. Where it is in doubt whether increments have
//! arrived, no more is than was added since: what never was there would be taken from others.

use super::Wish;
use super::debts::{Debt, signed};
use super::known::Known;
use super::message::Settlement;
use super::whole::Back;
use crate::clock::Time;
use crate::store::Reserved;

impl Known {
    /// Charges what is settled later, and follows it if that is `final`: if it is not given back because others were first.
    pub(super) fn reserve(&mut self, wish: &Wish, now: Time, is_final: bool) -> Reserved {
        let Wish { limit, need, cost, place, .. } = wish;
        let refunded = limit.judge(&self.cell, now, *need, true);
        self.charge(limit, now, *cost);
        let mut reservation = limit.place_of(&self.cell, now, *cost);
        if is_final {
            limit.follow(&mut self.cell, &mut reservation);
        }
        Reserved { place: *place, reservation, cell: self.number, refunded: Some(refunded), by: None }
    }

    /// Settles a reservation. It has been advanced to the moment of that.
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement { wish, now, reservation, given, more, .. } = settlement;
        let limit = &*wish.limit;
        let Self { cell, debts, shares, whole, .. } = self;
        for (place, bucket) in reservation.buckets(limit.rates()) {
            let is_certain = |debt: &Debt| debt.doubt == 0 || debt.amount.saturating_sub(debt.doubt) >= signed(given);
            if given > 0
                && debts.of(place, bucket).is_none_or(is_certain)
                && cell.count(limit.rates(), place, bucket).is_some()
            {
                cell.correct(limit.rates(), place, bucket, |count| count.saturating_sub(given));
                debts.owe(place, bucket, -signed(given));
                shares.get_or_insert_default().add(place, bucket, -signed(given));
            }
        }
        if let Some(whole) = whole {
            whole.give_back(cell, (limit, now), Back { reservation, given });
        }
        if more > 0 {
            self.charge(limit, now, more);
        }
    }
}
