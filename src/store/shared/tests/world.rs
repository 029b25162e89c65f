//! Gateways and servers that do what a schedule says: ask, send, execute, answer, break, forget.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;

use super::inspection::Inspected;
use super::servers::{Model, software};
use super::steps::{Decided, Step, priced};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::config::{OnError, SharedStore};
use crate::limit::{Cell, Limit};
use crate::store::Watch;
use crate::store::shared::batch::Due;
use crate::store::shared::cached_cell::{LEASE, MOMENT};
use crate::store::shared::cells::MOST;
use crate::store::shared::coordinator::Coordinator;
use crate::store::shared::link::Link;
use crate::store::shared::mailbox::{Message, PendingDecision, Settlement};
use crate::store::shared::protocol::Replies;
use crate::store::shared::refusals::RefusalCache;
use crate::store::shared::{Common, OwnedAsk, protocol_of};
use crate::store::{Reply, Reserved, Ticket};

/// The longest that a decision waits, in microseconds.
pub(super) const TIMEOUT: u64 = 50_000;
/// Rounds of exchanges after which everything pending has arrived.
const ENOUGH: usize = 200;

pub(super) struct World {
    pub(super) models: Vec<Model>,
    pub(super) gateways: Vec<Gateway>,
    pub(super) whats: Vec<Vec<OwnedAsk>>,
    /// The limits that a gateway may have instead of the asked one, if reloads change it.
    pub(super) ways: Vec<Arc<Limit>>,
    /// The only key whose limit changes, if these are overrides and no reloads.
    pub(super) overridden: Option<Fingerprint>,
    pub(super) now: Time,
    begun: (Instant, Time),
    /// The longest that a decision waits, in microseconds.
    pub(super) patience: u64,
    /// How long a gateway that joins relies on a refusal, in microseconds. With 0, each request is decided.
    pub(super) remembered: u64,
    pub(super) decided: Vec<Decided>,
    /// Changes of sums that were sent and not executed.
    pub(super) vanished: u64,
    /// Changes of sums that were executed and not answered.
    pub(super) unheard: u64,
    pub(super) inspected: Vec<Inspected>,
    /// Exchanges that were not answered, and how many of those were executed.
    pub(super) unanswered: u64,
    pub(super) doubtful: u64,
}

pub(super) struct Gateway {
    pub(super) coordinator: Coordinator,
    connections: Vec<Connection>,
    /// By how many microseconds its clock is behind.
    pub(super) behind: u64,
    /// The index of its limit in `ways`.
    pub(super) way: usize,
    waiting: Vec<(oneshot::Receiver<Reply>, Vec<OwnedAsk>, Time)>,
}

struct Connection {
    link: Link,
    under_way: VecDeque<Exchange>,
}

struct Exchange {
    commands: Vec<u8>,
    answers: Option<Vec<u8>>,
}

pub(super) fn servers(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("server-{number}:11211")).collect()
}

pub(super) fn config(count: usize, on_error: OnError, strict: bool) -> SharedStore {
    let timeout = Duration::from_micros(TIMEOUT);
    SharedStore { timeout, on_error, strict, ..SharedStore::with_servers(software(), servers(count)) }
}

impl World {
    pub(super) fn new(
        gateways: usize,
        servers: usize,
        (on_error, strict): (OnError, bool),
        whats: Vec<Vec<OwnedAsk>>,
    ) -> Self {
        let now = Time::from_micros(1_800_000_000_000_000);
        let mut world = Self {
            models: (0..servers).map(|_| Model::new()).collect(),
            gateways: Vec::new(),
            whats,
            ways: Vec::new(),
            overridden: None,
            now,
            begun: (Instant::now(), now),
            patience: TIMEOUT,
            remembered: 0,
            decided: Vec::new(),
            vanished: 0,
            unheard: 0,
            inspected: Vec::new(),
            unanswered: 0,
            doubtful: 0,
        };
        (0..gateways).for_each(|_| world.join((on_error, strict)));
        world
    }

