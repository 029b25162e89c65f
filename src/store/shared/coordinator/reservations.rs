//! Reservations: charges that are corrected when the cost is known.

use super::Coordinator;
use crate::limit::Reservation;
use crate::store::shared::message::Settlement;

impl Coordinator {
    /// Gives back what was reserved too much, or charges what was reserved too little. Nobody waits for that, and it
    /// waits for nothing: the next request is decided after it.
    pub(super) fn settle_reserved(&mut self, mut settlement: Settlement) {
        let Settlement { ticket, now, asked, cost } = &mut settlement;
        // A limit that has not counted the key since a reload has yet to continue from where it was reserved.
        let successor = self.cells.successor(&ticket.limit, ticket.key, *now).map(|migration| migration.to.clone());
        if let Some(to) = successor.filter(|to| self.cells.find(ticket.key.with(to.shape())).is_some()) {
            // What was reserved is part of what the limit continues from, and stays charged. Only what it costs in addition is
            // charged.
            *cost = cost.saturating_sub(ticket.cost());
            (ticket.limit, ticket.reservation) = (to, Reservation::default());
        }
        let place = self.cells.of((&ticket.limit, ticket.key), *now, &self.health.forgotten).0;
        if self.cells.at(place).number != ticket.cell && self.cells.may_have_forgotten(ticket.cell) {
            // It may never have been written to a server. Then others would lose what is given back.
            *cost = ticket.cost().max(*cost);
        }
        let cached = self.cells.at(place);
        // There may be room again.
        self.refusals.forget(cached.id());
        *now = cached.advance_for(&ticket.limit, *now, *asked);
        cached.settle(settlement);
        self.queue(place, true);
    }
}
