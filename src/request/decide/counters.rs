//! Counts the decisions of each limit, how full its keys are, and its most frequent keys.

use super::bans::KnownBans;
use super::key_activity::KeyActivity;
use super::token_metrics::TokenMetrics;
use crate::base::clock::Time;
use crate::base::metrics::{Counter, Peak, PerWorker};

#[derive(Debug)]
pub struct LimitMetrics {
    pub name: String,
    pub workers: PerWorker<DecisionCounters>,
    pub keys: PerWorker<KeyActivity>,
    pub bans: PerWorker<KnownBans>,
    /// Stays empty if requests do not cost tokens.
    pub tokens: TokenMetrics,
}

#[derive(Debug, Default)]
pub struct DecisionCounters {
    /// Admitted by this limit and by all others of the route.
    pub admitted: Counter,
    pub rejected: Counter,
    /// Over this limit, but admitted because the limit only reports.
    pub shadowed: Counter,
    /// Over this limit, which answers without saying so.
    pub silenced: Counter,
    /// Held by this limit until there was room or the longest delay was over.
    pub delayed: Counter,
    /// Over this limit, and charged to its pool instead.
    pub overflowed: Counter,
    /// Refused by another limit, so not charged. This limit may or may not have admitted the request.
    pub not_charged: Counter,
    pub exempt: Counter,
    pub blocked: Counter,
    pub banned: Counter,
    /// Not counted because the request has no key.
    pub skipped: Counter,
    /// Refused because the request has no key.
    pub keyless: Counter,
    /// Not decided because the store did not answer.
    pub unknown: Counter,
    /// The largest share of its quota that any recently counted key has used.
    pub fullest: Peak,
}

pub type DecisionCounter = fn(&DecisionCounters) -> &Counter;

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
    pub fn new(name: &str, workers: usize) -> Self {
        Self {
            name: name.to_owned(),
            workers: PerWorker::new(workers),
            keys: PerWorker::new(workers),
            bans: PerWorker::new(workers),
            tokens: TokenMetrics::default(),
        }
    }

    pub fn decisions(&self, count: DecisionCounter) -> u64 {
        self.workers.iter().map(|worker| count(worker).get()).sum()
    }

    /// The largest share of its quota, from 0 to 1, that any recently counted key has used.
    pub fn fullest(&self, now: Time) -> f64 {
        self.workers.iter().map(|worker| worker.fullest.highest(now)).fold(0.0, f64::max)
    }
}
