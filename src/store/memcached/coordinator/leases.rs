//! The leases of busy keys: when they begin and end.

use tokio::time::Instant;

use super::Coordinator;
use crate::store::memcached::OwnedAsk;
use crate::store::memcached::batch::ServerState;
use crate::store::memcached::cells::Place;
use crate::store::memcached::provisional::Outcome;

impl Coordinator {
    /// Asks for a lease of a key that was just charged, if it is busy and its server answers.
    pub(super) fn lease_if_busy(&mut self, cell: Place, ask: &OwnedAsk, asked: Instant) {
        let cached = self.cells.at(cell);
        if self.servers[cached.server].state == ServerState::Up && cached.lease_if_busy(ask, asked) {
            self.queue(cell, true);
        }
    }

    /// The charge of a lease is confirmed, or was rejected and given back.
    pub(super) fn settle_lease(&mut self, cell: Place, Outcome { charge, is_confirmed }: Outcome, begun: Instant) {
        if is_confirmed {
            let until = self.cells.at(cell).grant(charge, begun);
            self.leases.push_back((until, cell));
        }
    }

    /// Gives back what is left of leases whose time is over.
    pub(in crate::store::memcached) fn end_leases(&mut self, now: Instant) {
        while self.leases.front().is_some_and(|(until, _)| *until <= now)
            && let Some((_, cell)) = self.leases.pop_front()
        {
            if self.cells.at(cell).end_lease(now) {
                self.queue(cell, true);
            }
        }
    }

    /// When the next lease ends.
    pub(super) fn end_of_lease(&self) -> Option<Instant> {
        self.leases.front().map(|(until, _)| *until)
    }

    /// Whether some key is leased.
    #[cfg(test)]
    pub(in crate::store::memcached) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }
}