    pub(super) fn join(&mut self, (on_error, strict): (OnError, bool)) {
        let config = config(self.models.len(), on_error, strict);
        let refusals = Arc::new(RefusalCache::new(self.remembered));
        let coordinator = Coordinator::new(&config, &Common { refusals, ..Common::new(&config, 1) });
        // Nothing breaks but what the schedule says.
        let link = || Link::new(Duration::MAX / 4, self.instant());
        let connections = self.models.iter().map(|_| Connection { link: link(), under_way: VecDeque::new() }).collect();
        self.gateways.push(Gateway { coordinator, connections, behind: 0, way: 0, waiting: Vec::new() });
    }

    pub(super) fn quota(&self) -> u64 {
        self.whats[0][0].limit.rates()[0].quota()
    }

    pub(super) fn clock(&self, gateway: usize) -> Time {
        Time::from_micros(self.now.micros() - self.gateways[gateway].behind)
    }

    pub(super) fn instant(&self) -> Instant {
        self.begun.0 + Duration::from_micros(self.now.micros() - self.begun.1.micros())
    }

    pub(super) fn run(&mut self, step: &Step) {
        let (gateways, servers) = (self.gateways.len(), self.models.len());
        match *step {
            Step::Ask { gateway, what, cost } => {
                let asks = self.asks(gateway % gateways, what);
                let priced = |ask| priced(ask, cost);
                self.ask(gateway % gateways, asks.map(priced).collect());
            }
            Step::Reserve { gateway, what, cost } => {
                let asks = self.asks(gateway % gateways, what);
                let priced = |ask| OwnedAsk { settles: true, ..priced(ask, cost) };
                self.ask(gateway % gateways, asks.map(priced).collect());
            }
            Step::Reload(gateway, way) => self.reload(gateway % gateways, way % self.ways.len()),
            Step::Settle(which, kept) => self.settle_one(which, kept),
            Step::Charge { gateway, what, cost } => {
                let OwnedAsk { limit, key, .. } = self.whats[what % self.whats.len()][0].clone();
                let (now, asked) = (self.clock(gateway % gateways), self.instant());
                let reservation = limit.place_of(&Cell::new(limit.rates(), now), now, 0);
                let (ticket, watch) = (Ticket { limit, key, cell: 0, reservation }, Watch::default());
                let settlement = Settlement { ticket, now, asked, cost, watch };
                self.gateways[gateway % gateways].coordinator.submit(Message::Settle(Box::new(settlement)), asked);
            }
            Step::Peek(..) | Step::Reset(..) => self.inspect(step),
            Step::Send(gateway, server) => self.send(gateway % gateways, server % servers),
            Step::Execute(gateway, server) => self.execute(gateway % gateways, server % servers),
            Step::Answer(gateway, server) => self.answer(gateway % gateways, server % servers),
            Step::Break(gateway, server, executed) => self.cut(gateway % gateways, server % servers, executed),
            Step::Connect(gateway, server) => self.connect(gateway % gateways, server % servers),
            Step::Restart(server) => {
                self.models[server % servers] = Model::new();
                (0..gateways).for_each(|gateway| self.cut(gateway, server % servers, 0));
            }
            Step::Evict(server, number) => self.models[server % servers].evict(number),
            Step::Fail(server, failing) => self.models[server % servers].fail(failing),
            Step::Moment => self.begun.0 += MOMENT,
            // No request waits for longer than the timeout.
            Step::Tick(micros) => {
                self.pass(micros.min(TIMEOUT));
                self.pass(micros.saturating_sub(TIMEOUT));
            }
        }
        self.gateways.iter().for_each(|gateway| gateway.coordinator.check());
    }

    fn asks(&self, gateway: usize, what: usize) -> impl Iterator<Item = OwnedAsk> + use<> {
        let limit = self.ways.get(self.gateways[gateway].way).cloned();
        let asks = self.whats[what % self.whats.len()].clone();
        asks.into_iter().map(move |ask| OwnedAsk { limit: limit.clone().unwrap_or(ask.limit), ..ask })
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.after(Duration::from_micros(micros));
        let instant = self.instant();
        for gateway in 0..self.gateways.len() {
            let now = self.clock(gateway);
            self.gateways[gateway].coordinator.on_timer(instant, now);
            self.collect(gateway);
        }
    }

