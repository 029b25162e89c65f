//! A fleet in virtual time: gateways, servers, and the events between them in order. A seed decides all
//! chance.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use gateway::base::clock::Time;
use gateway::base::fingerprint::Fingerprint;
use gateway::config;
use gateway::limit::Limit;
use gateway::store::Ask;
use gateway::store::shared::simulation::{Decided, Output, SimulatedGateway};

use super::hosts::{Connection, Execution, Host};
use super::outcome::Outcome;
use super::plan::Plan;
use super::server::Work;

/// The clocks at the start of the simulation: the middle of a minute.
const BEGIN: u64 = 1_800_000_000 + 30;

enum Event {
    Request(usize),
    /// The next request of the log comes.
    Logged,
    /// A gateway has something to do.
    Wake(usize),
    /// A connection to a server is made or fails.
    Connected(usize, Connection),
    Failed(usize, Connection),
    /// Commands have arrived at a server, and have been executed.
    Arrived(usize, Connection, Vec<u8>),
    Executed(usize, Connection, Vec<u8>),
    /// A thread of a server has nothing more to do.
    Free(usize, usize),
    Answered(usize, Connection, Vec<u8>),
    Restart,
}

struct Scheduled {
    at: Duration,
    number: u64,
    event: Event,
}

struct Gateway {
    gateway: SimulatedGateway,
    links: Vec<Link>,
    wake: Option<Duration>,
    /// Waiting requests by index: their keys and when they asked.
    open: Vec<(u32, Duration)>,
    free: Vec<usize>,
    /// When the next request is due, whatever the tick.
    due: Duration,
    random: Rng,
}

/// Bytes in one direction arrive in order.
#[derive(Clone, Default)]
struct Link {
    number: u64,
    to_server: Duration,
    to_gateway: Duration,
}

pub(crate) struct Fleet {
    plan: Plan,
    limit: Arc<Limit>,
    keys: Vec<Fingerprint>,
    /// If the servers change, each gateway is here twice: as before and as after the change.
    gateways: Vec<Gateway>,
    hosts: Vec<Host>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    now: Duration,
    logged: usize,
    outcome: Outcome,
    waits: Vec<u32>,
    random: Rng,
}

impl Fleet {
    pub(crate) fn run(plan: Plan, keys: usize) -> Outcome {
        let mut fleet = Self::new(plan, keys);
        while let Some(Reverse(Scheduled { at, event, .. })) = fleet.queue.pop() {
            if at > fleet.plan.length {
                break;
            }
            fleet.now = at;
            fleet.happen(event);
        }
        fleet.finish()
    }

