//! What requests to one upstream have measured, on each worker, and the level that follows from it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::clock::{self, Monotonic};
use crate::base::metrics::{Counter, PerWorker};
use crate::limit::overload::admission::Window;
use crate::limit::overload::level::{GROUPS, HIGHEST, Level, RANKS};

/// The measurements of one upstream, and its level of shedding.
#[derive(Debug)]
pub struct Meter {
    /// The name of the upstream; empty for the routes that have none.
    pub name: String,
    level: AtomicU32,
    /// The mean time until a response in the last windows, in microseconds.
    latency: AtomicU64,
    workers: PerWorker<Counts>,
}

/// What one worker has counted. Times are in microseconds, and sums of them wrap.
#[derive(Debug)]
struct Counts {
    /// The requests that arrived, by rank.
    arrived: Box<[Counter]>,
    /// Those that were shed, by priority.
    shed: [Counter; HIGHEST as usize + 1],
    /// Requests that began to wait for a response, and the sum of the times when they did.
    begun: [Counter; 2],
    /// Those of them that do not wait any more, and the sum of the times when they began.
    over: [Counter; 2],
    /// Those that show how long a response takes, and the sum of their times.
    measured: [Counter; 2],
    /// Responses.
    answered: Counter,
    /// Requests for which no server had room.
    full: Counter,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            arrived: (0..RANKS).map(|_| Counter::default()).collect(),
            shed: Default::default(),
            begun: Default::default(),
            over: Default::default(),
            measured: Default::default(),
            answered: Counter::default(),
            full: Counter::default(),
        }
    }
}

/// The sums of all workers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Totals {
    arrived: Vec<u64>,
    shed: u64,
    begun: [u64; 2],
    over: [u64; 2],
    measured: [u64; 2],
    answered: u64,
    full: u64,
}

/// More is not the time for which requests wait, but two sums that were read while a worker changed them.
const LONGEST_WAIT: f64 = 600.0;

