//! A gateway's side of Memcached in virtual time, for simulations of whole fleets.
//!
//! [`SimulatedGateway`] decides with the same code as the store: the coordinator, the remembered refusals, the
//! mailboxes, and the rules by which exchanges begin and servers are connected to again. What is missing are sockets,
//! threads and clocks: whoever simulates carries [`Output`]s to servers and their replies back, says what time it is, and
//! calls [`SimulatedGateway::wake`] when [`SimulatedGateway::next_wake`] says so.
//!
//! It stands for a gateway whose worker ends its turn after each request, and whose code takes no time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::RefusalCache;
use super::commands::Commands;
use super::connection::CONNECT;
use super::coordinator::Coordinator;
use super::health::Health;
use super::mailbox::Mailboxes;
use super::names::AllNames;
use super::pacing::{self, Departure};
use super::replies::Reader;
use super::{BRIEFLY, decide};
use crate::clock::Time;
use crate::config::{self, OnError};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::metrics::{Counter, PerWorker};
use crate::store::{Answer, Ask, Reply};

/// Which of the servers, by its index, has all counters of a key of a limit.
pub fn server_of(prefix: &str, limit: &Arc<Limit>, key: Fingerprint, servers: &[String]) -> usize {
    AllNames::new(prefix).of(limit).server(key, servers)
}

/// What a gateway does to a server, by the server's index in the configuration.
#[derive(Debug)]
pub enum Output {
    /// It connects. It waits for [`SimulatedGateway::connected`] or [`SimulatedGateway::failed`].
    Connect(usize),
    /// It begins an exchange with these commands. All of its replies go to [`SimulatedGateway::answered`].
    Exchange(usize, Vec<u8>),
    /// It closes the connection: replies that are still on their way are lost.
    Close(usize),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The `place` with which it was asked.
    pub place: usize,
    /// Whether it is admitted; `None` if Memcached is away and `on_error` decides.
    pub admitted: Option<bool>,
}

/// One gateway. Moments are given as the time since the simulation began.
pub struct SimulatedGateway {
    coordinator: Coordinator,
    mailboxes: Mailboxes,
    health: Arc<Health>,
    refusals: Arc<RefusalCache>,
    timeout: Duration,
    on_error: OnError,
    servers: Vec<Server>,
    /// When the simulation began, and what the gateway's clock said then.
    begun: (Instant, Time),
    /// The requests that wait, by place.
    waiting: BTreeMap<usize, Receiver<Reply>>,
    outputs: VecDeque<Output>,
    decided: Vec<Decided>,
}

/// How a gateway stands with a server.
#[derive(Default)]
struct Server {
    /// How many connections in a row have failed.
    failures: u32,
    link: Link,
    departure: Departure,
    /// The exchanges that have not been answered.
    in_flight: VecDeque<(Reader, Instant)>,
}

/// A connection, or what is there instead.
#[derive(Default)]
enum Link {
    #[default]
    New,
    Pausing {
        until: Instant,
    },
    Connecting {
        since: Instant,
        /// Whether those who wait for it have been told that it takes too long.
        is_late: bool,
    },
    Up {
        since: Instant,
        was_good: bool,
    },
}

impl SimulatedGateway {
    /// A gateway that is just started. `clock` is what its clock says when the simulation begins.
    pub fn new(config: &config::Memcached, clock: Time) -> Self {
        let health = Arc::new(Health::new(&config.servers, 1));
        let refusals = Arc::new(RefusalCache::new(if config.strict { BRIEFLY } else { u64::MAX }));
        Self {
            coordinator: Coordinator::new(config, 1, health.clone(), refusals.clone()),
            mailboxes: Mailboxes::new(1),
            health,
            refusals,
            timeout: config.timeout,
            on_error: config.on_error,
            servers: config.servers.iter().map(|_| Server::default()).collect(),
            begun: (Instant::now(), clock),
            waiting: BTreeMap::new(),
            outputs: VecDeque::new(),
            decided: Vec::new(),
        }
    }

