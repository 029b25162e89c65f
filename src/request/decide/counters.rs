//! Counts the decisions of each limit, how full its keys are, its most frequent keys, and the tokens that its requests have
//! used, by model.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::bans::KnownBans;
use super::key_activity::KeyActivity;
use crate::base::clock::Time;
use crate::base::metrics::{Counter, Peak, PerWorker};
use crate::tokens::Usage;

/// The most models that are told apart, because clients choose the names.
const MOST_MODELS: usize = 64;
/// Of a model's name, in bytes.
const LONGEST_NAME: usize = 64;
/// Stands for all other models, and for requests that name none.
pub const OTHER_MODELS: &str = "other";

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
    /// Of a limit that counts bytes.
    pub bytes: ByteCounters,
}

#[derive(Debug, Default)]
pub struct ByteCounters {
    /// The bytes that have passed.
    pub requests: Counter,
    pub responses: Counter,
    /// Bodies that were cut because there was no room for more.
    pub cut: Counter,
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

/// The tokens of one limit on all workers. Responses end so rarely that workers do not compete for this lock.
#[derive(Debug, Default)]
pub struct TokenMetrics(Mutex<BTreeMap<String, TokenCounts>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// What was used, as stated in responses or as estimated.
    pub used: Usage,
    /// What requests were charged before their responses ended.
    pub reserved: u64,
    /// What requests were charged in the end.
    pub settled: u64,
    /// How many responses did not state their use of tokens.
    pub estimated: u64,
    pub cut: u64,
    /// How many numbers in responses were not counts of tokens.
    pub ignored: u64,
}

impl TokenMetrics {
    /// Counts a response to a request that names `model`.
    pub fn record(&self, model: Option<&[u8]>, counts: TokenCounts) {
        let name = model.and_then(|model| std::str::from_utf8(model).ok());
        let is_shown = |name: &&str| name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
        let name = name.filter(is_shown).unwrap_or(OTHER_MODELS);
        let models = &mut *self.0.lock();
        let name = if models.contains_key(name) || models.len() < MOST_MODELS { name } else { OTHER_MODELS };
        let total = match models.get_mut(name) {
            Some(total) => total,
            None => models.entry(name.to_owned()).or_default(),
        };
        total.add(counts);
    }

    pub fn by_model(&self) -> BTreeMap<String, TokenCounts> {
        self.0.lock().clone()
    }

    pub fn total(&self) -> TokenCounts {
        let mut total = TokenCounts::default();
        self.0.lock().values().for_each(|counts| total.add(*counts));
        total
    }
}

impl TokenCounts {
    fn add(&mut self, other: Self) {
        let Self { used, reserved, settled, estimated, cut, ignored } = other;
        self.used.input += used.input;
        self.used.cached += used.cached;
        self.used.output += used.output;
        self.reserved += reserved;
        self.settled += settled;
        self.estimated += estimated;
        self.cut += cut;
        self.ignored += ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_clients_take_a_bounded_place() {
        let (metrics, one) = (TokenMetrics::default(), TokenCounts { settled: 1, ..TokenCounts::default() });
        for number in 0..1_000 {
            metrics.record(Some(format!("model-{number}").as_bytes()), one);
        }
        metrics.record(Some(b"model-1"), one);
        metrics.record(Some("x".repeat(65).as_bytes()), one);
        metrics.record(Some(b"two words"), one);
        metrics.record(None, one);
        let models = metrics.by_model();
        assert_eq!(models.len(), MOST_MODELS + 1);
        assert_eq!((models["model-1"].settled, models[OTHER_MODELS].settled), (2, 1_000 - MOST_MODELS as u64 + 3));
        assert_eq!(metrics.total().settled, 1_004);
    }
}
