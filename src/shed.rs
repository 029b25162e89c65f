//! Sheds requests of low priorities while an upstream or the processors are overloaded.
//!
//! A request reads one level, which a thread computes again a few times a second from what workers have measured.

mod cpu;
mod meter;
mod watch;

use std::sync::Arc;

use crate::clock::Time;
use crate::config::Shed;
use crate::decide::RouteLimit;
use crate::identify::{KeyCache, RequestAttributes};
use crate::overload::level;

pub use meter::{Meter, Waiting};
pub use watch::ShedWatch;

/// What is shed by one configuration, and when.
#[derive(Debug)]
pub struct Shedding {
    /// The targets.
    pub settings: Shed,
    /// One for each upstream that a route has, and one for the routes without.
    pub meters: Vec<Arc<Meter>>,
}

/// What one route needs to shed requests.
#[derive(Debug)]
pub struct RouteShedding {
    /// The priority of its requests.
    pub priority: u8,
    /// The priorities of tiers: the place of the limit on the route, the index of the tier and its priority.
    pub tiers: Vec<(usize, usize, u8)>,
    /// Measures the upstream of the route.
    pub meter: Arc<Meter>,
}

impl RouteShedding {
    /// The priority of a request: that of its tier in the first limit of the route that has one, or else that of the route.
    pub fn priority(&self, limits: &[RouteLimit], attributes: &RequestAttributes<'_>, key_cache: &mut KeyCache) -> u8 {
        let mut asked = None;
        for (place, tier, priority) in &self.tiers {
            let found = match asked {
                Some((last, found)) if last == *place => found,
                _ => limits.get(*place).and_then(|limit| limit.rates.tier(attributes, key_cache)),
            };
            asked = Some((*place, found));
            if found == Some(*tier) {
                return *priority;
            }
        }
        self.priority
    }

    /// Whether a request of this priority passes, which came at `now`.
    pub fn admits(&self, priority: u8, attributes: &RequestAttributes<'_>, now: Time, worker: usize) -> bool {
        self.meter.admits(level::rank(priority, attributes.client, now.seconds()), worker)
    }
}