    fn new(plan: Plan, keys: usize) -> Self {
        let mut random = Rng::with_seed(plan.seed);
        let servers = plan.all_servers();
        let changed = plan.change.as_ref().map(|change| change.servers);
        let states = iter::once(plan.servers).chain(changed);
        let gateways = states.flat_map(|servers| (0..plan.gateways).map(move |index| (index, servers)));
        let gateways = gateways.map(|(index, servers)| Gateway::new(&plan, index, servers, random.fork())).collect();
        let mut fleet = Self {
            limit: Arc::new(Limit::new("limit", &plan.rates)),
            keys: (0..keys).map(|key| Fingerprint::of(&key.to_be_bytes())).collect(),
            gateways,
            hosts: (0..servers).map(|_| Host::new(plan.software, plan.threads)).collect(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            now: Duration::ZERO,
            logged: 0,
            outcome: Outcome {
                work: vec![Work::default(); servers],
                cpu: vec![0.0; servers],
                admissions: vec![Vec::new(); keys],
                ..Outcome::default()
            },
            waits: Vec::new(),
            random,
            plan,
        };
        for gateway in 0..fleet.gateways.len() {
            fleet.schedule(Duration::ZERO, Event::Wake(gateway));
            fleet.gateways[gateway].wake = Some(Duration::ZERO);
        }
        for gateway in 0..fleet.plan.gateways {
            // Everything is connected before the first request.
            let pause = fleet.one_way(gateway) * 20;
            let pause = pause + fleet.plan.traffic.pause(&mut fleet.random);
            fleet.gateways[gateway].due = pause;
            if fleet.plan.log.is_empty() {
                fleet.schedule_request(gateway);
            }
        }
        if let Some((first, _)) = fleet.plan.log.first() {
            fleet.schedule(*first, Event::Logged);
        }
        fleet.plan.restarts.clone().into_iter().for_each(|at| fleet.schedule(at, Event::Restart));
        fleet
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at, number: self.scheduled, event }));
    }

    /// Lets the next request come when it is due, or at the tick after that.
    fn schedule_request(&mut self, gateway: usize) {
        let (due, tick) = (self.gateways[gateway].due, self.plan.tick);
        let ticks = due.as_nanos().checked_div(tick.as_nanos()).map(|ticks| u32::try_from(ticks + 1).unwrap());
        self.schedule(ticks.map_or(due, |ticks| tick * ticks), Event::Request(gateway));
    }

    fn is_cut(&self, gateway: usize, server: usize) -> bool {
        self.plan.cut.is_between(gateway % self.plan.gateways, server, self.now)
    }

    fn one_way(&mut self, gateway: usize) -> Duration {
        let Plan { gateways, network, far: (far, far_network), .. } = &self.plan;
        let is_far = gateway % gateways >= gateways - far;
        if is_far { far_network } else { network }.one_way(&mut self.random)
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Request(index) => {
                let Gateway { due, random, .. } = &mut self.gateways[index];
                let key = self.plan.traffic.key(random);
                *due += self.plan.traffic.pause(random);
                self.schedule_request(index);
                self.request(index, key);
            }
            Event::Logged => {
                let key = self.plan.log[self.logged].1;
                self.logged += 1;
                if let Some((next, _)) = self.plan.log.get(self.logged) {
                    self.schedule(*next, Event::Logged);
                }
                let index = self.random.usize(0..self.plan.gateways);
                self.request(index, key);
            }
            Event::Wake(gateway) => {
                if self.gateways[gateway].wake == Some(now) {
                    self.gateways[gateway].wake = None;
                    self.gateways[gateway].gateway.wake(now);
                    self.follow(gateway);
                }
            }
            Event::Connected(server, connection) => {
                self.tell(server, connection, |gateway| gateway.connected(server, now));
            }
            Event::Failed(server, connection) => {
                self.tell(server, connection, |gateway| gateway.failed(server, now));
            }
            Event::Arrived(server, connection, commands) => {
                let thread = self.hosts[server].thread_of(connection.0);
                self.hosts[server].arrive(connection, commands);
                self.execute(server, thread);
            }
            Event::Free(server, thread) => {
                self.hosts[server].free(thread);
                self.execute(server, thread);
            }
            Event::Executed(server, connection, replies) => {
                let (gateway, _) = connection;
                if !self.is_cut(gateway, server) {
                    let arrival = self.now + self.one_way(gateway);
                    let last = &mut self.gateways[gateway].links[server].to_gateway;
                    *last = arrival.max(*last);
                    let at = *last;
                    self.schedule(at, Event::Answered(server, connection, replies));
                }
            }
            Event::Answered(server, connection, replies) => {
                self.tell(server, connection, |gateway| gateway.answered(server, &replies, now));
            }
            Event::Restart => {
                for server in 0..self.hosts.len() {
                    self.hosts[server].restart();
                    for gateway in 0..self.gateways.len() {
                        let at = now + self.one_way(gateway);
                        if let Some(Link { number, .. }) = self.gateways[gateway].links.get(server) {
                            let connection = (gateway, *number);
                            self.schedule(at, Event::Failed(server, connection));
                        }
                    }
                }
            }
        }
    }

    /// Passes something about a connection to a gateway, unless the connection is gone or cut.
    fn tell(&mut self, server: usize, (index, number): Connection, tell: impl FnOnce(&mut SimulatedGateway)) {
        if !self.is_cut(index, server) && self.gateways[index].links[server].number == number {
            tell(&mut self.gateways[index].gateway);
            self.follow(index);
        }
    }

    /// A request comes to a gateway, which has the servers from before or after a change.
    fn request(&mut self, index: usize, key: usize) {
        let gateways = self.plan.gateways;
        let is_after = self.plan.change.as_ref().is_some_and(|change| {
            let share = index as f64 / (gateways.max(2) - 1) as f64;
            self.now >= change.from + change.over.mul_f64(share)
        });
        let index = if is_after { gateways + index } else { index };
        let Gateway { gateway, open, free, .. } = &mut self.gateways[index];
        let place = free.pop().unwrap_or(open.len());
        if place == open.len() {
            open.push((0, Duration::ZERO));
        }
        open[place] = (u32::try_from(key).unwrap(), self.now);
        let ask = Ask { place, ..Ask::new(&self.limit, self.keys[key], 1) };
        gateway.ask(&ask, self.now);
        self.outcome.requests += 1;
        self.follow(index);
    }

    /// A thread of a server executes the next waiting exchange, if it is free.
    fn execute(&mut self, server: usize, thread: usize) {
        let second = BEGIN + self.now.as_secs();
        let Some(execution) = self.hosts[server].execute(thread, second) else { return };
        let Execution { connection, replies, work, time } = execution;
        self.outcome.work[server].add(work);
        self.outcome.cpu[server] += time.as_secs_f64();
        let done = self.now + time;
        self.schedule(done, Event::Executed(server, connection, replies));
        self.schedule(done, Event::Free(server, thread));
    }

    /// Carries out what a gateway has just asked for.
    fn follow(&mut self, index: usize) {
        for server in 0..self.gateways[index].links.len() {
            for output in self.gateways[index].gateway.take_outputs(server) {
                self.carry(index, server, output);
            }
        }
        let Gateway { gateway, open, free, wake, .. } = &mut self.gateways[index];
        for Decided { place, admitted } in gateway.take_decided() {
            let (key, asked) = open[place];
            free.push(place);
            self.waits.push(u32::try_from(self.now.saturating_sub(asked).as_micros()).unwrap());
            match admitted {
                Some(true) => {
                    self.outcome.admitted += 1;
                    self.outcome.admissions[key as usize].push(u64::try_from(asked.as_nanos()).unwrap());
                }
                Some(false) => {}
                None => self.outcome.unknown += 1,
            }
        }
        let next = gateway.next_wake().map(|next| next.max(self.now));
        if let Some(next) = next.filter(|next| wake.is_none_or(|wake| *next < wake)) {
            *wake = Some(next);
            self.schedule(next, Event::Wake(index));
        }
    }

    fn carry(&mut self, gateway: usize, server: usize, output: Output) {
        let (there, back) = (self.one_way(gateway), self.one_way(gateway));
        match output {
            Output::Connect => {
                let link = &mut self.gateways[gateway].links[server];
                link.number += 1;
                // The handshake, and then the first command. If nothing arrives, the gateway gives up by itself.
                let (number, at) = (link.number, self.now + (there + back) * 2);
                if !self.is_cut(gateway, server) {
                    self.schedule(at, Event::Connected(server, (gateway, number)));
                }
            }
            Output::Write(commands) => {
                let link = &mut self.gateways[gateway].links[server];
                link.to_server = link.to_server.max(self.now + there);
                let (at, number) = (link.to_server, link.number);
                if !self.is_cut(gateway, server) {
                    self.schedule(at, Event::Arrived(server, (gateway, number), commands));
                }
            }
            Output::Close => self.gateways[gateway].links[server].number += 1,
        }
    }

    fn finish(mut self) -> Outcome {
        for Gateway { gateway, .. } in &self.gateways {
            let [_, remembered, local] = gateway.counts();
            self.outcome.remembered += remembered;
            self.outcome.local += local;
        }
        let count = self.waits.len().max(1);
        let mean = self.waits.iter().map(|wait| f64::from(*wait)).sum::<f64>() / count as f64;
        self.waits.sort_unstable();
        let late = self.waits.get(count * 99 / 100).copied().unwrap_or(0);
        self.outcome.wait = (mean / 1e6, f64::from(late) / 1e6);
        self.outcome
    }
}

impl Gateway {
    fn new(plan: &Plan, index: usize, servers: usize, random: Rng) -> Self {
        let config = config::SharedStore {
            software: plan.software,
            servers: (0..servers).map(|server| format!("server-{server}:11211")).collect(),
            prefix: "gw".to_owned(),
            timeout: plan.timeout,
            on_error: plan.on_error,
            strict: plan.strict,
            login: config::Login::default(),
        };
        // The clocks are spread evenly over `skew`.
        let behind = plan.skew * u32::try_from(index).unwrap() / u32::try_from(plan.gateways.max(2) - 1).unwrap();
        let clock = Time::from_micros(BEGIN * 1_000_000).after(plan.skew.saturating_sub(behind));
        Self {
            gateway: SimulatedGateway::new(&config, clock),
            links: vec![Link::default(); servers],
            wake: None,
            open: Vec::new(),
            free: Vec::new(),
            due: Duration::ZERO,
            random,
        }
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Scheduled {}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
