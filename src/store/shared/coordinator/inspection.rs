//! Keys that an operator looks at or resets.
//!
//! Each waits until an exchange that was written later has read its cell in full. Another exchange writes a reset
//! (`reset.rs`) and reads the counters once more, to see whether it was done. No separate time limit is needed: every
//! exchange ends before long, answered or not.

use super::Coordinator;
use crate::store::KeyUsage;
use crate::store::reloads::Migration;
use crate::store::shared::batch::ServerState;
use crate::store::shared::cached_cell::{CachedCell, ExchangeStage, Filled};
use crate::store::shared::cells::{CellPlace, Cells};
use crate::store::shared::mailbox::{Inspection, Task};

#[derive(Debug, Default)]
pub(super) struct Inspections(Vec<OpenInspection>);

#[derive(Debug)]
struct OpenInspection {
    cell: CellPlace,
    inspection: Inspection,
    /// The number of the reset that is to be written, once the key has been read.
    reset_id: Option<u32>,
    /// Whether the exchange in flight reads the cell for it.
    is_sent: bool,
}

impl Inspections {
    /// Calls `compose`, which writes an exchange, and notes for which inspections it reads or resets a cell.
    pub(super) fn composed<T>(&mut self, cells: &mut Cells, compose: impl FnOnce(&mut Cells) -> T) -> T {
        let Self(open) = self;
        let is_queued = |open: &OpenInspection, cells: &mut Cells| {
            !open.is_sent && cells.at(open.cell).stage == ExchangeStage::Queued
        };
        let queued: Vec<usize> = (0..open.len()).filter(|at| is_queued(&open[*at], cells)).collect();
        queued.iter().for_each(|at| cells.at(open[*at].cell).read_in_full());
        let composed = compose(cells);
        queued.iter().for_each(|at| open[*at].is_sent = cells.at(open[*at].cell).stage == ExchangeStage::InFlight);
        composed
    }
}

impl OpenInspection {
    /// Continues after a read. Returns itself to wait for another exchange. A failed reset drops the sender.
    fn go_on(self, cached: &mut CachedCell, filled: &Filled) -> Option<Self> {
        let Self { inspection, reset_id, .. } = self;
        let is_reset = reset_id.is_some_and(|id| id <= filled.reset.everywhere);
        if reset_id.is_some() && !is_reset {
            return None;
        }
        if !is_reset && !filled.is_current {
            // A bucket has begun meanwhile.
            return Some(Self { inspection, is_sent: false, ..self });
        }
        let Inspection { limit, key, now, asked, task } = inspection;
        // The cell may already have been advanced to the moment of the answer.
        let now = cached.advance_for(&limit, now.max(cached.now), asked);
        // Nobody may be waiting for the answer any more.
        match task {
            Task::Peek(reply) => drop(reply.send(KeyUsage::of(limit, &cached.cell, now))),
            Task::Reset(reply) if is_reset => drop(reply.send(())),
            Task::Reset(_) => {
                let inspection = Inspection { limit, key, now, asked, task };
                return Some(Self { inspection, reset_id: Some(cached.reset()), is_sent: false, ..self });
            }
        }
        None
    }
}

impl Coordinator {
    pub(in super::super) fn keys(&self) -> usize {
        self.cells.keys()
    }

    /// If the server is away, the sender is dropped.
    pub(super) fn inspect(&mut self, mut inspection: Inspection) {
        let Inspection { limit, key, now, asked, .. } = &mut inspection;
        if let Some(Migration { to, .. }) = self.cells.successor(limit, *key, *now) {
            *limit = to.clone();
        }
        let (cell, cached) = self.cells.of(limit, *key, *now);
        if self.servers[cached.server].state == ServerState::Away {
            return;
        }
        // As for a decision: the read is of now, not of the key's last use.
        cached.advance_for(limit, *now, *asked);
        cached.inspections += 1;
        self.inspections.0.push(OpenInspection { cell, inspection, reset_id: None, is_sent: false });
        self.queue(cell, true);
    }

    /// Continues the inspections of this cell, about which an answer has just come. If it could not be read, drops them.
    pub(super) fn answer_inspections(&mut self, cell: CellPlace, is_read: bool, filled: &Filled) {
        let cached = self.cells.at(cell);
        let all = std::mem::take(&mut self.inspections.0).into_iter();
        let (read, mut open): (Vec<_>, Vec<_>) = all.partition(|open| open.cell == cell && open.is_sent);
        open.extend(read.into_iter().filter(|_| is_read).filter_map(|open| open.go_on(cached, filled)));
        cached.inspections = open.iter().filter(|open| open.cell == cell).count();
        self.inspections.0 = open;
    }

    /// Drops the inspections of a cell that cannot be read, which tells the operators. An unwritten reset is cancelled.
    pub(super) fn drop_inspections(&mut self, cell: CellPlace) {
        let cached = self.cells.at(cell);
        if std::mem::take(&mut cached.inspections) > 0 {
            cached.cancel_reset();
            self.inspections.0.retain(|open| open.cell != cell);
        }
    }
}
