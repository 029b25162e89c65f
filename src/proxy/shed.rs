//! Sheds requests of low priorities while an upstream or the processors are overloaded.
//!
//! Requests read one level. A thread updates it several times a second from the measurements of workers.

mod cpu;
mod meter;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::clock::Time;
use crate::config::{self, Config, Shed};
use crate::request::decide::RouteLimit;
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::upstream::{Upstream, overload};

pub use meter::Meter;
pub use watch::ShedWatch;

#[derive(Debug)]
pub struct Shedding {
    pub settings: Shed,
    /// One for each upstream of a route, and one for the routes without an upstream.
    pub meters: Vec<Arc<Meter>>,
    pub upstreams: Vec<Arc<Upstream>>,
}

#[derive(Debug)]
pub struct RouteShedding {
    pub priority: u8,
    /// The priorities of tiers: the place of the limit on the route, the index of the tier and its priority.
    pub tiers: Vec<(usize, usize, u8)>,
    pub meter: Arc<Meter>,
}

impl Shedding {
    pub fn new<'r>(
        settings: Shed,
        routes: impl Iterator<Item = &'r RouteShedding>,
        upstreams: &[Arc<Upstream>],
    ) -> Self {
        let by_name: BTreeMap<_, _> = routes.map(|route| (&route.meter.name, &route.meter)).collect();
        Self { settings, meters: by_name.into_values().cloned().collect(), upstreams: upstreams.to_vec() }
    }
}

impl RouteShedding {
    pub fn new(config: &Config, route: &config::Route, meter: Arc<Meter>) -> Self {
        let limits = route.limits.iter().filter_map(|index| config.limits.get(*index)).enumerate();
        let tiers = limits.filter_map(|(place, limit)| Some((place, limit.tiers.as_ref()?)));
        let tiers = tiers.flat_map(|(place, tiers)| {
            let index = |name: &String| tiers.rates.iter().position(|(tier, _)| tier == name);
            tiers.priorities.iter().filter_map(move |(name, priority)| Some((place, index(name)?, *priority)))
        });
        Self { priority: route.priority, tiers: tiers.collect(), meter }
    }

    /// The priority of a request: that of its tier in the first limit of the route that has one, otherwise that of the route.
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

    pub fn admits(&self, priority: u8, attributes: &RequestAttributes<'_>, now: Time, worker: usize) -> bool {
        self.meter.admits(overload::rank(priority, attributes.client, now.seconds()), worker)
    }
}
