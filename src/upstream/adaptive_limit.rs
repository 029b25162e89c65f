//! How many requests an endpoint should have in flight, by its load. The limit is computed again from time to time.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::load::Load;
use super::overload::gradient::{GradientLimit, Sample};
use crate::base::clock::Monotonic;
use crate::config::AdaptiveBounds;

/// The limit of one endpoint.
#[derive(Debug)]
pub(super) struct AdaptiveLimit {
    limit: AtomicUsize,
    /// The rule, and what was measured when it was applied last.
    gradient: Mutex<(GradientLimit, Option<Sample>)>,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        let gradient = GradientLimit::default();
        let limit = AtomicUsize::new(gradient.limit(AdaptiveBounds { min: 1, max: usize::MAX }));
        Self { limit, gradient: Mutex::new((gradient, None)) }
    }
}

impl AdaptiveLimit {
    /// How many requests may be in flight.
    pub(super) fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Computes the limit again.
    pub(super) fn advance(&self, load: &Load, bounds: AdaptiveBounds, now: Monotonic) {
        let work = load.work();
        let (gradient, before) = &mut *self.gradient.lock();
        let new = work.since(before.replace(work).unwrap_or(work));
        gradient.observe(new, load.in_flight(), bounds, now);
        self.limit.store(gradient.limit(bounds), Ordering::Relaxed);
    }
}
