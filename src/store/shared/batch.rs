//! The queues of one server: which cells are part of its next exchange, and when that is due.
//!
//! A request that waits, or a charge that other gateways have to see soon, wants an exchange. Other charges are pending: they
//! go along with the next wanted exchange, or after a moment without one. Exchanges are pipelined on one connection, but one
//! begins while another is in flight only if enough cells wait, because fewer are cheaper in the next exchange.

use std::collections::VecDeque;
use std::time::Duration;

use super::cached_cell::{CachedCell, ExchangeStage};
use super::cells::{CellPlace, Cells};
use super::protocol::Commands;
use super::targets::{CommandRanges, Targets};

/// The most cells in an exchange for which requests wait. With more, they would wait for each other rather than for the
/// server. With pending cells, the exchange has at most twice as many.
const BATCH: usize = 128;
const IN_FLIGHT: usize = 4;
/// If this many cells are wanted, an exchange is due although another one is in flight.
pub(super) const WORTHWHILE: usize = 64;
/// If this many cells are pending, an exchange is due although no request waits.
const HEAVY: usize = 4 * BATCH;

/// The usual number of counters of a cell: those of two rates.
const COUNTERS: usize = 2;

#[derive(Default)]
pub(super) struct ServerQueue {
    pub(super) state: ServerState,
    /// Cells for which a request waits, or whose charges other gateways have to see soon.
    wanted: VecDeque<CellPlace>,
    pending: VecDeque<CellPlace>,
    in_flight: VecDeque<Exchange>,
    pub(super) round_trip: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ServerState {
    /// The first connection is being made, and requests may wait for that.
    #[default]
    New,
    Up,
    Away,
    /// It has no slot of its cluster any more. It is left once it has answered everything.
    Retired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// After a moment, unless a wanted exchange can carry the pending cells before.
    Soon,
    /// There is nothing to do, or it can wait for the answers to what is in flight.
    Never,
}

pub(super) struct Exchange {
    pub(super) cells: Vec<(CellPlace, CommandRanges)>,
    pub(super) targets: Targets,
}

impl ServerQueue {
    /// Whether the server has all admissions, or is away.
    pub(super) fn is_written(&self) -> bool {
        self.state == ServerState::Away || self.wanted.len() + self.pending.len() + self.in_flight.len() == 0
    }

    pub(super) fn due(&self) -> Due {
        match (self.wanted.len(), self.pending.len(), self.in_flight.len()) {
            _ if self.state != ServerState::Up => Due::Never,
            (0, 0, _) | (_, _, IN_FLIGHT..) => Due::Never,
            (1.., _, 0) | (WORTHWHILE.., _, _) | (_, HEAVY.., _) => Due::Now,
            (0, _, 0) => Due::Soon,
            _ => Due::Never,
        }
    }

    /// Whether the server is about to answer, or is not asked any more.
    pub(super) fn is_busy(&self) -> bool {
        self.state == ServerState::Retired || self.state == ServerState::Up && !self.in_flight.is_empty()
    }

    pub(super) fn has_slots(&mut self, has_slots: bool) {
        if !has_slots {
            self.state = ServerState::Retired;
            self.wanted.clear();
            self.pending.clear();
        } else if self.state == ServerState::Retired {
            self.state = if self.in_flight.is_empty() { ServerState::New } else { ServerState::Up };
        }
    }

    /// Makes a decision wait for this cell, unless the server is away.
    pub(super) fn want(&mut self, cell: CellPlace, cached: &mut CachedCell, decision: u64) {
        if self.state == ServerState::Away {
            return;
        }
        if cached.stage != ExchangeStage::InFlight && cached.waiting.is_empty() {
            cached.stage = ExchangeStage::Queued;
            self.wanted.push_back(cell);
        }
        cached.waiting.push(decision);
    }

    /// Queues a cell that wants an exchange, or has something pending and `may_write`: false after a failed write.
    pub(super) fn queue(&mut self, cell: CellPlace, cached: &mut CachedCell, may_write: bool) {
        // A pending cell becomes wanted with the first request that waits for it. Otherwise that request would wait as long
        // as the server is away, as pending cells do.
        let who_wait = cached.provisional.len() + cached.inspections;
        let is_first = cached.stage == ExchangeStage::Queued && cached.waiting.is_empty() && who_wait == 1;
        if cached.stage != ExchangeStage::Idle && !is_first {
            return;
        }
        // If an exchange is wanted anyway, it also carries pending cells.
        let may_be_urgent = may_write && self.state == ServerState::Up && self.wanted.is_empty();
        let is_urgent = || may_be_urgent && cached.has_pending() && cached.is_urgent();
        if !cached.waiting.is_empty() || !cached.provisional.is_empty() || cached.inspections > 0 || is_urgent() {
            self.wanted.push_back(cell);
        } else if may_write && cached.has_pending() {
            self.pending.push_back(cell);
        } else {
            return;
        }
        cached.stage = ExchangeStage::Queued;
    }

    /// Bounds the queue of pending cells while the server is away: an evicted cell leaves its place in the queue, and the
    /// next cell there is queued again.
    pub(super) fn tidy(&mut self, cells: &mut Cells) {
        if self.pending.len() > 4 * cells.len().max(BATCH) {
            self.pending.retain(|cell| cells.at(*cell).stage == ExchangeStage::Queued);
            self.pending.make_contiguous().sort_unstable();
            let mut last = None;
            self.pending.retain(|cell| last.replace(*cell) != Some(*cell));
        }
    }

