//! Counters, histograms and peaks: plain atomics that one thread adds to and any thread may read. Each worker has its own,
//! and readers add them up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::Time;
use super::share::{WHOLE, share};

/// The upper bounds of the buckets in microseconds: from a store's round trip to a slow upstream.
pub const BOUNDS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000, 30_000_000,
];
/// The length of a window of a [`Peak`], as a power of two of microseconds: 33.6 s.
const WINDOW_BITS: u32 = 25;
/// A share is known for 302 s at least and for 336 s at most: a monitoring system that asks every minute sees it five times,
/// even if one of its requests fails.
const WINDOWS: usize = 10;
/// The bits of a slot for the share, in millionths. The bits above are the number of the window.
const SHARE_BITS: u32 = 20;

/// A count that only grows. Only one thread adds to it, so adding takes no locked instruction. Any thread may read it.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn one(&self) {
        self.add(1);
    }

    pub fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Like [`Counter`], but any thread may add to it: for what is rare, since adding takes a locked instruction.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    pub fn one(&self) {
        self.add(1);
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of durations. Only one thread adds to it, as to a [`Counter`].
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    micros: Counter,
}

/// The values of one histogram, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// For each of [`BOUNDS`], the number of durations up to that bound and above the previous bound.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// The sum of all durations, in microseconds.
    pub micros: u64,
}

impl Histogram {
    pub fn observe(&self, micros: u64) {
        // Most durations are short, so the search begins with the lowest bound.
        self.buckets[BOUNDS.iter().take_while(|bound| **bound < micros).count()].one();
        self.micros.add(micros);
    }
}

impl<'a> FromIterator<&'a Histogram> for HistogramSnapshot {
    fn from_iter<I: IntoIterator<Item = &'a Histogram>>(histograms: I) -> Self {
        let mut sum = Self::default();
        for histogram in histograms {
            for (total, bucket) in sum.buckets.iter_mut().zip(&histogram.buckets) {
                *total += bucket.get();
            }
            sum.micros += histogram.micros.get();
        }
        sum
    }
}

/// One `T` for each worker thread. Only that thread changes it, so cores share no cache line. Each is made at its first
/// use: most routes and limits of a large file are idle on most workers.
#[derive(Debug)]
pub struct PerWorker<T>(Box<[OnceLock<Box<Padded<T>>>]>);

/// Two cache lines, because processors fetch them in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

impl<T: Default> PerWorker<T> {
    /// At least one.
    pub fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| OnceLock::new()).collect())
    }

    pub fn of(&self, worker: usize) -> &T {
        let place = self.0.get(worker).unwrap_or(&self.0[0]);
        &place.get_or_init(Box::default).0
    }

    /// Only those that were used.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|place| Some(&place.get()?.0))
    }
}

/// The highest used share of something in the current window and the nine before: the last 302 to 336 seconds. Only one thread
/// adds to it, as to a [`Counter`]; any thread may read it.
///
/// A decision says how much of a quota is left, so one division and some comparisons show how full keys are. A search for
/// the fullest key in the store would visit all cells, and servers cannot be searched. The key is not kept, because
/// metrics name no keys.
#[derive(Debug, Default)]
pub struct Peak {
    /// A window uses the slot of its number modulo [`WINDOWS`].
    slots: [AtomicU64; WINDOWS],
}

impl Peak {
    /// The rest of `capacity` was used.
    pub fn observe(&self, remaining: u64, capacity: u64, now: Time) {
        let share = u64::from(share(capacity.saturating_sub(remaining), capacity));
        let window = window(now);
        let slot = &self.slots[usize::try_from(window % WINDOWS as u64).unwrap_or(0)];
        let noted = slot.load(Ordering::Relaxed);
        // A window of the future is from before the clock was set back.
        if noted >> SHARE_BITS != window || share > noted & MASK {
            slot.store(window << SHARE_BITS | share, Ordering::Relaxed);
        }
    }

    /// From 0 to 1; 0 if nothing was used.
    #[expect(clippy::cast_precision_loss, reason = "a share has seven digits")]
    pub fn highest(&self, now: Time) -> f64 {
        let (current, mut highest) = (window(now), 0);
        for noted in self.slots.iter().map(|slot| slot.load(Ordering::Relaxed)) {
            // Windows of the future get a larger age than any other.
            if current.wrapping_sub(noted >> SHARE_BITS) < WINDOWS as u64 {
                highest = highest.max(noted & MASK);
            }
        }
        highest as f64 / f64::from(WHOLE)
    }
}

const MASK: u64 = (1 << SHARE_BITS) - 1;

fn window(now: Time) -> u64 {
    now.micros() >> WINDOW_BITS
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for micros in [0, 100, 101, 30_000_000, 30_000_001] {
            histogram.observe(micros);
        }
        let snapshot = HistogramSnapshot::from_iter([&histogram]);
        assert_eq!(
            (snapshot.buckets[0], snapshot.buckets[1], snapshot.buckets[15], snapshot.buckets[16]),
            (2, 1, 1, 1)
        );
        assert_eq!(snapshot.micros, 60_000_202);
    }

    /// The beginning of a window.
    const BEGIN: Time = Time::from_micros(53_687_090 << WINDOW_BITS);

    fn at(seconds: u64) -> Time {
        BEGIN.after(Duration::from_secs(seconds))
    }

    #[test]
    fn the_highest_share_is_known_for_five_minutes() {
        let peak = Peak::default();
        let highest = |seconds| peak.highest(at(seconds)).to_string();
        assert_eq!(highest(0), "0");
        peak.observe(1, 4, at(1));
        peak.observe(3, 4, at(33));
        // A scrape each minute sees the peak five times, whenever the first scrape is.
        assert_eq!([33, 60, 120, 180, 240, 300, 335].map(highest), ["0.75"; 7]);
        peak.observe(1, 2, at(40));
        assert_eq!([336, 340, 369].map(highest), ["0.5"; 3]);
        assert_eq!([370, 10_000].map(highest), ["0"; 2]);
    }

    #[test]
    fn each_window_is_remembered_for_as_long_as_any_other() {
        let peak = Peak::default();
        for second in 0..3_000 {
            peak.observe(1, 4, at(second));
            assert_eq!([0, 302].map(|later| peak.highest(at(second + later)).to_string()), ["0.75"; 2], "{second}");
            assert_eq!(peak.highest(at(second + 336)).to_string(), "0", "{second}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_freeze_it() {
        let peak = Peak::default();
        peak.observe(0, 4, at(3600));
        assert_eq!(peak.highest(at(0)).to_string(), "0");
        peak.observe(3, 4, at(0));
        peak.observe(3, 4, at(17));
        assert_eq!(peak.highest(at(17)).to_string(), "0.25");
    }
}