    pub(super) fn settle_one(&mut self, which: usize, kept: u64) {
        let asked = self.instant();
        let mut open: Vec<_> = self.decided.iter_mut().filter(|decided| !decided.reserved.is_empty()).collect();
        let Some(which) = which.checked_rem(open.len()) else { return };
        let Decided { gateway, reserved, given, .. } = &mut *open[which];
        for Reserved { ticket, .. } in reserved.drain(..) {
            let cost = ticket.cost() * kept / 4;
            *given = ticket.cost().saturating_sub(cost);
            let gateway = &mut self.gateways[*gateway];
            let now = Time::from_micros(self.now.micros() - gateway.behind);
            let settlement = Settlement { ticket, now, asked, cost, watch: Watch::default() };
            gateway.coordinator.submit(Message::Settle(Box::new(settlement)), asked);
        }
    }

    pub(super) fn ask(&mut self, gateway: usize, asks: Vec<OwnedAsk>) {
        let asks: Vec<_> = asks.into_iter().enumerate().map(|(place, ask)| OwnedAsk { place, ..ask }).collect();
        // States that two gateways begin in the same microsecond can be the same by chance.
        self.now = self.now.after(Duration::from_micros(1));
        let (reply, receiver) = oneshot::channel();
        let asked = self.instant();
        let deadline = asked + Duration::from_micros(self.patience);
        let now = self.clock(gateway);
        let Gateway { coordinator, waiting, .. } = &mut self.gateways[gateway];
        let decision = PendingDecision::new(asks.iter().cloned().collect(), now, asked, Some(reply), 0);
        coordinator.submit(Message::Decide(decision), deadline);
        waiting.push((receiver, asks, self.now));
        self.collect(gateway);
    }

    pub(super) fn leave(&mut self, gateway: usize) {
        self.gateways[gateway].waiting.clear();
    }

    /// Asks a gateway, but stops waiting before the gateway takes the request in.
    pub(super) fn give_up(&mut self, gateway: usize) {
        let (asked, asks, (reply, _)) = (self.instant(), self.whats[0].iter().cloned().collect(), oneshot::channel());
        let decision = PendingDecision::new(asks, self.clock(gateway), asked, Some(reply), 0);
        self.gateways[gateway].coordinator.submit(Message::Decide(decision), asked);
    }

    /// Makes a gateway whose servers are away look at so many other keys that it forgets those that it knew.
    pub(super) fn crowd_out(&mut self, gateway: usize) {
        for number in 0..MOST + MOST / 16 {
            let key = Fingerprint::of(&number.to_be_bytes());
            let look = OwnedAsk { key, cost: 0, ..self.whats[0][0].clone() };
            let asked = self.instant();
            let decision = PendingDecision::new([look].into_iter().collect(), self.now, asked, None, 0);
            let deadline = asked + Duration::from_micros(TIMEOUT);
            self.gateways[gateway].coordinator.submit(Message::Decide(decision), deadline);
        }
    }

    fn send(&mut self, gateway: usize, server: usize) {
        let begun = self.instant();
        let Gateway { coordinator, connections, .. } = &mut self.gateways[gateway];
        if coordinator.due(server) != Due::Never {
            let Connection { link, under_way } = &mut connections[server];
            assert!(link.is_up());
            let (mut collected, mut commands) = (protocol_of(&config(1, OnError::Local, false)).commands(), Vec::new());
            if coordinator.write(server, &mut *collected) {
                link.begun(collected.finish(&mut commands), begun);
                under_way.push_back(Exchange { commands, answers: None });
            }
        }
    }

    fn execute(&mut self, gateway: usize, server: usize) {
        let under_way = &mut self.gateways[gateway].connections[server].under_way;
        if let Some(next) = under_way.iter_mut().find(|exchange| exchange.answers.is_none()) {
            next.answers = Some(self.models[server].execute(&next.commands, self.now));
        }
    }

    fn answer(&mut self, gateway: usize, server: usize) {
        let (now, ended) = (self.clock(gateway), self.instant());
        let Gateway { coordinator, connections, .. } = &mut self.gateways[gateway];
        let Connection { link, under_way } = &mut connections[server];
        let Some(Exchange { answers: Some(bytes), commands }) = under_way.pop_front_if(|first| first.answers.is_some())
        else {
            return;
        };
        let (outcome, begun) = link.receive(&bytes).unwrap().unwrap();
        assert_eq!(outcome.length, bytes.len());
        let replies = Replies { outcome: &outcome, input: &bytes };
        // If a command failed, the result of a write may be as unknown as without an answer.
        self.unanswered += u64::from(self.models[server].is_in_doubt(&commands, replies));
        let good = coordinator.answered(server, replies, begun, ended, now);
        self.collect(gateway);
        if !good {
            self.cut(gateway, server, 0);
        }
    }

