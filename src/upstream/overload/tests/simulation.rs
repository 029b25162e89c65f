//! A server with a queue, clients that do not wait for long, and a gateway between them, in steps of a millisecond.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of a simulation are small"
)]

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use super::*;
use crate::upstream::overload::gradient::Samples;
use crate::upstream::overload::{group_of, rank};

/// How many requests the server works on at the same time, and the mean time for each, in steps.
const WORKERS: usize = 10;
const SERVICE: f64 = 20.0;
/// Of the server, in requests per second.
pub(super) const CAPACITY: f64 = 500.0;
/// How long clients wait for a response, in steps.
const PATIENCE: u64 = 1000;
/// The wanted response time, in seconds.
const TARGET: f64 = 0.2;
/// The steps between two windows of each controller.
const SHED_EVERY: u64 = 250;
const ADAPTED_EVERY: u64 = 100;
const HIGH: u8 = 8;
/// The first steps are not counted, because nothing is known then.
const SETTLED: u64 = 20_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    pub(super) shed: bool,
    pub(super) adaptive: bool,
    /// How many requests may wait if the server is full.
    pub(super) waiting: usize,
}

impl Control {
    pub(super) const NONE: Self = Self { shed: false, adaptive: false, waiting: 0 };
    pub(super) const SHED: Self = Self { shed: true, ..Self::NONE };
    pub(super) const ADAPTIVE: Self = Self { adaptive: true, ..Self::NONE };
    pub(super) const BOTH: Self = Self { shed: true, ..Self::ADAPTIVE };
    pub(super) const WITH_QUEUE: Self = Self { waiting: 200, ..Self::BOTH };
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// In requests per second.
    rate: f64,
    /// How often a request is sent again, a second after it was refused or was not answered in time.
    pub(super) retries: u32,
}

impl Load {
    pub(super) const ABANDON: Self = Self { rate: CAPACITY, retries: 0 };
    pub(super) const RETRY: Self = Self { rate: CAPACITY, retries: 2 };

    /// `load` is a multiple of the server's capacity.
    pub(super) fn of(self, load: f64) -> Self {
        Self { rate: CAPACITY * load, ..self }
    }

    pub(super) fn multiple(self) -> f64 {
        self.rate / CAPACITY
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Results {
    seconds: f64,
    answered: f64,
    high: f64,
    high_answered: f64,
    latency: f64,
    pub(super) limit: usize,
}

impl Results {
    /// The responses in time, as a share of the capacity.
    pub(super) fn goodput(&self) -> f64 {
        self.answered / self.seconds / CAPACITY
    }
    /// The share of requests of the high priority that were answered in time.
    pub(super) fn high(&self) -> f64 {
        self.high_answered / self.high
    }
    pub(super) fn mean_latency(&self) -> f64 {
        self.latency / self.answered
    }
}

#[derive(Clone, Copy, Debug)]
struct Request {
    id: u64,
    priority: u8,
    client: Ipv4Addr,
    sent: u64,
    retries: u32,
}

struct World {
    control: Control,
    load: Load,
    random: fastrand::Rng,
    now: u64,
    ids: u64,
    /// What the server has not begun, and when it will have finished what it works on.
    queue: VecDeque<u64>,
    workers: Vec<Option<(u64, u64)>>,
    /// The requests in flight at the gateway, by id, in the order in which they were sent.
    in_flight: BTreeMap<u64, Request>,
    /// Requests in flight that the server has not got.
    waiting: VecDeque<u64>,
    /// When the server got each of the others.
    begun: BTreeMap<u64, u64>,
    later: VecDeque<(u64, Request)>,
    admission: Admission,
    level: Level,
    arrived: Vec<f64>,
    counts: Window,
    gradient: GradientLimit,
    samples: Samples,
    results: Results,
}

const BOUNDS: AdaptiveBounds = AdaptiveBounds { min: 1, max: 1000 };

pub(super) fn run(control: Control, load: Load, seconds: u64) -> Results {
    let mut world = World {
        control,
        load,
        random: fastrand::Rng::with_seed(7),
        now: 0,
        ids: 0,
        queue: VecDeque::new(),
        workers: vec![None; WORKERS],
        in_flight: BTreeMap::new(),
        waiting: VecDeque::new(),
        begun: BTreeMap::new(),
        later: VecDeque::new(),
        admission: Admission::default(),
        level: Level::NONE,
        arrived: vec![0.0; RANKS],
        counts: Window::default(),
        gradient: GradientLimit::default(),
        samples: [Sample::default(); 64],
        results: Results::default(),
    };
    (0..seconds * 1000).for_each(|_| world.step());
    world.results.seconds = seconds as f64 - SETTLED as f64 / 1000.0;
    world.results
}

impl World {
    fn step(&mut self) {
        self.now += 1;
        self.serve();
        self.give_up();
        while self.has_room()
            && let Some(id) = self.waiting.pop_front()
        {
            self.send(id);
        }
        while self.later.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, request) = self.later.pop_front().unwrap();
            self.arrive(request);
        }
        // Poisson arrivals: exponential pauses within the step.
        let mut at = self.pause();
        while at < 1.0 {
            let high = self.random.f64() < 0.1;
            let priority = if high { HIGH } else { 5 };
            let client = Ipv4Addr::from_bits(self.random.u32(..200));
            self.results.high += f64::from(u8::from(high && self.now > SETTLED));
            self.arrive(Request { id: 0, priority, client, sent: 0, retries: self.load.retries });
            at += self.pause();
        }
        if self.control.shed && self.now.is_multiple_of(SHED_EVERY) {
            self.shed();
        }
        if self.control.adaptive && self.now.is_multiple_of(ADAPTED_EVERY) {
            let (now, in_flight) = (Monotonic::from_micros(self.now * 1000), self.at_server());
            self.gradient.observe(&self.samples, in_flight, BOUNDS, now);
            self.samples.fill(Sample::default());
            if self.now > SETTLED {
                self.results.limit = self.results.limit.max(self.gradient.limit(BOUNDS));
            }
        }
    }