    /// A request asks. Its `place` identifies it in [`Decided`]: no other request that waits has the same one.
    pub fn ask(&mut self, ask: &Ask<'_>, at: Duration) {
        let (now, time) = self.moment(at);
        let is_lost = self.on_error != OnError::Local && self.health.is_away();
        let parts = (&*self.health, &*self.refusals, &self.mailboxes);
        match decide(std::slice::from_ref(ask), (time, 0), parts, (is_lost, || now)) {
            Answer::Now(reply) => self.decided.push(Decided::new(ask.place, Some(&reply))),
            Answer::Away => self.decided.push(Decided::new(ask.place, None)),
            Answer::Later(receiver) => {
                self.waiting.insert(ask.place, receiver);
                if self.mailboxes.announces(0) {
                    self.apply(now, |coordinator| coordinator.on_timer(now, time));
                }
            }
        }
    }

    /// A server has accepted the connection and answers.
    pub fn connected(&mut self, server: usize, at: Duration) {
        let now = self.moment(at).0;
        self.servers[server].link = Link::Up { since: now, was_good: false };
        self.health.up(server);
        self.apply(now, |coordinator| coordinator.up(server));
    }

    /// A connection has broken, or could not be made.
    pub fn failed(&mut self, server: usize, at: Duration) {
        let now = self.moment(at).0;
        let Server { link, failures, departure, in_flight } = &mut self.servers[server];
        let (lasted, was_good) = match link {
            Link::Up { since, was_good } => (Some(now - *since), *was_good),
            _ => (None, false),
        };
        *link = Link::Pausing { until: now + pacing::pause(failures, lasted, was_good) };
        *departure = Departure::default();
        in_flight.clear();
        self.outputs.push_back(Output::Close(server));
        self.down(server, now);
    }

    /// A server has replied to the exchange that was begun first.
    pub fn answered(&mut self, server: usize, replies: &[u8], at: Duration) {
        let (now, time) = self.moment(at);
        let Some((mut reader, begun)) = self.servers[server].in_flight.pop_front() else { return };
        if reader.read(replies) != Ok(Some(replies.len())) {
            return self.failed(server, at);
        }
        // As in the driver, a request that has asked meanwhile for a cell that was just read needs no other read.
        self.pass_messages();
        let is_good =
            self.apply(now, |coordinator| coordinator.answered(server, reader.replies(replies), (begun, now), time));
        match &mut self.servers[server].link {
            Link::Up { was_good, .. } if is_good => *was_good = true,
            _ => self.failed(server, at),
        }
    }

    /// Does what is due by now.
    pub fn wake(&mut self, at: Duration) {
        let (now, time) = self.moment(at);
        for server in 0..self.servers.len() {
            let Server { link, in_flight, .. } = &mut self.servers[server];
            match link {
                Link::Pausing { until } if *until > now => {}
                Link::New | Link::Pausing { .. } => {
                    *link = Link::Connecting { since: now, is_late: false };
                    self.outputs.push_back(Output::Connect(server));
                }
                Link::Connecting { since, .. } if *since + CONNECT <= now => self.failed(server, at),
                Link::Connecting { since, is_late } if !*is_late && *since + self.timeout <= now => {
                    *is_late = true;
                    self.down(server, now);
                }
                Link::Up { .. } if in_flight.front().is_some_and(|(_, begun)| *begun + self.timeout <= now) => {
                    self.failed(server, at);
                }
                Link::Connecting { .. } | Link::Up { .. } => {}
            }
        }
        self.apply(now, |coordinator| coordinator.on_timer(now, time));
    }