impl Meter {
    /// For `workers` threads.
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, level: AtomicU32::new(0), latency: AtomicU64::new(0), workers: PerWorker::new(workers) }
    }

    /// Counts a request of this rank. Returns whether it passes.
    pub fn admits(&self, rank: usize, worker: usize) -> bool {
        let counts = self.workers.of(worker);
        if let Some(arrived) = counts.arrived.get(rank) {
            arrived.one();
        }
        let level = self.level();
        if level == Level::NONE || level.admits(rank, || fastrand::u8(..)) {
            return true;
        }
        if let Some(shed) = counts.shed.get(rank / GROUPS) {
            shed.one();
        }
        false
    }

    /// Measures how long a request of this worker waits for its response, once it is told that it waits.
    pub fn wait(&self, worker: usize) -> Waiting<'_> {
        Waiting { meter: self, counts: self.workers.of(worker), begun: Cell::new(None) }
    }

    /// What is shed now.
    pub fn level(&self) -> Level {
        Level::from_bits(self.level.load(Ordering::Relaxed))
    }

    /// How many requests of each priority were shed.
    pub fn shed(&self) -> [u64; HIGHEST as usize + 1] {
        std::array::from_fn(|priority| {
            self.workers.iter().filter_map(|counts| counts.shed.get(priority)).map(Counter::get).sum()
        })
    }

    pub(super) fn set_level(&self, level: Level) {
        self.level.store(level.bits(), Ordering::Relaxed);
    }

    pub(super) fn set_latency(&self, seconds: f64) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is short, and at least 0")]
        self.latency.store((seconds * 1e6) as u64, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> Totals {
        let sum = |count: &dyn Fn(&Counts) -> u64| self.workers.iter().map(count).fold(0, u64::wrapping_add);
        let two = |of: fn(&Counts) -> &[Counter; 2]| {
            [0, 1].map(|at| sum(&|counts| of(counts).get(at).map_or(0, Counter::get)))
        };
        // What is over has begun, so that it is read first.
        let over = two(|counts| &counts.over);
        Totals {
            arrived: (0..RANKS).map(|rank| sum(&|counts| counts.arrived.get(rank).map_or(0, Counter::get))).collect(),
            shed: self.shed().iter().sum(),
            begun: two(|counts| &counts.begun),
            over,
            measured: two(|counts| &counts.measured),
            answered: sum(&|counts| counts.answered.get()),
            full: sum(&|counts| counts.full.get()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a window are small, and times as well")]
impl Totals {
    /// What has happened since `before`, which is so many seconds ago.
    pub(super) fn window(&self, before: &Self, seconds: f64, now: Monotonic) -> Window {
        let since = |is: u64, was: u64| is.wrapping_sub(was) as f64;
        let arrived: f64 = self.arrived_since(before).iter().sum();
        let waiting = self.begun[0].saturating_sub(self.over[0]);
        let times = waiting.wrapping_mul(now.micros()).wrapping_sub(self.begun[1].wrapping_sub(self.over[1]));
        let waited = times as f64 / 1e6;
        let is_plausible = waited <= LONGEST_WAIT * waiting as f64;
        Window {
            seconds,
            arrived,
            admitted: arrived - since(self.shed, before.shed),
            answered: since(self.answered, before.answered),
            ended: (since(self.measured[0], before.measured[0]), since(self.measured[1], before.measured[1]) / 1e6),
            waiting: (waiting as f64, if is_plausible { waited } else { 0.0 }),
            full: since(self.full, before.full),
        }
    }

    /// The requests that have arrived since `before`, by rank.
    pub(super) fn arrived_since(&self, before: &Self) -> Vec<f64> {
        self.arrived.iter().zip(&before.arrived).map(|(is, was)| is.wrapping_sub(*was) as f64).collect()
    }
}

/// A request that waits for its response, until this is dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    meter: &'a Meter,
    counts: &'a Counts,
    /// `None` if it does not wait.
    begun: Cell<Option<Monotonic>>,
}

impl Waiting<'_> {
    /// It waits from now on.
    pub fn begin(&self, now: Monotonic) {
        if self.begun.get().is_none() {
            self.begun.set(Some(now));
            self.counts.begun[1].add(now.micros());
            self.counts.begun[0].one();
        }
    }

    /// Its response is there.
    pub fn answered(self) {
        self.counts.answered.one();
        if let Some(micros) = self.end() {
            self.measured(micros);
        }
    }

    /// No server had room for it.
    pub fn found_full(self) {
        self.counts.full.one();
        self.end();
    }

    /// The upstream has failed, which says nothing about how long a response takes.
    pub fn failed(self) {
        self.end();
    }

    /// It does not wait any more. Returns for how many microseconds it has waited.
    fn end(&self) -> Option<u64> {
        let begun = self.begun.take()?;
        self.counts.over[1].add(begun.micros());
        self.counts.over[0].one();
        Some(clock::monotonic().micros_since(begun))
    }

    fn measured(&self, micros: u64) {
        self.counts.measured[1].add(micros);
        self.counts.measured[0].one();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A client that does not wait any longer shows how long a response takes at least. One that goes away early shows
        // nothing, and shall not make the upstream look fast.
        let latency = self.meter.latency.load(Ordering::Relaxed);
        if let Some(micros) = self.end().filter(|micros| *micros > latency) {
            self.measured(micros);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn wait(meter: &Meter, worker: usize, begun: Monotonic) -> Waiting<'_> {
        let waiting = meter.wait(worker);
        waiting.begin(begun);
        waiting
    }

    #[test]
    fn a_window_has_what_has_changed() {
        let meter = Meter::new("a".to_owned(), 2);
        let before = meter.totals();
        assert!(meter.admits(5 * GROUPS, 0) && meter.admits(5 * GROUPS, 1));
        meter.set_level(Level::for_share(&vec![1.0; RANKS], 1.0));
        assert!(!meter.admits(0, 1) && meter.admits(RANKS - 1, 1));
        let begun = clock::monotonic();
        let waiting = [wait(&meter, 0, begun), wait(&meter, 1, begun)];
        let not_complete = meter.wait(0);
        let window = meter.totals().window(&before, 0.5, begun.after(Duration::from_secs(2)));
        assert_eq!((window.arrived, window.admitted, window.waiting), (4.0, 3.0, (2.0, 4.0)));
        assert_eq!(meter.shed(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let [one, other] = waiting;
        one.answered();
        other.failed();
        not_complete.answered();
        meter.wait(0).found_full();
        let window = meter.totals().window(&before, 0.5, begun);
        assert_eq!((window.answered, window.full, window.waiting, window.ended.0), (2.0, 1.0, (0.0, 0.0), 1.0));
        let window = meter.totals().window(&meter.totals(), 0.5, begun);
        assert_eq!(window, Window { seconds: 0.5, ..Window::default() });
    }

    #[test]
    fn clients_that_go_away_early_do_not_make_an_upstream_look_fast() {
        let meter = Meter::new("a".to_owned(), 1);
        meter.set_latency(1.0);
        let before = meter.totals();
        drop(wait(&meter, 0, clock::monotonic()));
        let early = Monotonic::from_micros(clock::monotonic().micros() - 2_000_000);
        drop(wait(&meter, 0, early));
        let window = meter.totals().window(&before, 1.0, clock::monotonic());
        assert!((1.0..1.5).contains(&window.ended.0) && window.ended.1 >= 2.0, "{window:?}");
        assert_eq!(window.waiting, (0.0, 0.0));
    }
}
