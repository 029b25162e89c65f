//! The load of a server: how many requests are in flight, how long requests without a response have waited, and how long others
//! took. Shedding and `adaptive` read the same measurements.
//!
//! An attempt is measured from the moment at which the server can answer it, because the time before depends on the client, to
//! the head of its response. Each worker adds to counters of its own. A reader subtracts what it has read before.

use std::array::from_fn;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::overload::gradient::{Sample, Samples};
use super::overload::{Window, group_of};
use crate::base::clock::Monotonic;
use crate::base::metrics::{Counter, Histogram, HistogramSnapshot, PerWorker};

/// The weight of a new measurement in the smoothed latency, as a power of two: an eighth, as for round-trip times (RFC 6298).
const SMOOTHING: u32 = 3;
/// A longer mean wait comes from a count and a sum that were read while a worker changed them.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Load {
    in_flight: AtomicUsize,
    requests: AtomicU64,
    /// The smoothed time until the head of a response in microseconds; 0 if there was none.
    latency: AtomicU32,
    /// In microseconds: longer times are cut off in sums of their own. 0 if nobody needs these.
    longest: AtomicU64,
    workers: PerWorker<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// The attempts that wait for a response, and the sum of the moments at which their waits began.
    waiting: Timed,
    answered: Counter,
    /// Responses that show how long the work takes.
    latencies: Histogram,
    /// Attempts without a response that show how long one takes at least.
    unanswered: Timed,
    /// Both, for each group of clients, with times that are cut off. Made at its first use, because it is large.
    by_group: OnceLock<Box<[Timed; 64]>>,
    served: Served,
}

/// A client, as one of 64 bits. Few clients share one, and all addresses of an IPv6 network of a client do.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientBit(pub(super) u64);

impl ClientBit {
    /// Of requests of the gateway itself.
    pub(super) const OWN: Self = Self(1);

    pub(super) fn of(client: IpAddr) -> Self {
        Self(1 << group_of(client, 0, 64))
    }

    /// Below 64.
    pub(super) fn group(self) -> usize {
        self.0.trailing_zeros() as usize
    }
}

/// The clients that were answered in a period of about two seconds, and in the one before, as bits. Only its worker writes.
#[derive(Debug, Default)]
struct Served {
    period: AtomicU64,
    now: AtomicU64,
    before: AtomicU64,
}

impl Served {
    fn period(now: Monotonic) -> u64 {
        now.micros() >> 21
    }

    fn add(&self, client: ClientBit, now: Monotonic) {
        let (period, last) = (Self::period(now), self.period.load(Ordering::Relaxed));
        if period != last {
            let before = if period == last + 1 { self.now.load(Ordering::Relaxed) } else { 0 };
            self.before.store(before, Ordering::Relaxed);
            self.now.store(0, Ordering::Relaxed);
            self.period.store(period, Ordering::Relaxed);
        }
        self.now.store(self.now.load(Ordering::Relaxed) | client.0, Ordering::Relaxed);
    }

    fn lately(&self, now: Monotonic) -> u64 {
        let (clients, before) = (self.now.load(Ordering::Relaxed), self.before.load(Ordering::Relaxed));
        match Self::period(now).saturating_sub(self.period.load(Ordering::Relaxed)) {
            0 => clients | before,
            1 => clients,
            _ => 0,
        }
    }
}

/// A count with the sum of times in microseconds. Both wrap.
#[derive(Debug, Default)]
struct Timed(Counter, Counter);

impl Timed {
    fn add(&self, count: u64, micros: u64) {
        self.0.add(count);
        self.1.add(micros);
    }

    fn get(&self) -> Sample {
        Sample { responses: self.0.get(), micros: self.1.get() }
    }
}

impl Load {
    pub(super) fn new(workers: usize) -> Self {
        let (in_flight, requests, latency, longest) = Default::default();
        Self { in_flight, requests, latency, longest, workers: PerWorker::new(workers) }
    }

