//! The question: one limit for many keys, and the names of its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gateway::base::clock::Time;
use gateway::base::fingerprint::Fingerprint;
use gateway::limit::{Cell, Limit, Rate};

pub(crate) const PREFIX: &str = "bench";
/// From one key to the next; coprime to the numbers of keys.
const STEP: usize = 7919;

pub(crate) struct Question {
    pub(crate) limit: Arc<Limit>,
    pub(crate) keys: Vec<Fingerprint>,
    asked: AtomicUsize,
}

impl Question {
    pub(crate) fn new(limit: &Arc<Limit>, keys: usize) -> Self {
        let keys = (0..keys).map(|key| Fingerprint::of(&key.to_be_bytes())).collect();
        Self { limit: limit.clone(), keys, asked: AtomicUsize::new(0) }
    }

    pub(crate) fn key(&self) -> Fingerprint {
        self.keys[self.asked.fetch_add(STEP, Ordering::Relaxed) % self.keys.len()]
    }

    /// Bucket by bucket: the index of the rate, and the name.
    pub(crate) fn counters(&self, key: Fingerprint, cell: &mut Cell) -> Vec<(usize, String)> {
        let rates = self.limit.rates();
        let base = self.base(key);
        cell.counts_mut().map(|(place, bucket, _)| (place, counter(&base, &rates[place], bucket))).collect()
    }

    /// For all keys: the counters of the last rate that get admissions at `now` and soon after.
    pub(crate) fn counter_names(&self, now: Time) -> Vec<String> {
        let rates = self.limit.rates();
        let last = rates.len() - 1;
        let mut cell = Cell::new(rates, now);
        let (_, bucket, _) = cell.counts_mut().find(|(place, ..)| *place == last).unwrap();
        let names = |key: &Fingerprint| [bucket, bucket + 1].map(|at| counter(&self.base(*key), &rates[last], at));
        self.keys.iter().flat_map(names).collect()
    }

    fn base(&self, key: Fingerprint) -> String {
        format!("{PREFIX}:{}:{key}", self.limit.name())
    }
}

fn counter(base: &str, rate: &Rate, bucket: u64) -> String {
    format!("{base}#{}.{bucket}", rate.period())
}

/// In seconds.
pub(crate) fn lifetime(rate: &Rate) -> u32 {
    u32::try_from(rate.memory().div_ceil(1_000_000) + 5).unwrap()
}
