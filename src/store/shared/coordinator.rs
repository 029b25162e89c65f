//! The coordinator makes all decisions of the process, one after the other, so each sees every admission before it. Decisions
//! that wait for the same cell share one read, and their charges become one increment.
//!
//! It is pure, without connections and without a clock. Its inputs are requests (`submit`), replies (`answered`), the state
//! of servers (`up`, `down`) and time (`on_timer`). Its outputs are commands for a server (`write`) and decisions
//! (`take_replies`).

mod decision;
mod confirmation;
mod inspection;
mod settlement;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::Common;
use super::batch::{Due, ServerQueue, ServerState};
use super::cached_cell::{ExchangeStage, NO_DECISION, OVERTAKEN, Standing, Standings, Writes};
use super::cells::{CellPlace, Cells};
use super::health::Health;
use super::mailbox::{Message, PendingDecision, PendingDecisions, Reload};
use super::migration::Sweep;
use super::names::AllNames;
use super::protocol::{Commands, Replies};
use super::refusals::RefusalCache;
use super::targets::CellAnswer;
use crate::base::clock::Time;
use crate::config::{self, OnError, Software};
use crate::store::plan::{AskPlan, Plan};

use decision::{Admit, Admits};
use inspection::Inspections;
use waiting::DecisionQueue;

pub(super) struct Coordinator {
    cells: Cells,
    waiting: DecisionQueue,
    servers: Vec<ServerQueue>,
    on_error: OnError,
    strict: bool,
    health: Arc<Health>,
    refusals: Arc<RefusalCache>,
    sweep: Option<Sweep>,
    replies: Vec<PendingDecisions>,
    inspections: Inspections,
    /// When requested or granted leases end, and of which cells.
    leases: VecDeque<(Instant, CellPlace)>,
}

impl Coordinator {
    pub(super) fn new(config: &config::SharedStore, common: &Common) -> Self {
        let Common { mailboxes, health, refusals, .. } = common.clone();
        // A server of Valkey may be a node of a cluster.
        let names = AllNames::new(&config.prefix, config.software == Software::Valkey);
        Self {
            cells: Cells::new(names, &config.servers, health.clone()),
            waiting: DecisionQueue::default(),
            servers: config.servers.iter().map(|_| ServerQueue::default()).collect(),
            on_error: config.on_error,
            strict: config.strict,
            health,
            refusals,
            sweep: None,
            replies: (0..mailboxes.workers()).map(|_| PendingDecisions::new()).collect(),
            inspections: Inspections::default(),
            leases: VecDeque::new(),
        }
    }

    /// A decision is made by `deadline` at the latest.
    pub(super) fn submit(&mut self, message: Message, deadline: Instant) {
        match message {
            Message::Decide(decision) => self.decide(decision, deadline),
            Message::Settle(settlement) => self.settle(*settlement),
            Message::Reload(reload) => self.reload(&reload),
            Message::Inspect(inspection) => self.inspect(*inspection),
        }
    }

    /// Nobody waits for a reload: each cell continues from the earlier counts at its next use.
    fn reload(&mut self, Reload { changes, now, asked }: &Reload) {
        self.withdraw_leases(changes);
        if self.cells.reload(changes, *now) {
            self.sweep = Some(Sweep::new(*asked));
            self.on_timer(*asked, *now);
        }
    }

    /// Ends waits that have lasted long enough, returns leases, and continues the sweep after a reload.
    pub(super) fn on_timer(&mut self, now: Instant, time: Time) {
        self.expire(now);
        self.return_leases(now);
        if let Some(sweep) = self.sweep.take_if(|sweep| sweep.at <= now) {
            self.sweep = sweep.step(&mut self.cells, now, time);
        }
    }

    /// When [`Self::on_timer`] must be called next.
    pub(super) fn next_timer(&mut self) -> Option<Instant> {
        let sweep = self.sweep.as_ref().map(|sweep| sweep.at);
        let lease = self.leases.front().map(|(until, _)| *until);
        self.waiting.deadline().into_iter().chain(sweep).chain(lease).min()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.servers.iter().all(ServerQueue::is_busy)
    }

    /// Whether the server is not connected to any more. It may still have to answer for slots that it has lost.
    pub(super) fn is_left(&self, server: usize) -> bool {
        self.servers[server].state == ServerState::Retired && self.servers[server].is_written()
    }

    pub(super) fn is_written(&self) -> bool {
        self.leases.is_empty() && self.servers.iter().all(ServerQueue::is_written)
    }

    pub(super) fn due(&self, server: usize) -> Due {
        self.servers[server].due()
    }

