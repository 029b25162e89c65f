//! Decisions that get no answer, because a server is away or too slow: they are made from what was known
//! last, or dropped. And servers that come and go.
//!
//! Requests do not discover that a server is away: its connection's task knows it, and reconnects in the background.
//! Then what is pending is written. No key moves to another server, because each gateway would move it at another time,
//! and they would count separately.

use tokio::time::Instant;

use super::Coordinator;
use crate::config::OnError;
use crate::store::shared::batch::ServerState;
use crate::store::shared::cached_cell::Stage;
use crate::store::shared::cells::Place;
use crate::store::shared::message::Decision;

impl Coordinator {
    /// The server answers.
    pub(in crate::store::shared) fn up(&mut self, server: usize) {
        self.servers[server].state = ServerState::Up;
    }

    /// The server is away. What was in flight may have arrived or not.
    pub(in crate::store::shared) fn down(&mut self, server: usize) {
        for exchange in self.servers[server].fail() {
            for (cell, _) in exchange.cells {
                let cached = self.cells.at(cell);
                cached.lose_replies();
                cached.stage = Stage::Idle;
                self.abandon(cell);
                self.queue(cell, true);
            }
        }
        for cell in self.servers[server].give_up() {
            self.abandon(cell);
            let cached = self.cells.at(cell);
            if cached.stage == Stage::Queued {
                cached.stage = Stage::Idle;
            }
            self.queue(cell, true);
        }
    }

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

    /// Ends the waits that have lasted long enough.
    pub(in crate::store::shared) fn expire(&mut self, now: Instant) {
        while let Some(decision) = self.waiting.take_overdue(now) {
            match self.on_error {
                OnError::Local => self.decide_from_memory(decision),
                OnError::Allow | OnError::Reject => self.dismiss(decision),
            }
        }
    }

    /// Decides from what is known, because the server does not answer.
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
