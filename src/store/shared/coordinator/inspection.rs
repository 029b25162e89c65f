//! Keys that an operator looks at or resets.
//!
//! Each waits until its cell has been read in full by an exchange that was written after it was asked for. A reset is
//! then written by another exchange (`reset.rs`), in which the counters are read once more, so that it is seen whether
//! it has been done. Nobody's time limit is needed: every exchange ends before long, answered or not.

use super::Coordinator;
use crate::store::KeyUsage;
use crate::store::reloads::Migration;
use crate::store::shared::batch::ServerState;
use crate::store::shared::cached_cell::{CachedCell, ExchangeStage, Filled};
use crate::store::shared::cells::{CellPlace, Cells};
use crate::store::shared::message::{Inspection, Task};

/// All that operators wait for.
#[derive(Debug, Default)]
pub(super) struct Inspections(Vec<OpenInspection>);

#[derive(Debug)]
struct OpenInspection {
    cell: CellPlace,
    inspection: Inspection,
    /// The reset that is to be written, once the key has been read.
    reset_id: Option<u32>,
    /// Whether the exchange that is under way reads the cell for it.
    is_sent: bool,
}

impl Inspections {
    /// Calls `compose`, which writes an exchange, and notes for whom it reads or resets a cell.
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
    /// Goes on now that the cell was read for it. Returns itself if it has to wait for another exchange. If the reset
    /// has failed, the sender is dropped.
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
        // While it waited, the cell may have been moved on to the moment of the answer.
        let now = cached.advance_for(&limit, now.max(cached.now), asked);
        // Who has given up waiting needs no answer.
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
    /// How many keys are known.
    pub(in crate::store::shared) fn keys(&self) -> usize {
        self.cells.keys()
    }

    /// Takes on what an operator asks about a key. If its server is away, the sender is dropped.
    pub(super) fn inspect(&mut self, mut inspection: Inspection) {
        let Inspection { limit, key, now, asked, .. } = &mut inspection;
        if let Some(Migration { to, .. }) = self.cells.successor(limit, *key, *now) {
            *limit = to.clone();
        }
        let (cell, cached) = self.cells.of(limit, *key, *now, &self.health.forgotten);
        if self.servers[cached.server].state == ServerState::Away {
            return;
        }
        // As a decision does: what is read is of now, not of when the key was used last.
        cached.advance_for(limit, *now, *asked);
        cached.inspections += 1;
        self.inspections.0.push(OpenInspection { cell, inspection, reset_id: None, is_sent: false });
        self.queue(cell, true);
    }

    /// Goes on with those who wait for this cell, which has just been answered about. If it could not be read, they are
    /// dropped.
    pub(super) fn answer_inspections(&mut self, cell: CellPlace, is_read: bool, filled: &Filled) {
        let cached = self.cells.at(cell);
        let all = std::mem::take(&mut self.inspections.0).into_iter();
        let (read, mut open): (Vec<_>, Vec<_>) = all.partition(|open| open.cell == cell && open.is_sent);
        open.extend(read.into_iter().filter(|_| is_read).filter_map(|open| open.go_on(cached, filled)));
        cached.inspections = open.iter().filter(|open| open.cell == cell).count();
        self.inspections.0 = open;
    }

    /// Drops those who wait for a cell that is not to be had, which tells them. What was not written yet is not reset.
    pub(super) fn drop_inspections(&mut self, cell: CellPlace) {
        let cached = self.cells.at(cell);
        if std::mem::take(&mut cached.inspections) > 0 {
            cached.cancel_reset();
            self.inspections.0.retain(|open| open.cell != cell);
        }
    }
}
