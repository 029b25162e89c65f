//! Decisions that Memcached does not answer, because a server is away or too slow: they are made from what was known
//! last, or dropped.

use tokio::time::Instant;

use super::Coordinator;
use crate::config::OnError;
use crate::store::memcached::cells::Place;
use crate::store::memcached::message::Decision;

impl Coordinator {
    /// No decision waits for this cell any longer.
    pub(super) fn abandon(&mut self, cell: Place) {
        self.drop_provisional(cell, true);
        self.drop_inspections(cell);
        for number in std::mem::take(&mut self.cells.at(cell).waiting) {
            self.give_up(number);
        }
    }

    /// The server of one cell of a decision does not answer.
    pub(super) fn give_up(&mut self, number: u64) {
        if self.on_error != OnError::Local {
            self.waiting.take(number).into_iter().for_each(|decision| self.dismiss(decision));
        } else if let Some(decision) = self.waiting.count_down(number) {
            self.decide_from_memory(decision);
        }
    }

    /// Ends the waits that have lasted long enough; returns when the next one has.
    pub(in crate::store::memcached) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some(decision) = self.waiting.take_overdue(now) {
            match self.on_error {
                OnError::Local => self.decide_from_memory(decision),
                OnError::Allow | OnError::Reject => self.dismiss(decision),
            }
        }
        self.waiting.deadline()
    }

    /// Decides from what is known, because Memcached does not answer.
    pub(super) fn decide_from_memory(&mut self, decision: Box<Decision>) {
        self.health.local.one();
        if decision.standings.is_empty() {
            self.judge(decision, false);
        } else {
            // It was charged, and that stays so without a confirmation.
            self.conclude(decision);
        }
    }
}