    pub(super) fn write(&mut self, server: usize, commands: &mut dyn Commands) -> bool {
        let Self { servers, cells, inspections, strict, .. } = self;
        inspections.composed(cells, |cells| servers[server].write(server, cells, commands, *strict))
    }

    /// Takes the replies to the oldest exchange with this server. False if the server refused all of it.
    pub(super) fn answered(
        &mut self,
        server: usize,
        replies: Replies<'_>,
        begun: Instant,
        ended: Instant,
        now: Time,
    ) -> bool {
        let Some(exchange) = self.servers[server].answered() else { return true };
        self.servers[server].round_trip = ended.saturating_duration_since(begun);
        for (cell, ranges) in &exchange.cells {
            let answer = CellAnswer { targets: &exchange.targets, ranges, replies };
            self.fill(*cell, &answer, begun, now);
        }
        let is_good = !replies.outcome.is_failure;
        if !is_good {
            // The server now counts as away, and pending charges wait until it is back.
            exchange.cells.iter().for_each(|(cell, _)| self.queue(*cell, true));
        }
        is_good
    }

    fn fill(&mut self, cell: CellPlace, answer: &CellAnswer<'_>, begun: Instant, now: Time) {
        let cached = self.cells.at(cell);
        // Provisional charges may have waited for long, and the last decision may be long ago: as of that, later counts of
        // other gateways would look as if their clocks were ahead.
        if now > cached.now && (cached.versioned.is_some() || self.strict && !cached.provisional.is_empty()) {
            cached.advance(&cached.names.limit.clone(), now);
        }
        let filled = cached.fill(answer, begun, self.strict);
        self.health.lost.add(filled.lost);
        cached.stage = ExchangeStage::Idle;
        if filled.reset.is_reset {
            self.refusals.forget(cached.id());
            self.cells.renumber(cell);
        }
        let cached = self.cells.at(cell);
        let has_failed = !answer.is_read() || filled.writes == Writes::Failed;
        let is_good = answer.is_read() && filled.writes == Writes::Done;
        let is_confirmed = !filled.must_retry && (filled.is_current || !self.strict);
        let mut confirmations = match is_good {
            true => cached.confirm(is_confirmed),
            false => cached.reject_what_did_not_fit(filled.writes != Writes::Unacknowledged),
        };
        // If another gateway replaced the state first, this one retries before it admits anything: each admission that others
        // do not know of would move the gateways further apart. A bucket that has begun meanwhile is read first, too.
        let is_decidable = has_failed || !filled.must_retry;
        let waiting = match filled.is_current && is_decidable {
            true => std::mem::take(&mut cached.waiting),
            false => SmallVec::new(),
        };
        if !is_good {
            self.drop_provisional(cell, filled.writes == Writes::Unacknowledged);
        }
        // Leases come first: they are not for these requests, and the verdicts say so. And a lease that is not wanted any
        // more is given back before anything continues from the cell.
        confirmations.sort_by_key(|confirmation| !confirmation.charge.is_leased());
        for confirmation in confirmations {
            match confirmation.charge.number {
                NO_DECISION => self.confirm_lease(cell, confirmation, begun),
                _ => self.confirm(cell, confirmation),
            }
        }
        for number in waiting {
            if has_failed {
                self.give_up(number);
                continue;
            }
            self.look_at_ban(cell, number);
            if let Some(mut decision) = self.waiting.count_down(number) {
                // A request that has waited for long is decided as of the answer: otherwise later counts of other gateways
                // would look as if the clock had been set back.
                if decision.now.after(OVERTAKEN) < now {
                    decision.now = now;
                    decision.result.as_of = Some(now);
                }
                self.decide_by_read(decision);
            }
        }
        if self.cells.at(cell).inspections > 0 {
            self.answer_inspections(cell, answer.is_read(), &filled);
        }
        // A failed write is retried with the next request for the cell, not in a loop.
        self.queue(cell, is_good);
    }

    fn queue(&mut self, cell: CellPlace, may_write: bool) {
        let cached = self.cells.at(cell);
        let server = &mut self.servers[cached.server];
        server.queue(cell, cached, may_write);
        server.tidy(&mut self.cells);
    }

    fn decide_by_read(&mut self, decision: Box<PendingDecision>) {
        if !decision.standings.is_empty() {
            // It is charged already, and only waited to learn whether its key is banned.
            return self.conclude(decision);
        }
        if self.strict && self.on_error != OnError::Local && decision.places.iter().any(|place| self.is_away(*place)) {
            // A server that has answered is away again, and will not confirm the charge.
            return self.dismiss(decision);
        }
        self.judge(decision, true);
    }

