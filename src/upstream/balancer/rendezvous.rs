//! Sends requests with the same key to the same endpoint: each endpoint has a score for each key, and the highest wins
//! (rendezvous hashing: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998; with weights:
//! Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). Unlike a ring, this needs no table.
//!
//! When an endpoint goes, only its own keys move, and they move to all others by their weights. The scores depend only on the
//! addresses, so all gateways choose alike. An endpoint whose requests in flight exceed its share by a quarter is left out
//! (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016).

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::Weighted;
use crate::base::fingerprint::Fingerprint;

/// The largest part of its share that an endpoint may have in flight, as a fraction.
const BOUND: (u64, u64) = (5, 4);

#[derive(Debug, Default)]
pub(super) struct Rendezvous {
    /// The usable endpoints, each with the hash of its address.
    endpoints: Vec<(Weighted, u64)>,
    weights: u64,
}

impl Rendezvous {
    pub(super) fn new(usable: &[Weighted]) -> Self {
        let hash = |weighted: &Weighted| Fingerprint::of(weighted.endpoint.to_string().as_bytes()).high();
        let endpoints = usable.iter().map(|weighted| (weighted.clone(), hash(weighted))).collect();
        Self { endpoints, weights: usable.iter().map(|weighted| u64::from(weighted.weight)).sum() }
    }

    pub(super) fn find(&self, key: u64, is_open: impl Fn(&Weighted) -> bool) -> Option<&Weighted> {
        let in_flight = |weighted: &Weighted| weighted.endpoint.state.load.in_flight() as u64;
        let total = self.endpoints.iter().map(|(weighted, _)| in_flight(weighted)).sum::<u64>() + 1;
        let is_within = |weighted: &Weighted| {
            let share = (total * u64::from(weighted.weight) * BOUND.0).div_ceil(self.weights.max(1) * BOUND.1);
            in_flight(weighted) < share
        };
        let candidates = self.endpoints.iter().filter(|(weighted, _)| is_open(weighted) && is_within(weighted));
        let scored = candidates.map(|(weighted, hash)| (weighted, score(key, *hash, f64::from(weighted.weight))));
        scored.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(weighted, _)| weighted)
    }
}

/// If the weight of one endpoint grows, the scores of the others stay the same.
fn score(key: u64, endpoint: u64, weight: f64) -> f64 {
    let hash = FixedState::with_seed(0).hash_one((key, endpoint));
    // The top 53 bits as a number between 0 and 1, both excluded.
    #[expect(clippy::cast_precision_loss, reason = "a number of 53 bits is exact")]
    let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -weight / uniform.ln()
}
