//! Every decision that is under way, in one book: who waits for which cell, what is asked of which server, what is owed.
//!
//! Pure: it is told what was asked, what was answered and what failed, and writes what is to be sent. All decisions of
//! the process pass through one ledger, so each sees every admission before it, and a burst for one key gets exactly
//! its limit. Those that wait for one cell share one read, and their increments travel as one.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::cells::Cells;
use super::health::Health;
use super::jobs::{Job, Jobs};
use super::known::{Op, Stage};
use super::refused::Refused;
use super::wire::Answer;
use crate::config::{self, OnError};
use crate::fingerprint::Fingerprint;
use crate::store::Verdicts;

/// Cells that share an exchange at most: more would wait for each other rather than for Memcached.
const BATCH: usize = 128;
/// Exchanges that may be under way on one connection.
const UNDER_WAY: usize = 4;
/// From this many cells on, an exchange need not wait for the one before it.
const WORTHWHILE: usize = 64;

/// The book.
pub(super) struct Ledger {
    cells: Cells,
    jobs: Jobs,
    servers: Vec<Server>,
    on_error: OnError,
    health: Arc<Health>,
    refused: Arc<Refused>,
}

/// What is known of one server and asked of it.
#[derive(Default)]
struct Server {
    state: State,
    /// Cells that somebody waits for.
    wanted: VecDeque<Fingerprint>,
    /// Cells that owe something.
    owing: VecDeque<Fingerprint>,
    under_way: VecDeque<Exchange>,
}

/// Whether a server is to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It is being connected to for the first time: who asks may wait.
    #[default]
    New,
    Up,
    Away,
}

/// What was asked in one payload.
struct Exchange {
    /// The cells in it, and how many commands each takes.
    cells: Vec<(Fingerprint, usize)>,
    ops: Vec<Op>,
}

impl Ledger {
    pub(super) fn new(config: &config::Memcached, health: Arc<Health>, refused: Arc<Refused>) -> Self {
        Self {
            cells: Cells::new(&config.prefix, &config.servers),
            jobs: Jobs::default(),
            servers: config.servers.iter().map(|_| Server::default()).collect(),
            on_error: config.on_error,
            health,
            refused,
        }
    }

    /// Takes on a job: decides it on the spot if all its servers are away, and when they have answered otherwise, or at
    /// the deadline.
    pub(super) fn submit(&mut self, job: Box<Job>, deadline: Instant) {
        if job.is_given_up() {
            return;
        }
        let number = self.jobs.next();
        let mut cells = 0;
        for wish in &job.asks {
            let known = self.cells.of(wish, job.now, &self.health.forgotten);
            known.advance(&wish.limit, job.now);
            let server = &mut self.servers[known.server];
            if server.state == State::Away {
                continue;
            }
            if known.stage != Stage::Asked && known.waiting.is_empty() {
                known.stage = Stage::Queued;
                server.wanted.push_back(wish.cell());
            }
            known.waiting.push(number);
            cells += 1;
        }
        if cells < job.asks.len() && self.on_error != OnError::Local {
            // The numbers that stand in line are nobody's: who is dropped is told.
            self.jobs.push(job, cells, deadline);
            self.jobs.take(number);
        } else if cells == 0 {
            self.decide_from_memory(*job);
        } else {
            self.jobs.push(job, cells, deadline);
        }
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.deadline().is_none()
    }

    /// Whether every server that is to be had knows all that was admitted.
    pub(super) fn is_settled(&self) -> bool {
        let is_settled = |server: &Server| {
            server.state == State::Away || server.wanted.len() + server.owing.len() + server.under_way.len() == 0
        };
        self.servers.iter().all(is_settled)
    }

    /// Whether something should be asked of this server now.
    pub(super) fn is_due(&self, server: usize) -> bool {
        let Server { wanted, owing, under_way, state } = &self.servers[server];
        match (state, under_way.len(), wanted.len() + owing.len()) {
            (State::New | State::Away, _, _) | (_, _, 0) | (_, UNDER_WAY.., _) => false,
            (_, 0, _) => true,
            (_, _, cells) => cells >= WORTHWHILE,
        }
    }

    /// Writes the next exchange with this server; returns how many answers it gets, 0 if there is nothing to ask.
    pub(super) fn compose(&mut self, server: usize, out: &mut Vec<u8>) -> usize {
        let Self { cells, servers, .. } = self;
        let Server { wanted, owing, under_way, .. } = &mut servers[server];
        let mut exchange = Exchange { cells: Vec::new(), ops: Vec::new() };
        for queue in [wanted, owing] {
            while exchange.cells.len() < BATCH
                && let Some(cell) = queue.pop_front()
            {
                let Some(known) = cells.get_mut(cell).filter(|known| known.stage == Stage::Queued) else { continue };
                let before = exchange.ops.len();
                known.compose(&mut exchange.ops, out);
                exchange.cells.push((cell, exchange.ops.len() - before));
            }
        }
        let answers = exchange.ops.len();
        if !exchange.cells.is_empty() {
            under_way.push_back(exchange);
        }
        answers
    }

