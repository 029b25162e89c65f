//! A fleet in virtual time: gateways, Memcached servers, and what happens between them, one event after the other. A
//! seed decides all that is left to chance.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use gateway::clock::Time;
use gateway::config;
use gateway::fingerprint::Fingerprint;
use gateway::limit::Limit;
use gateway::store::Ask;
use gateway::store::memcached::simulation::{Decided, Output, SimulatedGateway};

use super::outcome::Outcome;
use super::plan::Plan;
use super::server::{Server, Work};

/// What the clocks say when the simulation begins: in the middle of a minute.
const BEGIN: u64 = 1_800_000_000 + 30;

/// What Memcached takes for its work, on one of its threads. `measure` prints what it is on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) exchange: f64,
    /// For each command that writes, and for each name that is read.
    pub(crate) command: f64,
}

/// In seconds, of a busy Memcached 1.6.18 with 64 connections. One with little to do takes three times as much for an
/// exchange, to wait and to be woken.
pub(crate) const COSTS: Costs = Costs { exchange: 12.5e-6, command: 0.6e-6 };

/// What happens.
enum Event {
    /// A request comes to a gateway.
    Request(usize),
    /// A gateway has something to do.
    Wake(usize),
    /// A connection of a gateway is made or fails, of this number.
    Connected(usize, usize, u64),
    Failed(usize, usize, u64),
    /// Commands have arrived at a server, and have been executed.
    Arrived(usize, usize, u64, Vec<u8>),
    Executed(usize, usize, u64, Vec<u8>),
    /// A thread of a server has nothing more to do.
    Free(usize, usize),
    /// Replies have arrived at a gateway.
    Answered(usize, usize, u64, Vec<u8>),
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
    /// When it is woken next.
    wake: Option<Duration>,
    /// The requests that wait, by place: their keys and when they asked.
    open: Vec<(u32, Duration)>,
    free: Vec<usize>,
    /// When the next request is due, whatever the tick.
    due: Duration,
    random: Rng,
}

/// A connection. What is sent in one direction arrives in that order.
#[derive(Clone, Default)]
struct Link {
    number: u64,
    to_server: Duration,
    to_gateway: Duration,
}

struct Host {
    server: Server,
    threads: Vec<Thread>,
}

/// A thread of a server, which executes one exchange after the other.
#[derive(Default)]
struct Thread {
    is_busy: bool,
    /// The exchanges that wait: the gateway, the number of its connection, and the commands.
    waiting: VecDeque<(usize, u64, Vec<u8>)>,
}