    /// Begins a request, unless `most` are in flight. Returns whether it has begun.
    pub(super) fn begin(&self, most: Option<usize>) -> bool {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if most.is_some_and(|most| before >= most) {
            self.end();
            return false;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The place of a request stays taken after its end, until a further [`Self::end`].
    pub(super) fn stays(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        // A request that begins to wait sees this change, or this worker sees it waiting and wakes it.
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn waits(&self, worker: usize, now: Monotonic) {
        self.workers.of(worker).waiting.add(1, now.micros());
    }

    /// An attempt of this worker that has waited since then does not wait any more.
    pub(super) fn waits_no_more(&self, worker: usize, since: Monotonic) {
        self.workers.of(worker).waiting.add(1u64.wrapping_neg(), since.micros().wrapping_neg());
    }

    /// A response has come. `micros` is its time if that shows how long the work takes.
    pub(super) fn answered(&self, worker: usize, client: ClientBit, micros: Option<u64>) {
        let counts = self.workers.of(worker);
        counts.answered.one();
        let Some(micros) = micros else { return };
        counts.latencies.observe(micros);
        self.add_cut(counts, client, micros);
        // Another worker may replace the value at the same time; then one measurement is lost.
        let measured = u32::try_from(micros).unwrap_or(u32::MAX).max(1);
        let smoothed = self.latency.load(Ordering::Relaxed);
        let next = if smoothed == 0 { measured } else { smoothed - (smoothed >> SMOOTHING) + (measured >> SMOOTHING) };
        self.latency.store(next.max(1), Ordering::Relaxed);
    }

    /// The server works for a client.
    pub(super) fn served(&self, worker: usize, client: ClientBit, now: Monotonic) {
        self.workers.of(worker).served.add(client, now);
    }

    /// The clients for which it has worked in the last two to four seconds, as bits.
    pub(super) fn served_lately(&self, now: Monotonic) -> u64 {
        self.workers.iter().fold(0, |clients, counts| clients | counts.served.lately(now))
    }

    /// An attempt has ended without a response, which would take `micros` at least.
    pub(super) fn unanswered(&self, worker: usize, client: ClientBit, micros: u64) {
        let counts = self.workers.of(worker);
        counts.unanswered.add(1, micros);
        self.add_cut(counts, client, micros);
    }

    /// From now on, times are also added up cut off at this one, which is in microseconds and at least 1.
    pub(super) fn cut_at(&self, longest: u64) {
        self.longest.store(longest, Ordering::Relaxed);
    }

    fn add_cut(&self, counts: &Counts, client: ClientBit, micros: u64) {
        let longest = self.longest.load(Ordering::Relaxed);
        if longest > 0 {
            let groups = counts.by_group.get_or_init(|| Box::new(from_fn(|_| Timed::default())));
            groups.get(client.group()).iter().for_each(|timed| timed.add(1, micros.min(longest)));
        }
    }

    /// The smoothed time until the head of a response; `None` if there was none.
    pub(super) fn latency(&self) -> Option<Duration> {
        let latency = self.latency.load(Ordering::Relaxed);
        (latency > 0).then(|| Duration::from_micros(u64::from(latency)))
    }

    /// The times until the head of a response, of responses that show how long the work takes.
    pub(super) fn latencies(&self) -> HistogramSnapshot {
        self.workers.iter().map(|counts| &counts.latencies).collect()
    }

    /// How long the work takes, or takes at least if there was no response.
    pub(super) fn work(&self) -> Sample {
        let HistogramSnapshot { buckets, micros } = self.latencies();
        self.sum(|counts| counts.unanswered.get()).and(Sample { responses: buckets.iter().sum(), micros })
    }

    /// The same for each group of clients, with times that are cut off. Empty as long as nobody has said at which.
    pub(super) fn work_by_group(&self) -> Samples {
        let mut samples = [Sample::default(); 64];
        for groups in self.workers.iter().filter_map(|counts| counts.by_group.get()) {
            samples.iter_mut().zip(groups.iter()).for_each(|(sample, timed)| *sample = sample.and(timed.get()));
        }
        samples
    }

    fn sum(&self, of: fn(&Counts) -> Sample) -> Sample {
        self.workers.iter().map(of).fold(Sample::default(), Sample::and)
    }
}

#[derive(Debug, Default)]
pub struct UpstreamLoad {
    endpoints: Vec<EndpointLoad>,
    full: u64,
}

#[derive(Clone, Copy, Debug)]
struct EndpointLoad {
    id: usize,
    /// The attempts that wait, and the sum of the moments at which their waits began.
    waiting: Sample,
    work: Sample,
    answered: u64,
}

impl UpstreamLoad {
    /// `full` is the number of requests that have found no room.
    pub(super) fn new<'a>(endpoints: impl Iterator<Item = (usize, &'a Load)>, full: u64) -> Self {
        let read = |(id, load): (usize, &Load)| {
            let answered = load.workers.iter().map(|counts| counts.answered.get()).sum();
            EndpointLoad { id, waiting: load.sum(|counts| counts.waiting.get()), work: load.work(), answered }
        };
        Self { endpoints: endpoints.map(read).collect(), full }
    }

    /// What has happened since `before`, which is `seconds` ago. The requests that have arrived are not known here.
    #[expect(clippy::cast_precision_loss, reason = "counts of a window are small, and times as well")]
    pub fn window(&self, before: &Self, seconds: f64, now: Monotonic) -> Window {
        let seconds_of = |Sample { responses, micros, .. }: Sample| (responses as f64, micros as f64 / 1e6);
        let (mut waiting, mut work, mut answered) = (Sample::default(), Sample::default(), 0);
        for is in &self.endpoints {
            // An endpoint that was not there before begins with its next window.
            let was = before.endpoints.iter().find(|was| was.id == is.id).unwrap_or(is);
            waiting = waiting.and(is.waiting);
            work = work.and(is.work.since(was.work));
            answered += is.answered - was.answered;
        }
        waiting.micros = waiting.responses.wrapping_mul(now.micros()).wrapping_sub(waiting.micros);
        let mut waiting = seconds_of(waiting);
        if waiting.1 > LONGEST_WAIT.as_secs_f64() * waiting.0 {
            waiting.1 = 0.0;
        }
        let full = self.full.saturating_sub(before.full) as f64;
        Window { seconds, answered: answered as f64, ended: seconds_of(work), waiting, full, ..Window::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn read(load: &Load) -> UpstreamLoad {
        UpstreamLoad::new([(1, load)].into_iter(), 0)
    }

    #[test]
    fn no_more_requests_begin_than_allowed() {
        let load = Load::new(2);
        assert_eq!([0; 3].map(|_| load.begin(Some(2))), [true, true, false]);
        assert_eq!((load.in_flight(), load.requests()), (2, 2));
        load.end();
        assert!(load.begin(Some(2)) && load.begin(None));
    }

    #[test]
    fn latency_follows_the_measurements() {
        let load = Load::new(2);
        assert_eq!(load.latency(), None);
        let observe = |micros| {
            load.answered(1, ClientBit::OWN, Some(micros));
            load.latency().unwrap().as_micros()
        };
        assert_eq!([observe(8000), observe(16_000), observe(16_000)], [8000, 9000, 9875]);
        assert_eq!((load.latencies().buckets.iter().sum::<u64>(), load.latencies().micros), (3, 40_000));
        (0..100).for_each(|_| _ = observe(400));
        assert!((380..=420).contains(&observe(400)));
    }

    #[test]
    fn a_window_has_what_has_changed() {
        let load = Load::new(2);
        let begun = Monotonic::from_micros(u64::from(u32::MAX));
        load.answered(0, ClientBit::OWN, Some(SECOND));
        let before = read(&load);
        load.waits(0, begun);
        load.waits(1, begun);
        let window = read(&load).window(&before, 0.5, begun.after(Duration::from_secs(2)));
        assert_eq!(window, Window { seconds: 0.5, waiting: (2.0, 4.0), ..Window::default() });
        load.waits_no_more(0, begun);
        load.answered(0, ClientBit::OWN, Some(3 * SECOND));
        load.waits_no_more(1, begun);
        load.answered(0, ClientBit::OWN, None);
        load.unanswered(1, ClientBit::OWN, 4 * SECOND);
        let full = UpstreamLoad { full: 1, ..read(&load) };
        let window = full.window(&before, 0.5, begun);
        assert_eq!(window, Window { seconds: 0.5, answered: 2.0, ended: (2.0, 7.0), full: 1.0, ..Window::default() });
        assert_eq!(load.work(), Sample { responses: 3, micros: 8 * SECOND });
        assert_eq!(read(&load).window(&read(&load), 0.5, begun), Window { seconds: 0.5, ..Window::default() });
        let window = read(&load).window(&UpstreamLoad::default(), 0.5, begun);
        assert_eq!(window, Window { seconds: 0.5, ..Window::default() }, "an endpoint that is new");
    }

    #[test]
    fn the_work_of_each_group_of_clients_is_cut_off() {
        let load = Load::new(2);
        load.answered(0, ClientBit(1), Some(SECOND));
        assert_eq!(load.work_by_group(), [Sample::default(); 64], "nobody needs it");
        load.cut_at(2 * SECOND);
        load.answered(0, ClientBit(1), Some(SECOND));
        load.answered(1, ClientBit(1), Some(3 * SECOND));
        load.unanswered(1, ClientBit(1 << 63), 9 * SECOND);
        let samples = load.work_by_group();
        assert_eq!(samples[0], Sample { responses: 2, micros: 3 * SECOND });
        assert_eq!(samples[63], Sample { responses: 1, micros: 2 * SECOND });
    }
}