    /// Takes over the answers to the exchange with this server that was begun first. False if none of them is good.
    pub(super) fn answered(&mut self, server: usize, answers: &[Answer<'_>]) -> bool {
        let Some(exchange) = self.servers[server].under_way.pop_front() else { return true };
        let (mut at, mut failed) = (0, 0);
        for (cell, length) in exchange.cells {
            let (ops, answers) = (&exchange.ops[at..at + length], &answers[at..at + length]);
            at += length;
            failed += self.fill(cell, ops, answers);
        }
        failed == 0 || failed < at
    }

    /// Takes over the answers on one cell and decides what waited for it; returns how many failed.
    fn fill(&mut self, cell: Fingerprint, ops: &[Op], answers: &[Answer<'_>]) -> usize {
        let Some(known) = self.cells.get_mut(cell) else { return 0 };
        let filled = known.fill(ops, answers);
        self.health.lost.add(filled.lost);
        known.stage = Stage::Idle;
        let waiting = match filled.is_current {
            true => std::mem::take(&mut known.waiting),
            // A new bucket has begun since it was asked for.
            false => SmallVec::new(),
        };
        for number in waiting {
            if filled.failed > 0 {
                self.give_up(number);
            } else if let Some(job) = self.jobs.count_down(number) {
                self.decide(*job);
            }
        }
        self.queue(cell, filled.failed == 0);
        filled.failed
    }

    /// Puts a cell in line again if something is wanted of it or, unless that has just `failed`, owed by it.
    fn queue(&mut self, cell: Fingerprint, may_owe: bool) {
        let Self { cells, servers, .. } = self;
        let Some(known) = cells.get_mut(cell).filter(|known| known.stage == Stage::Idle) else { return };
        let server = &mut servers[known.server];
        if !known.waiting.is_empty() {
            server.wanted.push_back(cell);
        } else if may_owe && known.owes() {
            server.owing.push_back(cell);
        } else {
            return;
        }
        known.stage = Stage::Queued;
    }

    /// The server answers.
    pub(super) fn up(&mut self, server: usize) {
        self.servers[server].state = State::Up;
    }

    /// The server is away, and what was under way may or may not have arrived.
    pub(super) fn down(&mut self, server: usize) {
        self.servers[server].state = State::Away;
        for exchange in std::mem::take(&mut self.servers[server].under_way) {
            let mut ops = exchange.ops.into_iter();
            for (cell, length) in exchange.cells {
                let ops: Vec<Op> = ops.by_ref().take(length).collect();
                if let Some(known) = self.cells.get_mut(cell) {
                    known.doubt(ops);
                    known.stage = Stage::Idle;
                }
                self.abandon(cell);
                self.queue(cell, true);
            }
        }
        for cell in std::mem::take(&mut self.servers[server].wanted) {
            self.abandon(cell);
            if let Some(known) = self.cells.get_mut(cell).filter(|known| known.stage == Stage::Queued) {
                known.stage = Stage::Idle;
            }
            self.queue(cell, true);
        }
    }

    /// Lets nobody wait for this cell any more.
    fn abandon(&mut self, cell: Fingerprint) {
        let Some(known) = self.cells.get_mut(cell) else { return };
        for number in std::mem::take(&mut known.waiting) {
            self.give_up(number);
        }
    }

    /// One of the cells of a job is not to be had.
    fn give_up(&mut self, number: u64) {
        if self.on_error != OnError::Local {
            // Who is dropped is told.
            self.jobs.take(number);
        } else if let Some(job) = self.jobs.count_down(number) {
            self.decide_from_memory(*job);
        }
    }

    /// Ends the wait of those whose time is over; returns when the next one's is.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some(job) = self.jobs.take_overdue(now) {
            if self.on_error == OnError::Local {
                self.decide_from_memory(*job);
            }
        }
        self.jobs.deadline()
    }

    /// Decides from what is known, because Memcached does not answer.
    fn decide_from_memory(&mut self, job: Job) {
        self.health.local.one();
        self.decide(job);
    }

    /// Decides on the cells as they are after everything before; a job without a reply is charged anyhow.
    fn decide(&mut self, mut job: Job) {
        let (now, free) = (job.now, job.reply.is_none());
        let mut all = true;
        for wish in &job.asks {
            let known = self.cells.of(wish, now, &self.health.forgotten);
            known.advance(&wish.limit, now);
            all &= free || wish.advisory || wish.limit.admits(&known.cell, now, wish.need);
        }
        let mut verdicts = Verdicts::new();
        for wish in &job.asks {
            let Some(known) = self.cells.get_mut(wish.cell()) else { return };
            let admitted = free || wish.limit.admits(&known.cell, now, wish.need);
            let charged = all && admitted && wish.cost > 0;
            if charged {
                known.charge(&wish.limit, now, wish.cost);
            }
            verdicts.push((wish.place, wish.limit.judge(&known.cell, now, wish.need, admitted)));
            if charged {
                self.queue(wish.cell(), true);
            }
        }
        self.refused.note(&job.asks, &verdicts, now);
        if let Some(reply) = job.reply.take() {
            // A receiver that is gone has given up waiting and let its request through: counting it is right.
            let _ = reply.send(verdicts);
        }
    }
}
