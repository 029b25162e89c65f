//! Every decision that is under way, in one book: who waits for which cell, what is asked of which server, what is owed.
//!
//! Pure: it is told what was asked, what was answered and what failed, and writes what is to be sent. All decisions of
//! the process pass through one ledger, so each sees every admission before it, and a burst for one key gets exactly
//! its limit. Those that wait for one cell share one read, and their increments travel as one.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::cells::{Cells, Place};
use super::desk::Post;
use super::health::Health;
use super::jobs::{Job, Jobs};
use super::known::{Op, Stage};
use super::refused::Refused;
use super::wire::Answer;
use crate::config::{self, OnError};
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
    /// For each worker, the verdicts that have not been sent off yet.
    posts: Vec<Post>,
}

/// What is known of one server and asked of it.
#[derive(Default)]
struct Server {
    state: State,
    /// Cells that somebody waits for.
    wanted: VecDeque<Place>,
    /// Cells that owe something.
    owing: VecDeque<Place>,
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
struct Exchange {
    /// The cells in it, and how many commands each takes.
    cells: Vec<(Place, usize)>,
    ops: Vec<Op>,
}

impl Ledger {
    pub(super) fn new(config: &config::Memcached, workers: usize, health: Arc<Health>, refused: Arc<Refused>) -> Self {
        Self {
            cells: Cells::new(&config.prefix, &config.servers),
            jobs: Jobs::default(),
            servers: config.servers.iter().map(|_| Server::default()).collect(),
            on_error: config.on_error,
            health,
            refused,
            posts: (0..workers).map(|_| Post::new()).collect(),
        }
    }

    /// The verdicts that are to be sent off, by worker.
    pub(super) fn posts(&mut self) -> impl Iterator<Item = (usize, Post)> {
        self.posts.iter_mut().map(std::mem::take).enumerate().filter(|(_, post)| !post.is_empty())
    }

    /// Takes on a job: decides it on the spot if all its servers are away, and when they have answered otherwise, or at
    /// the deadline.
    pub(super) fn submit(&mut self, mut job: Job, deadline: Instant) {
        if job.is_given_up() {
            return;
        }
        let number = self.jobs.next();
        let mut cells = 0;
        for wish in &job.asks {
            let (place, known) = self.cells.of(wish, job.now, &self.health.forgotten);
            job.places.push(place);
            known.advance(&wish.limit, job.now);
            let server = &mut self.servers[known.server];
            if server.state == State::Away {
                continue;
            }
            if known.stage != Stage::Asked && known.waiting.is_empty() {
                known.stage = Stage::Queued;
                server.wanted.push_back(place);
            }
            known.waiting.push(number);
            cells += 1;
        }
        let is_whole = cells == job.asks.len();
        self.jobs.push(job, cells, deadline);
        if !is_whole && self.on_error != OnError::Local {
            // Who is dropped is told.
            self.jobs.take(number);
        } else if cells == 0
            && let Some(job) = self.jobs.take(number)
        {
            self.decide_from_memory(job);
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

    /// When an exchange with this server is due: at once, or only so that what is owed does not wait for too long.
    pub(super) fn due(&self, server: usize) -> Due {
        let Server { state, wanted, owing, under_way } = &self.servers[server];
        match (wanted.len(), owing.len(), under_way.len()) {
            _ if *state != State::Up => Due::Never,
            (0, 0, _) | (_, _, UNDER_WAY..) => Due::Never,
            (1.., _, 0) => Due::Now,
            (wanted, owing, _) if wanted >= WORTHWHILE || owing >= 4 * BATCH => Due::Now,
            (0, _, 0) => Due::Soon,
            _ => Due::Never,
        }
    }

    /// Writes the next exchange with this server; returns how many answers it gets, 0 if there is nothing to ask.
    pub(super) fn compose(&mut self, server: usize, out: &mut Vec<u8>) -> usize {
        let Self { cells, servers, .. } = self;
        let Server { wanted, owing, under_way, .. } = &mut servers[server];
        let mut exchange = Exchange { cells: Vec::new(), ops: Vec::new() };
        for (queue, most) in [(wanted, BATCH), (owing, 2 * BATCH)] {
            while exchange.cells.len() < most
                && let Some(cell) = queue.pop_front()
            {
                let known = cells.at(cell);
                // It may have stood in both queues.
                if known.stage == Stage::Queued {
                    let before = exchange.ops.len();
                    known.compose(&mut exchange.ops, out);
                    exchange.cells.push((cell, exchange.ops.len() - before));
                }
            }
        }
        let answers = exchange.ops.len();
        if answers > 0 {
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
    fn fill(&mut self, cell: Place, ops: &[Op], answers: &[Answer<'_>]) -> usize {
        let known = self.cells.at(cell);
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
                self.decide(job);
            }
        }
        self.queue(cell, filled.failed == 0);
        filled.failed
    }

    /// Puts a cell in line again if something is wanted of it or, unless that has just `failed`, owed by it.
    fn queue(&mut self, cell: Place, may_owe: bool) {
        let Self { cells, servers, .. } = self;
        let known = cells.at(cell);
        if known.stage != Stage::Idle {
            return;
        }
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
                let known = self.cells.at(cell);
                known.doubt(ops);
                known.stage = Stage::Idle;
                self.abandon(cell);
                self.queue(cell, true);
            }
        }
        for cell in std::mem::take(&mut self.servers[server].wanted) {
            self.abandon(cell);
            let known = self.cells.at(cell);
            if known.stage == Stage::Queued {
                known.stage = Stage::Idle;
            }
            self.queue(cell, true);
        }
    }

    /// Lets nobody wait for this cell any more.
    fn abandon(&mut self, cell: Place) {
        for number in std::mem::take(&mut self.cells.at(cell).waiting) {
            self.give_up(number);
        }
    }

    /// One of the cells of a job is not to be had.
    fn give_up(&mut self, number: u64) {
        if self.on_error != OnError::Local {
            // Who is dropped is told.
            self.jobs.take(number);
        } else if let Some(job) = self.jobs.count_down(number) {
            self.decide_from_memory(job);
        }
    }

    /// Ends the wait of those whose time is over; returns when the next one's is.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some(job) = self.jobs.take_overdue(now) {
            if self.on_error == OnError::Local {
                self.decide_from_memory(job);
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
        for (wish, place) in job.asks.iter().zip(&mut job.places) {
            let mut known = self.cells.at(*place);
            if known.id() != wish.cell() {
                // A cell that nobody waits for, because its server is away, may have had to make room.
                (*place, known) = self.cells.of(wish, now, &self.health.forgotten);
            }
            known.advance(&wish.limit, now);
            all &= free || wish.advisory || wish.limit.admits(&known.cell, now, wish.need);
        }
        let mut verdicts = Verdicts::new();
        for (wish, place) in job.asks.iter().zip(&job.places) {
            let known = self.cells.at(*place);
            let admitted = free || wish.limit.admits(&known.cell, now, wish.need);
            let charged = all && admitted && wish.cost > 0;
            if charged {
                known.charge(&wish.limit, now, wish.cost);
            }
            verdicts.push((wish.place, wish.limit.judge(&known.cell, now, wish.need, admitted)));
            if charged {
                self.queue(*place, true);
            }
        }
        self.refused.note(&job.asks, &verdicts, now);
        match (job.reply.take(), self.posts.get_mut(job.worker)) {
            (Some(reply), Some(post)) => post.push((reply, verdicts)),
            (Some(reply), None) => drop(reply.send(verdicts)),
            (None, _) => {}
        }
    }
}