    fn is_away(&self, cell: CellPlace) -> bool {
        let server = self.cells.peek(cell).server;
        self.servers[server].state == ServerState::Away
    }

    /// Decides from the cells as all earlier decisions have left them. Charges may be provisional if the server `answers`.
    fn judge(&mut self, mut decision: Box<PendingDecision>, answers: bool) {
        let mut admits = Admits::new();
        let PendingDecision { asks, places, now, asked, .. } = &mut *decision;
        for (ask, place) in asks.iter_mut().zip(places.iter_mut()) {
            // There may have been a reload while it waited.
            self.cells.follow(ask, *now);
            let cached = self.cells.again(place, ask, *now);
            let now = cached.advance_for(&ask.limit, *now, *asked);
            admits.push(Admit { now, is_provisional: false, is_leased: false });
        }
        let plan = self.plan(asks, places, *asked, |ask, cached, index, need| {
            ask.limit.admits(&cached.cell, admits[index].now, need)
        });
        for (((ask, place), admit), part) in asks.iter_mut().zip(&*places).zip(&mut admits).zip(&plan.parts) {
            ask.follow_plan(part);
            let cached = self.cells.peek(*place);
            admit.is_leased = cached.is_leased(ask, ask.demand(), *asked);
            let may_be_open = self.strict || cached.versioned.is_some();
            admit.is_provisional = answers && part.charged > 0 && !admit.is_leased && may_be_open;
        }
        let needs = |(place, part): (&CellPlace, &AskPlan)| part.pooled.is_some() && self.is_away(*place);
        if self.on_error != OnError::Local && places.iter().zip(&plan.parts).any(needs) {
            return self.dismiss(decision);
        }
        self.carry_out(decision, &plan, &admits);
    }

    /// Charges a decision as planned. Replies at once, or after provisional charges are confirmed.
    fn carry_out(&mut self, mut decision: Box<PendingDecision>, plan: &Plan, admits: &Admits) {
        let is_provisional = plan.admits && admits.iter().any(|admit| admit.is_provisional);
        if plan.admits {
            self.note_levels(&mut decision, plan, admits);
        }
        let mut standings = Standings::new();
        let mut open = 0;
        let PendingDecision { asks, places, result, number, asked, .. } = &mut *decision;
        for (index, (ask, place)) in asks.iter().zip(&*places).enumerate() {
            let cached = self.cells.at(*place);
            let (Admit { now, is_provisional: is_open, is_leased }, part) = (admits[index], &plan.parts[index]);
            let fits = part.fits();
            let charged = part.charged > 0;
            let may_wait = charged && is_provisional && self.servers[cached.server].state != ServerState::Away;
            let refunded = (charged && ask.settles).then(|| ask.limit.judge(&cached.cell, now, ask.need, true));
            let mut attempt = None;
            if charged && is_leased {
                cached.spend(ask.cost);
            } else if may_wait && is_open {
                attempt = cached.attempt(ask, now);
            } else if charged {
                cached.charge(&ask.limit, now, ask.cost);
            }
            if let Some(refunded) = refunded {
                result.reserved.push(cached.reserve(ask, now, refunded, !is_provisional));
            }
            if may_wait {
                let charge = Box::new(cached.provisional(*number, index, ask, attempt));
                standings.push(if is_open {
                    cached.provisional.push(charge);
                    open += 1;
                    Standing::Open
                } else {
                    // It is given back if another charge is rejected.
                    Standing::Confirmed(charge)
                });
            } else if plan.admits && is_open && ask.looks_at_bans() {
                self.servers[cached.server].want(*place, cached, *number);
                standings.push(Standing::Open);
                open += 1;
            } else if is_provisional {
                standings.push(Standing::Final(fits));
            }
            if !is_provisional {
                cached.judge(ask, now, part, result);
            }
            if charged {
                self.queue(*place, true);
                self.lease_if_busy(*place, ask, *asked);
            }
        }
        decision.standings = standings;
        if open > 0 {
            self.waiting.put_back(decision, open);
        } else if is_provisional {
            self.conclude(decision);
        } else {
            self.reply(decision);
        }
    }
}

#[cfg(test)]
impl Coordinator {
    pub(super) fn check(&self) {
        let mut sent: Vec<CellPlace> = self.servers.iter().flat_map(ServerQueue::in_flight).collect();
        sent.sort_unstable();
        let in_flight = self.cells.all().filter(|(_, cached)| cached.stage == ExchangeStage::InFlight);
        assert_eq!(in_flight.map(|(place, _)| place).collect::<Vec<_>>(), sent, "a cell is in one exchange at a time");
        self.cells.all().for_each(|(_, cached)| cached.check());
    }
}
