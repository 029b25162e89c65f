//! Every decision that is under way, in one book: who waits for which cell, what is asked of which server, what is owed.
//!
//! Pure: it is told what was asked, what was answered and what failed, and writes what is to be sent. All decisions of
//! the process pass through one ledger, so each sees every admission before it, and a burst for one key gets exactly
//! its limit. Those that wait for one cell share one read, and their increments travel as one.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::Wish;
use super::cells::{Cells, Place};
use super::claims::{Claimed, Outcome, Standing};
use super::desk::Post;
use super::health::Health;
use super::jobs::{Job, Jobs};
use super::known::{Op, Stage};
use super::refused::Refused;
use super::servers::{Due, Server, State};
use super::wire::Answer;
use crate::clock::Time;
use crate::config::{self, OnError};

/// For each limit of a job, as of when it is decided, and whether it admits.
type Admits = SmallVec<[(Time, bool); 2]>;

/// The book.
pub(super) struct Ledger {
    cells: Cells,
    jobs: Jobs,
    servers: Vec<Server>,
    on_error: OnError,
    strict: bool,
    health: Arc<Health>,
    refused: Arc<Refused>,
    /// For each worker, the verdicts that have not been sent off yet.
    posts: Vec<Post>,
}

impl Ledger {
    pub(super) fn new(config: &config::Memcached, workers: usize, health: Arc<Health>, refused: Arc<Refused>) -> Self {
        Self {
            cells: Cells::new(&config.prefix, &config.servers),
            jobs: Jobs::default(),
            servers: config.servers.iter().map(|_| Server::default()).collect(),
            on_error: config.on_error,
            strict: config.strict,
            health,
            refused,
            posts: (0..workers).map(|_| Post::new()).collect(),
        }
    }

    /// The verdicts that are to be sent off, by worker.
    pub(super) fn posts(&mut self) -> impl Iterator<Item = (usize, Post)> {
        self.posts.iter_mut().map(std::mem::take).enumerate().filter(|(_, post)| !post.is_empty())
    }

    /// Takes on a job: decides it on the spot if all its servers are away, or if all that it asks for was just read and
    /// has plenty of room; else when they have answered, or at the deadline.
    pub(super) fn submit(&mut self, mut job: Box<Job>, deadline: Instant) {
        if job.is_given_up() {
            return;
        }
        let is_claimed = self.strict && job.reply.is_some();
        let (mut reachable, mut is_claimable) = (0, is_claimed);
        let mut admits = Admits::new();
        // Those that are to be had and have to be read.
        let mut unread: SmallVec<[Place; 2]> = SmallVec::new();
        for wish in &job.asks {
            let (place, known) = self.cells.of(wish, job.now, &self.health.forgotten);
            job.places.push(place);
            admits.push((known.advance_for(&wish.limit, job.now, job.asked), true));
            let plenty = (is_claimed || known.was_just_read(job.asked)) && known.has_plenty(&wish.limit, wish.need);
            is_claimable = is_claimable && plenty && wish.cost > 0;
            if self.servers[known.server].state != State::Away {
                reachable += 1;
                if self.strict || !plenty {
                    unread.push(place);
                }
            }
        }
        let all = reachable == job.asks.len();
        if all && unread.is_empty() {
            return self.carry_out(job, &admits, false);
        }
        let number = self.jobs.next();
        self.jobs.push(job, unread.len(), deadline);
        if all && is_claimable {
            self.jobs.take(number).into_iter().for_each(|job| self.carry_out(job, &admits, true));
        } else if !all && self.on_error != OnError::Local {
            // Who is dropped is told.
            self.jobs.take(number);
        } else if unread.is_empty() {
            self.give_up(number);
        } else {
            for place in unread {
                let known = self.cells.at(place);
                self.servers[known.server].want(place, known, number);
            }
        }
    }

    /// Whether every server has yet to answer.
    pub(super) fn is_busy(&self) -> bool {
        self.servers.iter().all(Server::is_busy)
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&mut self) -> bool {
        self.jobs.deadline().is_none()
    }

    /// Whether every server that is to be had knows all that was admitted.
    pub(super) fn is_settled(&self) -> bool {
        self.servers.iter().all(Server::is_settled)
    }

    /// When an exchange with this server is due.
    pub(super) fn due(&self, server: usize) -> Due {
        self.servers[server].due()
    }

    /// Writes the next exchange with this server; returns how many answers it gets, 0 if there is nothing to ask.
    pub(super) fn compose(&mut self, server: usize, out: &mut Vec<u8>) -> usize {
        self.servers[server].compose(server, &mut self.cells, out)
    }