    fn pause(&mut self) -> f64 {
        -(1.0 - self.random.f64()).ln() * 1000.0 / self.load.rate
    }

    fn arrive(&mut self, mut request: Request) {
        let rank = rank(request.priority, request.client.into(), 0);
        self.arrived[rank] += 1.0;
        self.counts.arrived += 1.0;
        let random = self.random.u8(..);
        if self.control.shed && !self.level.admits(rank, || random) {
            return self.again(request);
        }
        self.counts.admitted += 1.0;
        let is_full = self.control.adaptive && !self.has_room();
        if is_full && self.waiting.len() >= self.control.waiting {
            self.counts.full += 1.0;
            return self.again(request);
        }
        self.ids += 1;
        (request.id, request.sent) = (self.ids, self.now);
        self.in_flight.insert(request.id, request);
        if is_full { self.waiting.push_back(request.id) } else { self.send(request.id) }
    }

    fn at_server(&self) -> usize {
        self.in_flight.len() - self.waiting.len()
    }

    fn has_room(&self) -> bool {
        self.at_server() < self.gradient.limit(BOUNDS)
    }

    fn send(&mut self, id: u64) {
        self.begun.insert(id, self.now);
        self.queue.push_back(id);
    }

    fn again(&mut self, mut request: Request) {
        if request.retries > 0 {
            request.retries -= 1;
            self.later.push_back((self.now + 1000, request));
        }
    }

    /// The server does not notice that a client has gone away.
    fn serve(&mut self) {
        for worker in 0..WORKERS {
            if let Some((_, id)) = self.workers[worker].filter(|(done, _)| *done <= self.now) {
                self.workers[worker] = None;
                if let Some(request) = self.in_flight.remove(&id) {
                    self.counts.answered += 1.0;
                    self.end(&request);
                    if self.now > SETTLED {
                        self.results.answered += 1.0;
                        self.results.high_answered += f64::from(u8::from(request.priority == HIGH));
                        self.results.latency += (self.now - request.sent) as f64 / 1000.0;
                    }
                }
            }
            if self.workers[worker].is_none()
                && let Some(id) = self.queue.pop_front()
            {
                let takes = -(1.0 - self.random.f64()).ln() * SERVICE;
                self.workers[worker] = Some((self.now + (takes.round() as u64).max(1), id));
            }
        }
    }

    fn give_up(&mut self) {
        while let Some((id, request)) = self.in_flight.first_key_value().map(|(id, request)| (*id, *request)) {
            if request.sent + PATIENCE > self.now {
                break;
            }
            self.in_flight.remove(&id);
            self.waiting.retain(|waiting| *waiting != id);
            self.end(&request);
            self.again(request);
        }
    }

    fn end(&mut self, request: &Request) {
        let took = self.now - request.sent;
        self.counts.ended.0 += 1.0;
        self.counts.ended.1 += took as f64 / 1000.0;
        if let Some(begun) = self.begun.remove(&request.id) {
            let micros = ((self.now - begun) * 1000).min(self.gradient.longest());
            let group = &mut self.samples[group_of(request.client.into(), 0, 64)];
            *group = group.and(Sample { responses: 1, micros });
        }
    }

    fn shed(&mut self) {
        let waiting = self.in_flight.values().map(|request| (self.now - request.sent) as f64 / 1000.0).sum();
        let seconds = SHED_EVERY as f64 / 1000.0;
        let window =
            Window { seconds, waiting: (self.in_flight.len() as f64, waiting), ..std::mem::take(&mut self.counts) };
        let rate = self.admission.observe_upstream(&window, Some(TARGET));
        self.level = rate.map_or(Level::NONE, |rate| Level::for_share(&self.arrived, rate * seconds));
        self.arrived.fill(0.0);
    }
}
