//! How often each limit has decided what, how full its keys are, and about which keys it decides most often.

use super::bans::KnownBans;
use super::key_activity::KeyActivity;
use super::token_metrics::TokenMetrics;
use crate::base::clock::Time;
use crate::base::metrics::{Counter, Peak, PerWorker};

/// The decisions of one limit on all routes.
#[derive(Debug)]
pub struct LimitMetrics {
    /// The name of the limit.
    pub name: String,
    pub workers: PerWorker<DecisionCounters>,
    /// The keys that come most often, of each worker.
    pub keys: PerWorker<KeyActivity>,
    /// The bans that each worker knows of.
    pub bans: PerWorker<KnownBans>,
    /// The tokens of its requests, if these cost tokens.
    pub tokens: TokenMetrics,
}

/// The decisions of one limit on one worker.
#[derive(Debug, Default)]
pub struct DecisionCounters {
    /// Admitted by this limit and by all others of the route.
    pub admitted: Counter,
    /// Refused by this limit.
    pub rejected: Counter,
    /// Over this limit, but admitted because the limit only reports.
    pub shadowed: Counter,
    /// Over this limit, which answers without saying so.
    pub silenced: Counter,
    /// Held by this limit until there was room or the longest delay was over.
    pub delayed: Counter,
    /// Over this limit, and charged to its pool instead.
    pub overflowed: Counter,
    /// Refused by another limit, so not charged. Whether this one would have admitted it may not be known.
    pub not_charged: Counter,
    /// Not counted because the key is exempt.
    pub exempt: Counter,
    /// Refused because the key is blocked.
    pub blocked: Counter,
    /// Refused because the key is banned.
    pub banned: Counter,
    /// Not counted because the request has no key.
    pub skipped: Counter,
    /// Refused because the request has no key.
    pub keyless: Counter,
    /// Not decided because the store did not answer.
    pub unknown: Counter,
    /// The share of its quota that the fullest of the keys has used that were counted lately.
    pub fullest: Peak,
}

/// Reads the counter of one decision.
pub type DecisionCounter = fn(&DecisionCounters) -> &Counter;

/// The names of all decisions, each with its counter.
pub const DECISIONS: [(&str, DecisionCounter); 13] = [
    ("admitted", |counters| &counters.admitted),
    ("rejected", |counters| &counters.rejected),
    ("shadowed", |counters| &counters.shadowed),
    ("silenced", |counters| &counters.silenced),
    ("delayed", |counters| &counters.delayed),
    ("overflowed", |counters| &counters.overflowed),
    ("exempt", |counters| &counters.exempt),
    ("blocked", |counters| &counters.blocked),
    ("banned", |counters| &counters.banned),
    ("not_charged", |counters| &counters.not_charged),
    ("skipped", |counters| &counters.skipped),
    ("keyless", |counters| &counters.keyless),
    ("unknown", |counters| &counters.unknown),
];

impl LimitMetrics {
    /// Those of a limit, with nothing counted yet, for so many workers.
    pub fn new(name: &str, workers: usize) -> Self {
        Self {
            name: name.to_owned(),
            workers: PerWorker::new(workers),
            keys: PerWorker::new(workers),
            bans: PerWorker::new(workers),
            tokens: TokenMetrics::default(),
        }
    }

    /// How often all workers have decided so.
    pub fn decisions(&self, count: DecisionCounter) -> u64 {
        self.workers.iter().map(|worker| count(worker).get()).sum()
    }

    /// The share of its quota, from 0 to 1, that the fullest of the keys has used that were counted lately.
    pub fn fullest(&self, now: Time) -> f64 {
        self.workers.iter().map(|worker| worker.fullest.highest(now)).fold(0.0, f64::max)
    }
}