/// All of it.
pub(crate) struct Fleet {
    plan: Plan,
    limit: Arc<Limit>,
    keys: Vec<Fingerprint>,
    gateways: Vec<Gateway>,
    hosts: Vec<Host>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    now: Duration,
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
        let config = config::Memcached {
            servers: (0..plan.servers).map(|server| format!("server-{server}:11211")).collect(),
            prefix: "gw".to_owned(),
            timeout: plan.timeout,
            on_error: plan.on_error,
            strict: plan.strict,
        };
        let gateways = (0..plan.gateways).map(|index| {
            // The clocks are spread evenly over what they differ by.
            let behind = plan.skew * u32::try_from(index).unwrap() / u32::try_from(plan.gateways.max(2) - 1).unwrap();
            let clock = Time::from_micros(BEGIN * 1_000_000).after(plan.skew);
            let clock = Time::from_micros(clock.micros() - u64::try_from(behind.as_micros()).unwrap());
            Gateway {
                gateway: SimulatedGateway::new(&config, clock),
                links: vec![Link::default(); plan.servers],
                wake: None,
                open: Vec::new(),
                free: Vec::new(),
                due: Duration::ZERO,
                random: random.fork(),
            }
        });
        let gateways = gateways.collect();
        let threads = || (0..plan.threads).map(|_| Thread::default()).collect();
        let host = |_| Host { server: Server::default(), threads: threads() };
        let mut fleet = Self {
            limit: Arc::new(Limit::new("limit", std::slice::from_ref(&plan.rate))),
            keys: (0..keys).map(|key| Fingerprint::of(&key.to_be_bytes())).collect(),
            gateways,
            hosts: (0..plan.servers).map(host).collect(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            now: Duration::ZERO,
            outcome: Outcome {
                work: vec![Work::default(); plan.servers],
                cpu: vec![0.0; plan.servers],
                admissions: vec![Vec::new(); keys],
                ..Outcome::default()
            },
            waits: Vec::new(),
            random,
            plan,
        };
        for gateway in 0..fleet.plan.gateways {
            fleet.schedule(Duration::ZERO, Event::Wake(gateway));
            fleet.gateways[gateway].wake = Some(Duration::ZERO);
            // When they ask first, everything is connected.
            let pause = fleet.plan.network.one_way(&mut fleet.random) * 20;
            let pause = pause + fleet.plan.traffic.pause(&mut fleet.random);
            fleet.gateways[gateway].due = pause;
            fleet.schedule_request(gateway);
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

    fn is_cut(&self, gateway: usize) -> bool {
        let (count, from, until) = self.plan.cut;
        gateway < count && (from..until).contains(&self.now)
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Request(gateway) => self.request(gateway),
            Event::Wake(gateway) => {
                if self.gateways[gateway].wake == Some(now) {
                    self.gateways[gateway].wake = None;
                    self.gateways[gateway].gateway.wake(now);
                    self.follow(gateway);
                }
            }
            Event::Connected(gateway, server, number) => {
                if self.is_current(gateway, server, number) {
                    self.gateways[gateway].gateway.connected(server, now);
                    self.follow(gateway);
                }
            }
            Event::Failed(gateway, server, number) => {
                if self.is_current(gateway, server, number) {
                    self.gateways[gateway].gateway.failed(server, now);
                    self.follow(gateway);
                }
            }
            Event::Arrived(gateway, server, number, commands) => {
                let thread = gateway % self.plan.threads;
                self.hosts[server].threads[thread].waiting.push_back((gateway, number, commands));
                self.execute(server, thread);
            }
            Event::Free(server, thread) => {
                self.hosts[server].threads[thread].is_busy = false;
                self.execute(server, thread);
            }
            Event::Executed(gateway, server, number, replies) => {
                if !self.is_cut(gateway) {
                    let arrival = self.now + self.plan.network.one_way(&mut self.random);
                    let last = &mut self.gateways[gateway].links[server].to_gateway;
                    *last = arrival.max(*last);
                    let at = *last;
                    self.schedule(at, Event::Answered(gateway, server, number, replies));
                }
            }
            Event::Answered(gateway, server, number, replies) => {
                if self.is_current(gateway, server, number) {
                    self.gateways[gateway].gateway.answered(server, &replies, now);
                    self.follow(gateway);
                }
            }
            Event::Restart => {
                for server in 0..self.hosts.len() {
                    self.hosts[server].server = Server::default();
                    for gateway in 0..self.gateways.len() {
                        let at = now + self.plan.network.one_way(&mut self.random);
                        let number = self.gateways[gateway].links[server].number;
                        self.schedule(at, Event::Failed(gateway, server, number));
                    }
                }
            }
        }
    }

    fn is_current(&self, gateway: usize, server: usize, number: u64) -> bool {
        !self.is_cut(gateway) && self.gateways[gateway].links[server].number == number
    }

    fn request(&mut self, index: usize) {
        let Gateway { gateway, open, free, due, random, .. } = &mut self.gateways[index];
        let key = self.plan.traffic.key(random);
        let place = free.pop().unwrap_or(open.len());
        if place == open.len() {
            open.push((0, Duration::ZERO));
        }
        open[place] = (u32::try_from(key).unwrap(), self.now);
        let (limit, key) = (&self.limit, self.keys[key]);
        let ask = Ask { limit, key, need: 1, cost: 1, settles: false, advisory: false, place };
        gateway.ask(&ask, self.now);
        *due += self.plan.traffic.pause(random);
        self.outcome.requests += 1;
        self.schedule_request(index);
        self.follow(index);
    }

    /// A thread of a server executes the next exchange that waits, if it has time. A connection belongs to one thread.
    fn execute(&mut self, server: usize, thread: usize) {
        let Host { server: memcached, threads } = &mut self.hosts[server];
        let Thread { is_busy, waiting } = &mut threads[thread];
        if *is_busy {
            return;
        }
        let Some((gateway, number, commands)) = waiting.pop_front() else { return };
        *is_busy = true;
        let (replies, work) = memcached.execute(&commands, BEGIN + self.now.as_secs());
        let cost = COSTS.exchange + COSTS.command * (work.writes + work.reads) as f64;
        let done = self.now + Duration::from_secs_f64(cost);
        self.outcome.work[server].add(work);
        self.outcome.cpu[server] += cost;
        self.schedule(done, Event::Executed(gateway, server, number, replies));
        self.schedule(done, Event::Free(server, thread));
    }

    /// Carries on what a gateway has just done.
    fn follow(&mut self, index: usize) {
        let outputs: Vec<Output> = self.gateways[index].gateway.take_outputs().collect();
        for output in outputs {
            self.carry(index, output);
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

    fn carry(&mut self, gateway: usize, output: Output) {
        let is_cut = self.is_cut(gateway);
        let mut one_way = || self.plan.network.one_way(&mut self.random);
        let (there, back) = (one_way(), one_way());
        match output {
            Output::Connect(server) => {
                let link = &mut self.gateways[gateway].links[server];
                link.number += 1;
                let (number, at) = (link.number, self.now + (there + back) * 2);
                // The handshake, and then the first command. Where nothing arrives, the gateway gives up by itself.
                if !is_cut {
                    self.schedule(at, Event::Connected(gateway, server, number));
                }
            }
            Output::Exchange(server, commands) => {
                let link = &mut self.gateways[gateway].links[server];
                link.to_server = link.to_server.max(self.now + there);
                let (at, number) = (link.to_server, link.number);
                if !is_cut {
                    self.schedule(at, Event::Arrived(gateway, server, number, commands));
                }
            }
            Output::Close(server) => self.gateways[gateway].links[server].number += 1,
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
