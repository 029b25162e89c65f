//! Every decision that is under way, in one book: who waits for which cell, what is asked of which server, what is owed.
//!
//! Pure: it is told what was asked, what was answered and what failed, and writes what is to be sent. All decisions of
//! the process pass through one ledger, so each sees every admission before it, and a burst for one key gets exactly
//! its limit. Those that wait for one cell share one read, and their increments travel as one.

mod claimed;
mod unanswered;

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::cells::{Cells, Place};
use super::claims::{Claimed, Standing};
use super::commands::Commands;
use super::health::Health;
use super::known::{OVERTAKEN, Stage, Writes};
use super::message::{Decision, Decisions, Message, Settlement};
use super::refused::Refused;
use super::replies::Replies;
use super::servers::{Due, Server, State};
use super::sweep::Sweep;
use super::targets::Answer;
use super::waiting::Waiting;
use crate::clock::Time;
use crate::config::{self, OnError};
use crate::store::reloads::Migration;

/// What a limit of a decision says.
struct Admit {
    /// As of when it is decided.
    now: Time,
    admitted: bool,
    /// Whether what is charged has to be confirmed.
    is_claimed: bool,
}

/// For each limit of a decision, what it says.
type Admits = SmallVec<[Admit; 2]>;

/// The book.
pub(super) struct Ledger {
    cells: Cells,
    waiting: Waiting,
    servers: Vec<Server>,
    on_error: OnError,
    strict: bool,
    health: Arc<Health>,
    refused: Arc<Refused>,
    /// What is to be dropped after a reload.
    sweep: Option<Sweep>,
    /// For each worker, the replies that have not been taken yet.
    replies: Vec<Decisions>,
}

impl Ledger {
    pub(super) fn new(config: &config::Memcached, workers: usize, health: Arc<Health>, refused: Arc<Refused>) -> Self {
        Self {
            cells: Cells::new(&config.prefix, &config.servers),
            waiting: Waiting::default(),
            servers: config.servers.iter().map(|_| Server::default()).collect(),
            on_error: config.on_error,
            strict: config.strict,
            health,
            refused,
            sweep: None,
            replies: (0..workers).map(|_| Decisions::new()).collect(),
        }
    }

    /// What was decided since they were taken last, by worker.
    pub(super) fn take_replies(&mut self) -> impl Iterator<Item = (usize, Decisions)> {
        self.replies.iter_mut().map(std::mem::take).enumerate().filter(|(_, replies)| !replies.is_empty())
    }

    /// Takes on a message; a decision is made by `deadline`.
    pub(super) fn submit(&mut self, message: Message, deadline: Instant) {
        match message {
            Message::Decide(decision) => self.decide(decision, deadline),
            Message::Settle(settlement) => self.settle_reserved(*settlement),
            Message::Reload(reload) => {
                self.cells.reload(&reload.changes, reload.now);
                self.sweep = Some(Sweep::new(reload.asked));
                self.on_timer(reload.asked, reload.now);
            }
        }
    }

    /// Decides on the spot if all servers are away, or if all that is asked for was just read and has plenty of room; else
    /// when they have answered, or at the deadline. Where there was plenty of room it is charged at once, and they are
    /// asked whether that stands: one exchange does for what takes two otherwise.
    fn decide(&mut self, mut decision: Box<Decision>, deadline: Instant) {
        if decision.is_given_up() {
            return;
        }
        // If no decision is made here when a server fails, what it was asked to count would be counted for nobody.
        let mut is_claimable = self.strict || self.on_error == OnError::Local;
        let mut reachable = 0;
        let mut admits = Admits::new();
        // Those that are to be had and have to be read.
        let mut unread: SmallVec<[Place; 2]> = SmallVec::new();
        for wish in &mut decision.asks {
            self.cells.follow(wish, decision.now);
            let (place, known) = self.cells.of(wish, decision.now, &self.health.forgotten);
            decision.places.push(place);
            if wish.settles {
                known.counters.may_shrink();
            }
            let now = known.advance_for(&wish.limit, decision.now, decision.asked);
            let has_plenty = known.has_plenty(&wish.limit, wish.need);
            let is_read = has_plenty && !self.strict && known.was_just_read(decision.asked);
            let may_claim = has_plenty && wish.cost > 0 && (self.strict || known.may_claim());
            is_claimable = is_claimable && (is_read || may_claim);
            admits.push(Admit { now, admitted: true, is_claimed: !is_read });
            if self.servers[known.server].state != State::Away {
                reachable += 1;
                if !is_read {
                    unread.push(place);
                }
            }
        }
        let all = reachable == decision.asks.len();
        if all && unread.is_empty() {
            return self.carry_out(decision, &admits);
        }
        let number = self.waiting.next();
        self.waiting.push(decision, unread.len(), deadline);
        if all && is_claimable {
            self.waiting.take(number).into_iter().for_each(|decision| self.carry_out(decision, &admits));
        } else if !all && self.on_error != OnError::Local {
            // Who is dropped is told.
            self.waiting.take(number);
        } else if unread.is_empty() {
            self.give_up(number);
        } else {
            for place in unread {
                let known = self.cells.at(place);
                self.servers[known.server].want(place, known, number);
            }
        }
    }

