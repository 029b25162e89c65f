//! The traffic of clients: requests at random moments, for few hot and many rare keys.

use std::time::Duration;

use fastrand::Rng;

/// Of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// Mean nanoseconds between two requests.
    gap: f64,
    /// For each key, the share of requests for this key and the keys before it.
    shares: Vec<f64>,
}

impl Traffic {
    /// Requests per second for `keys` keys: the key at rank r gets a share in proportion to 1/r^`exponent` (Zipf).
    pub(crate) fn new(per_second: f64, keys: usize, exponent: f64) -> Self {
        let weights = (1..=keys).map(|rank| (rank as f64).powf(-exponent));
        let total: f64 = weights.clone().sum();
        let shares = weights.scan(0.0, |sum, weight| {
            *sum += weight / total;
            Some(*sum)
        });
        Self { gap: 1e9 / per_second, shares: shares.collect() }
    }

    /// The pause until the next request: a Poisson process.
    pub(crate) fn pause(&self, random: &mut Rng) -> Duration {
        Duration::from_nanos((-(1.0 - random.f64()).ln() * self.gap) as u64)
    }

    pub(crate) fn key(&self, random: &mut Rng) -> usize {
        let at = random.f64();
        self.shares.partition_point(|share| *share <= at).min(self.shares.len() - 1)
    }
}
