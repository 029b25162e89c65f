//! What is asked of one server, and in which order: first the cells that somebody waits for, then those that owe.

use std::collections::VecDeque;

use super::cells::{Cells, Place};
use super::commands::Commands;
use super::known::{Known, Stage};
use super::targets::{Part, Targets};

/// Cells that share an exchange at most: more would wait for each other rather than for Memcached.
const BATCH: usize = 128;
/// Exchanges that may be under way on one connection.
const UNDER_WAY: usize = 4;
/// From this many cells on, an exchange need not wait for the one before it.
pub(super) const WORTHWHILE: usize = 64;
/// From this many on, what is owed need not wait for somebody to travel with.
const HEAVY: usize = 4 * BATCH;

/// What a cell mostly writes or reads: the counters of two rates.
const COUNTERS: usize = 2;

/// What is known of a server and asked of it.
#[derive(Default)]
pub(super) struct Server {
    pub(super) state: State,
    /// Cells that somebody waits for, or whose debts other gateways have to know of.
    wanted: VecDeque<Place>,
    /// Cells that owe something.
    owing: VecDeque<Place>,
    under_way: VecDeque<Exchange>,
}

/// Whether a server is to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// It is being connected to for the first time: who asks may wait.
    #[default]
    New,
    Up,
    Away,
}

/// When to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Somebody waits.
    Now,
    /// Nobody waits, but something is owed: it may ride along with the next that is asked.
    Soon,
    /// There is nothing to ask, or it can go with what comes after the answer that is awaited.
    Never,
}

/// What was asked in one payload.
pub(super) struct Exchange {
    /// The cells in it, and which commands are about each.
    pub(super) cells: Vec<(Place, Part)>,
    pub(super) targets: Targets,
}

impl Server {
    /// Whether it knows all that was admitted, or is not to be had.
    pub(super) fn is_settled(&self) -> bool {
        self.state == State::Away || self.wanted.len() + self.owing.len() + self.under_way.len() == 0
    }

    /// When the next exchange is due.
    pub(super) fn due(&self) -> Due {
        match (self.wanted.len(), self.owing.len(), self.under_way.len()) {
            _ if self.state != State::Up => Due::Never,
            (0, 0, _) | (_, _, UNDER_WAY..) => Due::Never,
            (1.., _, 0) | (WORTHWHILE.., _, _) | (_, HEAVY.., _) => Due::Now,
            (0, _, 0) => Due::Soon,
            _ => Due::Never,
        }
    }

    /// Whether it answers, and will before long.
    pub(super) fn is_busy(&self) -> bool {
        self.state == State::Up && !self.under_way.is_empty()
    }

    /// Lets a job wait for this cell, if the server is to be had.
    pub(super) fn want(&mut self, cell: Place, known: &mut Known, job: u64) {
        if self.state == State::Away {
            return;
        }
        if known.stage != Stage::Asked && known.waiting.is_empty() {
            known.stage = Stage::Queued;
            self.wanted.push_back(cell);
        }
        known.waiting.push(job);
    }

    /// Puts a cell in line again if something is wanted of it or, if it `may_owe`, owed by it.
    pub(super) fn queue(&mut self, cell: Place, known: &mut Known, may_owe: bool) {
        // What has only owed so far is wanted from its first claim on.
        let is_first = known.stage == Stage::Queued && known.waiting.is_empty() && known.claims.len() == 1;
        if known.stage != Stage::Idle && !is_first {
            return;
        }
        let is_urgent = || may_owe && known.owes() && self.state == State::Up && known.is_urgent();
        if !known.waiting.is_empty() || !known.claims.is_empty() || is_urgent() {
            self.wanted.push_back(cell);
        } else if may_owe && known.owes() {
            self.owing.push_back(cell);
        } else {
            return;
        }
        known.stage = Stage::Queued;
    }

    /// Keeps the line of those that owe from growing while the server is away: places that were given to other cells
    /// stand in it more than once.
    pub(super) fn tidy(&mut self, cells: &mut Cells) {
        if self.owing.len() > 4 * cells.len().max(BATCH) {
            self.owing.retain(|cell| cells.at(*cell).stage == Stage::Queued);
            self.owing.make_contiguous().sort_unstable();
            let mut last = None;
            self.owing.retain(|cell| last.replace(*cell) != Some(*cell));
        }
    }

    /// Collects the commands of the next exchange with this `server`; returns whether there is anything to ask.
    pub(super) fn compose(&mut self, server: usize, cells: &mut Cells, commands: &mut Commands, strict: bool) -> bool {
        let most = self.wanted.len().min(BATCH) + self.owing.len().min(2 * BATCH);
        let mut exchange =
            Exchange { cells: Vec::with_capacity(most), targets: Targets::with_capacity(COUNTERS * most) };
        for (queue, most) in [(&mut self.wanted, BATCH), (&mut self.owing, 2 * BATCH)] {
            while exchange.cells.len() < most
                && let Some(cell) = queue.pop_front()
            {
                let known = cells.at(cell);
                // It may have stood in both queues, or made room for another, even of another server.
                if known.stage == Stage::Queued && known.server == server {
                    let part = exchange.targets.part(|targets| known.compose(targets, commands, strict));
                    exchange.cells.push((cell, part));
                }
            }
        }
        let is_any = !exchange.cells.is_empty();
        if is_any {
            self.under_way.push_back(exchange);
        }
        is_any
    }

    /// The exchange that was begun first has been answered.
    pub(super) fn answered(&mut self) -> Option<Exchange> {
        self.under_way.pop_front()
    }

    /// It is away: returns the exchanges that were under way.
    pub(super) fn fail(&mut self) -> VecDeque<Exchange> {
        self.state = State::Away;
        std::mem::take(&mut self.under_way)
    }

    /// Returns the cells that are waited for in vain.
    pub(super) fn give_up(&mut self) -> VecDeque<Place> {
        std::mem::take(&mut self.wanted)
    }
}
