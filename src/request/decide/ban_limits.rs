//! By what the refusals and the bans of a limit are counted: two limits besides its own.

use std::sync::Arc;

use crate::config;
use crate::limit::{Limit, Rate, Strategy};

/// Those of one limit.
#[derive(Clone, Debug)]
pub struct BanLimits {
    /// Its bans, in the store.
    pub bans: Arc<Limit>,
    /// Its refusals, in this process: a key may have so many within a time.
    pub strikes: Arc<Limit>,
}

impl BanLimits {
    /// Those of a limit, if it bans keys.
    pub fn new(limit: &config::Limit) -> Option<Self> {
        let ban = limit.ban.as_ref()?;
        let bans = Limit::bans(&limit.name, ban.first, ban.longest).ok()?;
        let strikes =
            Rate::new(ban.after, ban.within).and_then(|rate| rate.with_strategy(Strategy::SlidingLog)).ok()?;
        Some(Self { bans: Arc::new(bans), strikes: Arc::new(Limit::new(&limit.name, &[strikes])) })
    }
}