    /// Takes over the answers to the exchange with this server that was begun first, at `begun`. False if none of them
    /// is good.
    pub(super) fn answered(&mut self, server: usize, answers: &[Answer<'_>], begun: Instant, now: Time) -> bool {
        let Some(exchange) = self.servers[server].answered() else { return true };
        let (mut at, mut failed) = (0, 0);
        for (cell, length) in exchange.cells {
            let (ops, answers) = (&exchange.ops[at..at + length], &answers[at..at + length]);
            at += length;
            failed += self.fill(cell, (ops, answers), begun, now);
        }
        failed == 0 || failed < at
    }

    /// Takes over the answers on one cell and decides what waited for it; returns how many failed.
    fn fill(&mut self, cell: Place, (ops, answers): (&[Op], &[Answer<'_>]), begun: Instant, now: Time) -> usize {
        let known = self.cells.at(cell);
        if now > known.now && !known.claims.is_empty() {
            // It may be late for them.
            known.advance(&known.names.limit.clone(), now);
        }
        let filled = known.fill(ops, answers, begun, self.strict);
        self.health.lost.add(filled.lost);
        known.stage = Stage::Idle;
        let outcomes = if filled.failed > 0 { SmallVec::new() } else { known.settle_claims(filled) };
        let waiting = match filled.is_current {
            true => std::mem::take(&mut known.waiting),
            // A new bucket has begun since it was asked for.
            false => SmallVec::new(),
        };
        if filled.failed > 0 {
            self.drop_claims(cell);
        }
        for outcome in outcomes {
            self.settle(cell, outcome);
        }
        for number in waiting {
            if filled.failed > 0 {
                self.give_up(number);
            } else if let Some(job) = self.jobs.count_down(number) {
                self.decide(job);
            }
        }
        // What could not be written is tried again when somebody asks for it, and not in a circle.
        self.queue(cell, filled.failed == 0);
        filled.failed
    }

    /// Puts a cell in line again if something is wanted of it or, if it `may_owe`, owed by it.
    fn queue(&mut self, cell: Place, may_owe: bool) {
        let known = self.cells.at(cell);
        let server = &mut self.servers[known.server];
        server.queue(cell, known, may_owe);
        server.tidy(&mut self.cells);
    }

    /// The server answers.
    pub(super) fn up(&mut self, server: usize) {
        self.servers[server].state = State::Up;
    }

    /// The server is away, and what was under way may or may not have arrived.
    pub(super) fn down(&mut self, server: usize) {
        for exchange in self.servers[server].fail() {
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
        for cell in self.servers[server].give_up() {
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
        self.drop_claims(cell);
        for number in std::mem::take(&mut self.cells.at(cell).waiting) {
            self.give_up(number);
        }
    }

    /// Lets nobody wait for a claim on this cell any more.
    fn drop_claims(&mut self, cell: Place) {
        for claim in std::mem::take(&mut self.cells.at(cell).claims) {
            let number = claim.number;
            match self.jobs.get_mut(number).and_then(|job| job.standing(claim.ask)) {
                // What is in doubt stays charged: to give back what never arrived would let others pass for nothing.
                Some(standing) if claim.sent => *standing = Standing::Unclaimed(true),
                Some(standing) => *standing = Standing::Stands(claim),
                None if claim.sent => {}
                None => self.cells.at(cell).give_back(&claim),
            }
            self.give_up(number);
        }
    }

    /// One of the cells of a job is not to be had.
    fn give_up(&mut self, number: u64) {
        if self.on_error != OnError::Local {
            self.jobs.take(number).into_iter().for_each(|job| self.dismiss(job));
        } else if let Some(job) = self.jobs.count_down(number) {
            self.decide_from_memory(job);
        }
    }

    /// Drops a job: who is dropped is told. What it was charged is given back if that means it is refused.
    fn dismiss(&mut self, mut job: Box<Job>) {
        let Some(claimed) = job.claimed.take() else { return };
        for (ask, standing) in claimed.0.into_iter().enumerate() {
            self.close(&job, ask, standing, self.on_error == OnError::Reject);
        }
    }

    /// Ends what is open about a claim of a job that is decided: it is kept, or given back.
    fn close(&mut self, job: &Job, ask: usize, standing: Standing, is_given_back: bool) {
        let place = job.places[ask];
        let known = self.cells.at(place);
        if known.id() != job.asks[ask].cell() {
            return;
        }
        match standing {
            Standing::Stands(claim) if is_given_back => known.give_back(&claim),
            // What is under way is given back when it is answered, since nobody waits for it any more.
            Standing::Open if !is_given_back => known.withdraw(job.number, ask),
            _ => return,
        }
        self.queue(place, true);
    }

    /// Ends the wait of those whose time is over; returns when the next one's is.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some(job) = self.jobs.take_overdue(now) {
            match self.on_error {
                OnError::Local => self.decide_from_memory(job),
                OnError::Allow | OnError::Reject => self.dismiss(job),
            }
        }
        self.jobs.deadline()
    }

    /// Decides from what is known, because Memcached does not answer.
    fn decide_from_memory(&mut self, job: Box<Job>) {
        self.health.local.one();
        match job.claimed {
            // What is not confirmed has been charged all the same.
            Some(_) => self.conclude(job),
            None => self.judge(job, false),
        }
    }

    /// Decides by what has just been read.
    fn decide(&mut self, job: Box<Job>) {
        let is_claimed = self.strict && job.reply.is_some();
        if is_claimed && self.on_error != OnError::Local && job.places.iter().any(|place| self.is_away(*place)) {
            // Who has answered meanwhile is away again, and will not confirm anything.
            return self.dismiss(job);
        }
        self.judge(job, is_claimed);
    }

    /// Whether the server of this cell is not to be had.
    fn is_away(&mut self, cell: Place) -> bool {
        let server = self.cells.at(cell).server;
        self.servers[server].state == State::Away
    }

    /// Decides on the cells as they are after everything before; a job without a reply is charged anyhow.
    fn judge(&mut self, mut job: Box<Job>, is_claimed: bool) {
        let free = job.reply.is_none();
        let mut admits = Admits::new();
        for (wish, place) in job.asks.iter().zip(&mut job.places) {
            let mut known = self.cells.at(*place);
            if known.id() != wish.cell() {
                // A cell that nobody waits for, because its server is away, may have had to make room.
                (*place, known) = self.cells.of(wish, job.now, &self.health.forgotten);
            }
            let now = known.advance_for(&wish.limit, job.now, job.asked);
            admits.push((now, free || wish.limit.admits(&known.cell, now, wish.need)));
        }
        self.carry_out(job, &admits, is_claimed);
    }

    /// Charges a job if all its limits admit it, and answers. If what is charged `is_claimed`, it has to be confirmed
    /// first.
    fn carry_out(&mut self, mut job: Box<Job>, admits: &Admits, is_claimed: bool) {
        let all = job.asks.iter().zip(admits).all(|(wish, (_, admitted))| *admitted || wish.advisory);
        let mut claimed = Claimed::default();
        let mut open = 0;
        let Job { asks, places, verdicts, number, .. } = &mut *job;
        for (ask, (wish, place)) in asks.iter().zip(&*places).enumerate() {
            let known = self.cells.at(*place);
            let (now, admitted) = admits[ask];
            let charged = all && admitted && wish.cost > 0;
            if charged {
                known.charge(&wish.limit, now, wish.cost);
            }
            if charged && is_claimed && self.servers[known.server].state != State::Away {
                known.claim(*number, ask, wish.cost);
                claimed.0.push(Standing::Open);
                open += 1;
            } else if is_claimed {
                claimed.0.push(Standing::Unclaimed(admitted));
            }
            verdicts.push((wish.place, wish.limit.judge(&known.cell, now, wish.need, admitted)));
            if charged {
                self.queue(*place, true);
            }
        }
        if open > 0 {
            verdicts.clear();
            job.claimed = Some(Box::new(claimed));
            self.jobs.put_back(job, open);
        } else {
            self.reply(job);
        }
    }

    /// One of the claims of a job is confirmed or lost.
    fn settle(&mut self, cell: Place, Outcome { claim, stands }: Outcome) {
        let number = claim.number;
        match self.jobs.get_mut(number).and_then(|job| job.standing(claim.ask)) {
            Some(standing) => *standing = if stands { Standing::Stands(claim) } else { Standing::Lost },
            // Who waited for it has been refused.
            None if stands => self.cells.at(cell).give_back(&claim),
            None => {}
        }
        if let Some(job) = self.jobs.count_down(number) {
            self.conclude(job);
        }
    }

    /// Decides a job whose claims are settled, as far as they will be: if one is lost, all are given back.
    fn conclude(&mut self, mut job: Box<Job>) {
        let Some(claimed) = job.claimed.take() else { return };
        let lost = |(wish, standing): (&Wish, &Standing)| !wish.advisory && matches!(standing, Standing::Lost);
        let refused = job.asks.iter().zip(&claimed.0).any(lost);
        for (ask, standing) in claimed.0.into_iter().enumerate() {
            let admitted = !matches!(standing, Standing::Lost | Standing::Unclaimed(false));
            self.close(&job, ask, standing, refused);
            let (wish, known) = (&job.asks[ask], self.cells.at(job.places[ask]));
            job.verdicts.push((wish.place, wish.limit.judge(&known.cell, known.now, wish.need, admitted)));
        }
        self.reply(job);
    }

    /// Sends a job back to who waits for it.
    fn reply(&mut self, job: Box<Job>) {
        self.refused.note(&job.asks, &job.verdicts, job.now);
        match self.posts.get_mut(job.worker) {
            Some(post) if job.reply.is_some() => post.push(job),
            _ => job.answer(),
        }
    }
}
