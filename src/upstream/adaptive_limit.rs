//! How many requests an endpoint should have in flight, by its latency. A request only adds to sums, from which the limit is
//! computed again from time to time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::base::clock::Monotonic;
use crate::limit::overload::gradient::{Bounds, GradientLimit, Sample};

/// The limit of one endpoint, and the sums from which it is computed.
#[derive(Debug)]
pub(super) struct AdaptiveLimit {
    limit: AtomicUsize,
    responses: AtomicU64,
    micros: AtomicU64,
    gradient: Mutex<GradientLimit>,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        let gradient = GradientLimit::default();
        let limit = AtomicUsize::new(gradient.limit(Bounds { min: 1, max: usize::MAX }));
        Self { limit, responses: AtomicU64::new(0), micros: AtomicU64::new(0), gradient: Mutex::new(gradient) }
    }
}

impl AdaptiveLimit {
    /// How many requests may be in flight.
    pub(super) fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Records a response after so many microseconds.
    pub(super) fn record(&self, micros: u64) {
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.responses.fetch_add(1, Ordering::Relaxed);
    }

    /// Computes the limit again. So many requests are in flight.
    pub(super) fn advance(&self, in_flight: usize, bounds: Bounds, now: Monotonic) {
        let responses = self.responses.swap(0, Ordering::Relaxed);
        // A response may be missing here whose time is in the sum, or the other way round; this is one of many.
        let sample = Sample { responses, micros: self.micros.swap(0, Ordering::Relaxed) };
        let mut gradient = self.gradient.lock();
        gradient.observe(sample, in_flight, bounds, now);
        self.limit.store(gradient.limit(bounds), Ordering::Relaxed);
    }
}
