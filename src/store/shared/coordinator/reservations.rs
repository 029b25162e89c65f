//! Reservations: charges that are corrected when the cost is known.

use super::Coordinator;
use crate::store::reloads::Migration;
use crate::store::shared::message::Settlement;

impl Coordinator {
    /// Gives back what was reserved too much, or charges what was reserved too little. Nobody waits for that, and it
    /// waits for nothing: the next request is decided after it.
    pub(super) fn settle_reserved(&mut self, mut settlement: Settlement) {
        let Settlement { ask, now, asked, cell, given, reservation, .. } = &mut settlement;
        // A limit that has not counted the key since a reload has yet to continue from where it was reserved.
        let is_known = |migration: &&Migration| self.cells.find(ask.key.with(migration.to.shape())).is_some();
        let migration = self.cells.successor(&ask.limit, ask.key, *now).filter(is_known).cloned();
        migration.iter().for_each(|migration| ask.limit = migration.to.clone());
        let place = self.cells.of(ask, *now, &self.health.forgotten).0;
        if let Some(Migration { from, to, at, .. }) = migration {
            *reservation = to.migrate_reservation(&from, reservation, at);
            if self.cells.at(place).number != *cell {
                // It may not have been carried over, and would be taken from others.
                *given = 0;
            }
        }
        if self.cells.at(place).number != *cell && self.cells.may_have_forgotten(*cell) {
            // The charge may never have been written to a server, and then others would lose what is given back.
            *given = 0;
        }
        // There may be room again.
        self.refusals.forget(ask.cell());
        let cached = self.cells.at(place);
        *now = cached.advance_for(&ask.limit, *now, *asked);
        cached.settle(settlement);
        self.queue(place, true);
    }
}