    fn cut(&mut self, gateway: usize, server: usize, executed: usize) {
        (0..executed).for_each(|_| self.execute(gateway, server));
        let now = self.instant();
        let Gateway { coordinator, connections, .. } = &mut self.gateways[gateway];
        for exchange in connections[server].under_way.drain(..) {
            self.unanswered += 1;
            if exchange.answers.is_some() {
                self.doubtful += 1;
                self.unheard += self.models[server].changes(&exchange.commands);
            } else {
                self.vanished += self.models[server].changes(&exchange.commands);
            }
        }
        connections[server].link.failed(now);
        coordinator.down(server);
        self.collect(gateway);
        if self.models.len() == 1 {
            assert!(self.gateways[gateway].waiting.is_empty(), "some wait for a server that is away");
        }
    }

    pub(super) fn is_up(&self, gateway: usize, server: usize) -> bool {
        self.gateways[gateway].connections[server].link.is_up()
    }

    pub(super) fn connect(&mut self, gateway: usize, server: usize) {
        let now = self.instant();
        let Gateway { coordinator, connections, .. } = &mut self.gateways[gateway];
        let link = &mut connections[server].link;
        if !link.is_up() {
            link.connected(now);
            coordinator.up(server);
        }
    }

    fn collect(&mut self, gateway: usize) {
        let Gateway { coordinator, waiting, .. } = &mut self.gateways[gateway];
        let replies: Vec<_> = coordinator.take_replies().flat_map(|(_, replies)| replies).collect();
        for decision in replies {
            let (now, asked) = (decision.now, decision.asked);
            if decision.is_given_up() {
                let settled: Vec<_> = decision.answer(now, asked).collect();
                settled.into_iter().for_each(|message| coordinator.submit(message, asked));
                continue;
            }
            assert_eq!(decision.answer(now, asked).count(), 0, "somebody waits for it");
            let at = waiting.iter_mut().position(|(receiver, ..)| !receiver.is_empty()).unwrap();
            let (mut receiver, asks, asked) = waiting.remove(at);
            let mut reply = receiver.try_recv().unwrap();
            let (decided, reserved) = (self.now, std::mem::take(&mut reply.reserved));
            self.decided.push(Decided { gateway, asks, asked, decided, reserved, given: 0, reply: Some(reply) });
        }
        waiting.retain_mut(|(receiver, asks, asked)| {
            let is_dropped = matches!(receiver.try_recv(), Err(TryRecvError::Closed));
            if is_dropped {
                let (asks, asked) = (std::mem::take(asks), *asked);
                let (decided, reserved) = (self.now, Vec::new());
                self.decided.push(Decided { gateway, asks, asked, decided, reserved, given: 0, reply: None });
            }
            !is_dropped
        });
    }

    /// Connects all, and lets everything arrive. Then nobody waits, and nothing is pending.
    pub(super) fn settle(&mut self) {
        self.models.iter_mut().for_each(|model| model.fail(0));
        let connections: Vec<(usize, usize)> =
            (0..self.gateways.len()).flat_map(|gateway| (0..self.models.len()).map(move |at| (gateway, at))).collect();
        for round in 0..ENOUGH {
            if round == ENOUGH / 2 && self.gateways.iter().any(|gateway| gateway.coordinator.has_leases()) {
                self.pass(u64::try_from(LEASE.as_micros()).unwrap_or(u64::MAX));
            }
            for (gateway, server) in connections.iter().copied() {
                self.connect(gateway, server);
                self.send(gateway, server);
                self.execute(gateway, server);
                self.answer(gateway, server);
            }
        }
        self.inspected.drain(..).for_each(Inspected::assert_over);
        for gateway in &mut self.gateways {
            assert!(gateway.waiting.is_empty(), "some wait for ever");
            assert!(gateway.coordinator.is_written(), "something is pending for ever");
            // After a reload there may be something to sweep later.
            assert!(gateway.coordinator.next_timer().is_none() || !self.ways.is_empty(), "a decision is left");
        }
    }
}
