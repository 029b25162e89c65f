//! The rate that a proxy has sent with its question instead of those of a limit.

use std::sync::Arc;

use crate::limit::{Limit, Rate, Strategy};
use crate::request::descriptors::messages::RateLimitOverride;
use crate::sources::quotas::QuotaRates;

#[derive(Clone)]
pub(super) enum SentRate {
    Rates(Arc<QuotaRates>),
    /// The proxy allows nothing.
    Nothing,
}

impl SentRate {
    /// A rate in place of those of `limit`: counted like these, and divided among `gateways` like these. `None` if the limit
    /// cannot count it.
    pub(super) fn new(sent: RateLimitOverride, limit: &Limit, gateways: Option<u64>) -> Option<Self> {
        let (window, quota) = (sent.unit().window()?, u64::from(sent.requests_per_unit));
        if quota == 0 {
            return Some(Self::Nothing);
        }
        let mut own = limit.rates().iter().map(Rate::strategy);
        let strategy = match own.find(|strategy| !matches!(strategy, Strategy::Calendar(_))).cloned() {
            Some(Strategy::TokenBucket { .. }) => Some(Strategy::TokenBucket { burst: quota }),
            strategy => strategy,
        };
        let rate = Rate::new(quota, window).ok()?;
        let rate = strategy.map_or(Ok(rate.clone()), |strategy| rate.with_strategy(strategy)).ok()?;
        let part = rate.part(gateways.unwrap_or(1));
        let limit = Limit::new(limit.name(), &[part]).watched_from(limit.watched());
        Some(Self::Rates(Arc::new(QuotaRates::new(0, Arc::new(limit)))))
    }
}