    /// When [`Self::wake`] has something to do.
    pub fn next_wake(&mut self) -> Option<Duration> {
        let timeout = self.timeout;
        let of_server = |Server { link, departure, in_flight, .. }: &Server| match link {
            Link::New => Some(self.begun.0),
            Link::Pausing { until } => Some(*until),
            Link::Connecting { since, is_late } => Some(*since + if *is_late { CONNECT } else { timeout.min(CONNECT) }),
            Link::Up { .. } => {
                let silent = in_flight.front().map(|(_, begun)| *begun + timeout);
                departure.at().into_iter().chain(silent).min()
            }
        };
        let next = self.servers.iter().filter_map(of_server).chain(self.coordinator.next_timer()).min();
        next.map(|next| next.saturating_duration_since(self.begun.0))
    }

    /// What it has done to servers since it was asked last, in that order.
    pub fn take_outputs(&mut self) -> impl Iterator<Item = Output> {
        self.outputs.drain(..)
    }

    /// What was decided since it was asked last.
    pub fn take_decided(&mut self) -> impl Iterator<Item = Decided> {
        self.decided.drain(..)
    }

    /// How many decisions were asked for, made from remembered refusals, and made without Memcached.
    pub fn counts(&self) -> [u64; 3] {
        let Health { decisions, remembered, local, .. } = &*self.health;
        let sum = |counters: &PerWorker<Counter>| counters.iter().map(Counter::get).sum();
        [sum(decisions), sum(remembered), local.get()]
    }

    fn moment(&self, at: Duration) -> (Instant, Time) {
        (self.begun.0 + at, self.begun.1.after(at))
    }

    fn down(&mut self, server: usize, now: Instant) {
        self.health.down(server, "simulated");
        self.apply(now, |coordinator| coordinator.down(server));
    }

    /// Changes the coordinator as the driver does.
    fn apply<T>(&mut self, now: Instant, change: impl FnOnce(&mut Coordinator) -> T) -> T {
        let result = change(&mut self.coordinator);
        self.pass_messages();
        self.collect();
        (0..self.servers.len()).for_each(|server| self.begin(server, now));
        result
    }

    fn pass_messages(&mut self) {
        for message in self.mailboxes.take(self.coordinator.is_busy()) {
            let deadline = message.asked() + self.timeout;
            self.coordinator.submit(message, deadline);
        }
    }

    /// Begins the exchanges with a server that are due.
    fn begin(&mut self, server: usize, now: Instant) {
        let Self { coordinator, servers, mailboxes, health, outputs, .. } = self;
        let Server { departure, in_flight, .. } = &mut servers[server];
        let mut commands = Commands::default();
        while departure.is_now(coordinator.due(server), || now) {
            if coordinator.write(server, &mut commands) {
                let mut bytes = Vec::new();
                in_flight.push_back((commands.finish(&mut bytes), now));
                outputs.push_back(Output::Exchange(server, bytes));
                health.round_trips.one();
            }
            if coordinator.is_busy() {
                mailboxes.set_busy();
            }
        }
    }

    /// Takes what was decided, and finds out which requests are decided by `on_error`.
    fn collect(&mut self) {
        let Self { coordinator, waiting, decided, .. } = self;
        for decision in coordinator.take_replies().flat_map(|(_, replies)| replies) {
            let (place, now) = (decision.asks[0].place, (decision.now, decision.asked));
            // Nothing is reserved, so there is nothing to settle.
            decision.answer(now).for_each(drop);
            let reply = waiting.remove(&place).and_then(|mut receiver| receiver.try_recv().ok());
            decided.push(Decided::new(place, reply.as_ref()));
        }
        if self.on_error != OnError::Local {
            waiting.retain(|place, receiver| {
                let is_dropped = receiver.try_recv() == Err(TryRecvError::Closed);
                if is_dropped {
                    decided.push(Decided::new(*place, None));
                }
                !is_dropped
            });
        }
    }
}

impl Decided {
    fn new(place: usize, reply: Option<&Reply>) -> Self {
        let admitted = reply.map(|reply| reply.verdicts.iter().all(|(_, verdict)| verdict.admitted));
        Self { place, admitted }
    }
}