    /// Takes back what a reservation was too much, or charges what it was too little. Nobody waits for that, nor does it wait
    /// for anything: those who ask next are decided after it.
    fn settle_reserved(&mut self, mut settlement: Settlement) {
        let Settlement { wish, now, asked, cell, given, reservation, .. } = &mut settlement;
        let migration = self.cells.follow(wish, *now);
        let place = self.cells.of(wish, *now, &self.health.forgotten).0;
        if let Some(Migration { from, to, at, .. }) = migration {
            *reservation = to.migrate_reservation(&from, reservation, at);
            if self.cells.at(place).number != *cell {
                // It may not have been carried over, and would be taken from others.
                *given = 0;
            }
        }
        if self.cells.at(place).number != *cell && self.cells.may_have_forgotten(*cell) {
            // It may never have been counted in Memcached, and would be taken from others.
            *given = 0;
        }
        // There may be room again.
        self.refused.forget(wish.cell());
        let known = self.cells.at(place);
        *now = known.advance_for(&wish.limit, *now, *asked);
        known.settle(settlement);
        self.queue(place, true);
    }

    /// Does what is due by now: ends waits that have lasted long enough, and goes on sweeping after a reload. Returns when
    /// there will be more to do.
    pub(super) fn on_timer(&mut self, now: Instant, time: Time) -> Option<Instant> {
        self.expire(now);
        if let Some(sweep) = self.sweep.take_if(|sweep| sweep.at <= now) {
            self.sweep = sweep.step(&mut self.cells, (now, time));
        }
        self.next_timer()
    }

    /// When [`Self::on_timer`] has something to do.
    pub(super) fn next_timer(&mut self) -> Option<Instant> {
        let sweep = self.sweep.as_ref().map(|sweep| sweep.at);
        self.waiting.deadline().into_iter().chain(sweep).min()
    }

    /// Whether every server has yet to answer.
    pub(super) fn is_busy(&self) -> bool {
        self.servers.iter().all(Server::is_busy)
    }

    /// Whether every server that is to be had knows all that was admitted.
    pub(super) fn is_settled(&self) -> bool {
        self.servers.iter().all(Server::is_settled)
    }

    /// When an exchange with this server is due.
    pub(super) fn due(&self, server: usize) -> Due {
        self.servers[server].due()
    }

    /// Collects the commands of the next exchange with this server; returns whether there is anything to ask.
    pub(super) fn compose(&mut self, server: usize, commands: &mut Commands) -> bool {
        self.servers[server].compose(server, &mut self.cells, commands, self.strict)
    }

    /// Takes over the replies to the exchange with this server that was begun first, at `begun`. False if it has done
    /// nothing of what it was asked.
    pub(super) fn answered(&mut self, server: usize, replies: Replies<'_>, begun: Instant, now: Time) -> bool {
        let Some(exchange) = self.servers[server].answered() else { return true };
        for (cell, part) in &exchange.cells {
            let answer = Answer { targets: &exchange.targets, part, replies };
            self.fill(*cell, &answer, begun, now);
        }
        let is_good = !replies.is_failure();
        if !is_good {
            // It is as good as away, and what is owed waits until it is back.
            exchange.cells.iter().for_each(|(cell, _)| self.queue(*cell, true));
        }
        is_good
    }