    /// Collects the commands of the next exchange with `server`. Returns whether there are any.
    pub(super) fn write(
        &mut self,
        server: usize,
        cells: &mut Cells,
        commands: &mut dyn Commands,
        strict: bool,
    ) -> bool {
        let most = self.wanted.len().min(BATCH) + self.pending.len().min(2 * BATCH);
        let mut exchange =
            Exchange { cells: Vec::with_capacity(most), targets: Targets::with_capacity(COUNTERS * most) };
        for (queue, most) in [(&mut self.wanted, BATCH), (&mut self.pending, 2 * BATCH)] {
            while exchange.cells.len() < most
                && let Some(cell) = queue.pop_front()
            {
                let cached = cells.at(cell);
                // It may have been in both queues, or another cell, even of another server, may have its place now.
                if cached.stage == ExchangeStage::Queued && cached.server == server {
                    let ranges = exchange.targets.added_by(|targets| cached.compose(targets, commands, strict));
                    exchange.cells.push((cell, ranges));
                }
            }
        }
        let is_any = !exchange.cells.is_empty();
        if is_any {
            self.in_flight.push_back(exchange);
        }
        is_any
    }

    pub(super) fn answered(&mut self) -> Option<Exchange> {
        self.in_flight.pop_front()
    }

    pub(super) fn fail(&mut self) -> VecDeque<Exchange> {
        if self.state != ServerState::Retired {
            self.state = ServerState::Away;
        }
        std::mem::take(&mut self.in_flight)
    }

    /// Returns the cells for which requests wait in vain.
    pub(super) fn give_up(&mut self) -> VecDeque<CellPlace> {
        std::mem::take(&mut self.wanted)
    }
}

#[cfg(test)]
impl ServerQueue {
    pub(super) fn in_flight(&self) -> impl Iterator<Item = CellPlace> {
        self.in_flight.iter().flat_map(|exchange| exchange.cells.iter().map(|(place, _)| *place))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::clock::Time;
    use crate::base::fingerprint::Fingerprint;
    use crate::limit::Limit;
    use crate::store::shared::memcached::Memcached;
    use crate::store::shared::protocol::Protocol;

    const NOW: Time = Time::from_micros(1_800_000_000_000_000);

    struct Setup {
        queue: ServerQueue,
        cells: Cells,
        limit: Arc<Limit>,
    }

    impl Setup {
        fn new() -> Self {
            let queue = ServerQueue { state: ServerState::Up, ..ServerQueue::default() };
            let limit = Arc::new(Limit::new("l", &["999/d".parse().unwrap()]));
            Self { queue, cells: Cells::on(&["a:1"]), limit }
        }

        fn cell(&mut self) -> CellPlace {
            let key = Fingerprint::of(&self.cells.len().to_be_bytes());
            self.cells.of(&self.limit, key, NOW).0
        }

        fn want(&mut self, count: u64) {
            for decision in 0..count {
                let cell = self.cell();
                self.queue.want(cell, self.cells.at(cell), decision);
            }
        }

        fn charge(&mut self, count: usize) {
            for _ in 0..count {
                let cell = self.cell();
                let cached = self.cells.at(cell);
                cached.charge(&self.limit, NOW, 1);
                self.queue.queue(cell, cached, true);
            }
        }

        fn write(&mut self) -> usize {
            assert!(self.queue.write(0, &mut self.cells, &mut *Memcached.commands(), false));
            self.queue.in_flight.back().unwrap().cells.len()
        }
    }

    #[test]
    fn an_exchange_has_so_many_cells_at_most() {
        let mut setup = Setup::new();
        setup.want(300);
        setup.charge(300);
        let sizes = [setup.write(), setup.write(), setup.write()];
        assert_eq!(sizes, [2 * BATCH, 2 * BATCH, 88], "128 and 128, 128 and 128, 44 and 44");
        setup.charge(3 * BATCH);
        assert_eq!(setup.write(), 2 * BATCH);
    }

    #[test]
    fn what_is_much_of_what_is_left_is_due_at_once() {
        let mut setup = Setup::new();
        setup.charge(1);
        assert_eq!(setup.queue.due(), Due::Soon);
        setup.limit = Arc::new(Limit::new("l", &["32/d".parse().unwrap()]));
        setup.charge(1);
        assert_eq!(setup.queue.due(), Due::Now);
        assert_eq!(setup.write(), 2);
    }

    #[test]
    fn an_exchange_is_due_when_it_is_worth_it() {
        let mut setup = Setup::new();
        assert_eq!(setup.queue.due(), Due::Never);
        setup.charge(1);
        assert_eq!(setup.queue.due(), Due::Soon);
        setup.want(1);
        assert_eq!(setup.queue.due(), Due::Now);
        setup.write();
        setup.want(WORTHWHILE as u64 - 1);
        assert_eq!(setup.queue.due(), Due::Never, "few wait for the answer");
        setup.want(1);
        for in_flight in 1..IN_FLIGHT {
            assert_eq!((setup.queue.in_flight.len(), setup.queue.due()), (in_flight, Due::Now));
            setup.write();
            setup.want(WORTHWHILE as u64);
        }
        assert_eq!(setup.queue.due(), Due::Never, "no more are in flight at a time");
        assert!(setup.queue.is_busy());
        setup.queue.answered();
        assert_eq!(setup.queue.due(), Due::Now);
        setup.write();
        setup.queue.answered();
        setup.charge(HEAVY - 1);
        assert_eq!(setup.queue.due(), Due::Never);
        setup.charge(1);
        assert_eq!(setup.queue.due(), Due::Now);
        setup.queue.fail();
        assert_eq!(setup.queue.due(), Due::Never, "it is away");
    }
}
