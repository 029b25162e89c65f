//! Counters and histograms: plain atomics where things happen, read by whoever wants to know.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the histogram's buckets in microseconds: a store's round trip at one end, a slow upstream at the other.
pub const BOUNDS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000, 30_000_000,
];

/// A count that only grows. One thread adds to it, any may read: so adding takes no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn one(&self) {
        self.add(1);
    }

    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long things took. Added to by one thread, like a [`Counter`].
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    micros: Counter,
}

/// What a histogram, or several added up, has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// For each of [`BOUNDS`], how many took at most that long and longer than the bound before.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// The sum of all, in microseconds.
    pub micros: u64,
}

impl Histogram {
    /// Counts one that took `micros` microseconds.
    pub fn observe(&self, micros: u64) {
        // Most take little: sought from below.
        self.buckets[BOUNDS.iter().take_while(|bound| **bound < micros).count()].one();
        self.micros.add(micros);
    }

    /// Adds what was observed so far to `seen`.
    pub fn add_to(&self, seen: &mut Seen) {
        for (sum, bucket) in seen.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.get();
        }
        seen.micros += self.micros.get();
    }
}

/// One `T` for every worker thread, which alone counts in it; two cores never fight over a cache line.
#[derive(Debug)]
pub struct PerWorker<T>(Box<[Padded<T>]>);

/// Two cache lines, because processors fetch them in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

impl<T: Default> PerWorker<T> {
    /// One for each of `workers` threads, at least one.
    pub fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Padded::default()).collect())
    }

    /// The one of this worker.
    pub fn of(&self, worker: usize) -> &T {
        &self.0.get(worker).unwrap_or(&self.0[0]).0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
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
        let mut seen = Seen::default();
        histogram.add_to(&mut seen);
        assert_eq!((seen.buckets[0], seen.buckets[1], seen.buckets[15], seen.buckets[16]), (2, 1, 1, 1));
        assert_eq!(seen.micros, 60_000_202);
    }
}