    /// Takes over the answer about one cell and decides what waited for it.
    fn fill(&mut self, cell: Place, answer: &Answer<'_>, begun: Instant, now: Time) {
        let known = self.cells.at(cell);
        // It may be late for claims. And as of the last decision, which may be long ago, what others have counted since would
        // look as if their clocks were ahead.
        if now > known.now && (known.whole.is_some() || self.strict && !known.claims.is_empty()) {
            known.advance(&known.names.limit.clone(), now);
        }
        let filled = known.fill(answer, begun, self.strict);
        self.health.lost.add(filled.lost);
        known.stage = Stage::Idle;
        let has_failed = !answer.is_read() || filled.writes == Writes::Failed;
        let is_good = answer.is_read() && filled.writes == Writes::Done;
        let is_confirmed = !filled.must_retry && (filled.is_current || !self.strict);
        let outcomes = if is_good { known.settle_claims(is_confirmed) } else { SmallVec::new() };
        // Who comes second in replacing a state tries again before it admits anything: with each admission that others do
        // not know of they would be further apart. A new bucket that has begun meanwhile is read first as well.
        let is_decidable = has_failed || !filled.must_retry;
        let waiting = match filled.is_current && is_decidable {
            true => std::mem::take(&mut known.waiting),
            false => SmallVec::new(),
        };
        if !is_good {
            self.drop_claims(cell, filled.writes == Writes::InDoubt);
        }
        for outcome in outcomes {
            self.settle(cell, outcome);
        }
        for number in waiting {
            if has_failed {
                self.give_up(number);
            } else if let Some(mut decision) = self.waiting.count_down(number) {
                // Who has waited for long is decided as of the answer: what others have counted since would look as if the
                // clock had been set back.
                decision.now = if decision.now.after(OVERTAKEN) < now { now } else { decision.now };
                self.decide_by_read(decision);
            }
        }
        // What could not be written is tried again when somebody asks for it, and not in a circle.
        self.queue(cell, is_good);
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
            for (cell, _) in exchange.cells {
                let known = self.cells.at(cell);
                known.doubt();
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

    /// Decides by what has just been read.
    fn decide_by_read(&mut self, decision: Box<Decision>) {
        if self.strict && self.on_error != OnError::Local && decision.places.iter().any(|place| self.is_away(*place)) {
            // Who has answered meanwhile is away again, and will not confirm anything.
            return self.dismiss(decision);
        }
        self.judge(decision, self.strict);
    }

    /// Whether the server of this cell is not to be had.
    fn is_away(&mut self, cell: Place) -> bool {
        let server = self.cells.at(cell).server;
        self.servers[server].state == State::Away
    }

    /// Decides on the cells as they are after everything before.
    fn judge(&mut self, mut decision: Box<Decision>, is_claimed: bool) {
        let mut admits = Admits::new();
        let Decision { asks, places, now, asked, .. } = &mut *decision;
        for (wish, place) in asks.iter_mut().zip(places) {
            // A reload may have come while it waited.
            self.cells.follow(wish, *now);
            let known = self.cells.again(place, wish, *now, &self.health.forgotten);
            let now = known.advance_for(&wish.limit, *now, *asked);
            let admitted = wish.limit.admits(&known.cell, now, wish.need);
            admits.push(Admit { now, admitted, is_claimed });
        }
        self.carry_out(decision, &admits);
    }

    /// Charges a decision if all its limits admit it, and answers, or waits until what has to be confirmed is.
    fn carry_out(&mut self, mut decision: Box<Decision>, admits: &Admits) {
        let all = decision.asks.iter().zip(admits).all(|(wish, admit)| admit.admitted || wish.advisory);
        let is_claimed = admits.iter().any(|admit| admit.is_claimed);
        let mut claimed = Claimed::new();
        let mut open = 0;
        let Decision { asks, places, verdicts, reserved, number, .. } = &mut *decision;
        for (ask, (wish, place)) in asks.iter().zip(&*places).enumerate() {
            let known = self.cells.at(*place);
            let Admit { now, admitted, is_claimed: is_open } = admits[ask];
            let charged = all && admitted && wish.cost > 0;
            if charged && wish.settles {
                reserved.push(known.reserve(wish, now, !is_claimed));
            } else if charged {
                known.charge(&wish.limit, now, wish.cost);
            }
            if is_claimed && charged && self.servers[known.server].state != State::Away {
                let claim = Box::new(known.claim(*number, ask, wish));
                claimed.push(if is_open {
                    known.claims.push(claim);
                    open += 1;
                    Standing::Open
                } else {
                    // It is given back if another is lost.
                    Standing::Stands(claim)
                });
            } else if is_claimed {
                claimed.push(Standing::Unclaimed(admitted));
            }
            if !is_claimed {
                verdicts.push((wish.place, wish.limit.judge(&known.cell, now, wish.need, admitted)));
            }
            if charged {
                self.queue(*place, true);
            }
        }
        decision.claimed = claimed;
        if open > 0 {
            self.waiting.put_back(decision, open);
        } else if is_claimed {
            self.conclude(decision);
        } else {
            self.reply(decision);
        }
    }

    /// Sends a decision back to who waits for it.
    fn reply(&mut self, decision: Box<Decision>) {
        self.refused.note(&decision.asks, &decision.verdicts, decision.now);
        match self.replies.get_mut(decision.worker) {
            Some(replies) if decision.reply.is_some() => replies.push(decision),
            _ => {
                let (now, asked) = (decision.now, decision.asked);
                decision.answer((now, asked)).for_each(|message| self.submit(message, asked));
            }
        }
    }
}
