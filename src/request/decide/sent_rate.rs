//! The rate that a proxy has sent with its question instead of those of a key.

use std::sync::{Arc, OnceLock};

use crate::limit::{Limit, Rate, Strategy};
use crate::request::descriptors::messages::{RateLimitOverride, Unit};
use crate::sources::quotas::QuotaRates;

#[derive(Clone)]
pub(super) struct SentRate {
    sent: RateLimitOverride,
    /// How many gateways divide the rate; 1 if they share counters.
    gateways: u64,
    /// Composed when the rates of the key are known. `None` if its limit cannot count the rate.
    composed: OnceLock<Option<Arc<QuotaRates>>>,
}

impl SentRate {
    pub(super) fn new(sent: RateLimitOverride, gateways: Option<u64>) -> Self {
        Self { sent, gateways: gateways.unwrap_or(1), composed: OnceLock::new() }
    }

    /// Whether nothing may pass.
    pub(super) fn is_nothing(&self) -> bool {
        self.sent.requests_per_unit == 0 && self.sent.unit().window().is_some()
    }

    /// The rates that apply instead of those of this `limit`, which are the key's own.
    pub(super) fn instead_of(&self, limit: &Limit) -> Option<&QuotaRates> {
        let composed = self.composed.get_or_init(|| {
            let rates = rates(self.sent, limit.rates(), self.gateways)?;
            let sent = Limit::counting(limit.unit(), limit.name(), &rates).watched_from(limit.watched);
            Some(Arc::new(QuotaRates::new(0, Arc::new(sent))))
        });
        composed.as_deref()
    }
}

/// The rates that apply instead of the key's `own`. If one of these has the same unit, the sent rate takes its place, and the
/// others admit everything: so all are counted where they were. Otherwise the sent rate is alone, and begins at 0.
fn rates(sent: RateLimitOverride, own: &[Rate], gateways: u64) -> Option<Vec<Rate>> {
    let (window, quota) = (sent.unit().window()?, u64::from(sent.requests_per_unit));
    let same = own.iter().position(|rate| Unit::of(rate) == sent.unit());
    let mut strategies = own.iter().map(Rate::strategy);
    let strategy = match same {
        Some(same) => strategies.nth(same),
        None => strategies.find(|strategy| !matches!(strategy, Strategy::Calendar(_))),
    };
    let rate = Rate::new(quota, window).ok()?;
    let rate = match strategy.cloned() {
        Some(Strategy::TokenBucket { .. }) => rate.with_strategy(Strategy::TokenBucket { burst: quota }),
        Some(strategy) => rate.with_strategy(strategy),
        None => Ok(rate),
    };
    let rate = rate.ok()?.part(gateways);
    let Some(same) = same else { return Some(vec![rate]) };
    let mut rates: Vec<_> = own.iter().map(Rate::unlimited).collect();
    rates[same] = rate;
    Some(rates)
}
