//! Counters, histograms and peaks: plain atomics that one thread adds to and any thread may read. Each worker has its own,
//! and readers add them up.

mod peak;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub use peak::Peak;

/// The upper bounds of the buckets in microseconds: from a store's round trip to a slow upstream.
pub const BOUNDS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000, 30_000_000,
];

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

#[cfg(test)]
mod tests {
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
}
