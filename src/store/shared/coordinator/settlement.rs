//! Reservations and leases: charges that are corrected once it is known how much of them is needed.

use tokio::time::Instant;

use super::Coordinator;
use crate::limit::Reservation;
use crate::store::shared::OwnedAsk;
use crate::store::shared::batch::ServerState;
use crate::store::shared::cached_cell::{Confirmation, FAR, LEASE, Provisional};
use crate::store::shared::cells::CellPlace;
use crate::store::shared::mailbox::Settlement;
use crate::store::{LimitChanges, Watch};

impl Coordinator {
    /// Gives back or charges the difference. Nobody waits for that; the next request is decided after it.
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement { mut ticket, now, asked, mut cost, watch } = settlement;
        // If a new limit has not counted the key since a reload, it will continue from the cell of the reservation.
        let successor = self.cells.successor(&ticket.limit, ticket.key, now).map(|migration| migration.to.clone());
        if let Some(to) = successor.filter(|to| self.cells.find(ticket.key.with(to.shape())).is_some()) {
            // The new limit's count includes the reservation, which stays charged. Only an additional cost is charged.
            cost = cost.saturating_sub(ticket.cost());
            (ticket.limit, ticket.reservation) = (to, Reservation::default());
        }
        let place = self.cells.of(&ticket.limit, ticket.key, now).0;
        if !ticket.is_of(self.cells.at(place).number) && self.cells.may_have_forgotten(ticket.cell) {
            // It may never have been written to a server. Then giving it back would take from other gateways.
            cost = ticket.cost().max(cost);
        }
        let cached = self.cells.at(place);
        // There may be room again.
        self.refusals.forget(cached.id());
        cached.advance_for(&ticket.limit, now, asked);
        cached.settle(&ticket, cost);
        if !watch.is_nobody() {
            cached.tell(&watch, &ticket.limit);
        }
        self.queue(place, true);
    }

    pub(super) fn lease_if_busy(&mut self, cell: CellPlace, ask: &OwnedAsk, asked: Instant) {
        // A request in flight during a reload may ask a replaced limit, from which another one continues.
        let is_replaced = self.cells.is_replaced(cell);
        let cached = self.cells.at(cell);
        let server = &self.servers[cached.server];
        let may_lease = server.state == ServerState::Up && server.round_trip < FAR;
        if may_lease && !is_replaced && cached.lease_if_busy(ask, asked) {
            self.leases.push_back((asked + LEASE, cell));
            self.queue(cell, true);
        }
    }

    /// Gives back the leases of all keys whose limit is replaced. Nothing was admitted for them, so they are given back where
    /// they were charged, before another cell continues from that. A lease that an exchange is asking for is given back as
    /// soon as it is granted.
    pub(super) fn withdraw_leases(&mut self, changes: &LimitChanges) {
        let leased: Vec<_> = self.leases.iter().map(|(_, cell)| *cell).collect();
        for cell in leased {
            let cached = self.cells.at(cell);
            if changes.replace(cached.names.limit.name(), cached.key) {
                cached.withdraw_lease();
                self.queue(cell, true);
            }
        }
    }

    /// The charge of a lease was confirmed by an exchange that was begun at `begun`, or was rejected and given back.
    pub(super) fn confirm_lease(
        &mut self,
        cell: CellPlace,
        Confirmation { charge, is_confirmed }: Confirmation,
        begun: Instant,
    ) {
        if is_confirmed {
            let (until, before) = self.cells.at(cell).grant(charge, begun);
            self.leases.push_back((until, cell));
            if let Some(before) = before {
                self.return_lease(cell, *before, begun);
            }
        }
    }

    pub(in super::super) fn return_leases(&mut self, now: Instant) {
        while self.leases.front().is_some_and(|(until, _)| *until <= now)
            && let Some((_, cell)) = self.leases.pop_front()
        {
            if let Some(rest) = self.cells.at(cell).end_lease(now) {
                self.return_lease(cell, *rest, now);
            }
            if self.cells.at(cell).asked_for().is_some() {
                // Its server is slow, and a reload must find the lease.
                self.leases.push_back((now + LEASE, cell));
            }
        }
    }

    /// Gives back the rest of a lease like that of a reservation, since a reload may have changed how the limit counts. No
    /// request comes with it, so the moment is that of the last one.
    fn return_lease(&mut self, cell: CellPlace, rest: Provisional, asked: Instant) {
        if rest.ticket.cost() > 0 {
            let now = self.cells.peek(cell).now;
            self.settle(Settlement { ticket: rest.ticket, now, asked, cost: 0, watch: Watch::default() });
        }
    }

    #[cfg(test)]
    pub(in super::super) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }
}
