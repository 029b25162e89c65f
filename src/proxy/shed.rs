//! Sheds requests of low priorities while an upstream or the processors are overloaded.
//!
//! Requests read one level. A thread updates it several times a second from the measurements of workers.

mod cpu;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::clock::Time;
use crate::base::metrics::{Counter, PerWorker};
use crate::config::{self, Config, HIGHEST_PRIORITY, Shed};
use crate::request::decide::RouteLimit;
use crate::request::identify::{KeyCache, RequestAttributes};
use crate::upstream::Upstream;
use crate::upstream::overload::{self, GROUPS, Level, RANKS};

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

/// Counts the requests that arrive for one upstream, and holds its level of shedding.
#[derive(Debug)]
pub struct Meter {
    /// The name of the upstream; empty for routes without one.
    pub name: String,
    level: AtomicU32,
    workers: PerWorker<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// By rank.
    arrived: Box<[Counter]>,
    /// By priority.
    shed: [Counter; HIGHEST_PRIORITY as usize + 1],
}

impl Default for Counts {
    fn default() -> Self {
        Self { arrived: (0..RANKS).map(|_| Counter::default()).collect(), shed: Default::default() }
    }
}

impl Meter {
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, level: AtomicU32::new(0), workers: PerWorker::new(workers) }
    }

    /// Counts a request of this rank. Returns whether it passes.
    fn admits(&self, rank: usize, worker: usize) -> bool {
        let counts = self.workers.of(worker);
        if let Some(arrived) = counts.arrived.get(rank) {
            arrived.one();
        }
        let level = self.level();
        if level == Level::NONE || level.admits(rank, || fastrand::u8(..)) {
            return true;
        }
        if let Some(shed) = counts.shed.get(rank / GROUPS) {
            shed.one();
        }
        false
    }

    pub fn level(&self) -> Level {
        Level(self.level.load(Ordering::Relaxed))
    }

    pub fn shed(&self) -> [u64; HIGHEST_PRIORITY as usize + 1] {
        std::array::from_fn(|priority| {
            self.workers.iter().filter_map(|counts| counts.shed.get(priority)).map(Counter::get).sum()
        })
    }

    fn set_level(&self, level: Level) {
        self.level.store(level.0, Ordering::Relaxed);
    }

    fn arrived(&self) -> Vec<u64> {
        let of_rank = |rank: usize| self.workers.iter().filter_map(move |counts| counts.arrived.get(rank));
        (0..RANKS).map(|rank| of_rank(rank).map(Counter::get).sum()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shed_has_arrived() {
        let meter = Meter::new("a".to_owned(), 2);
        assert!(meter.admits(5 * GROUPS, 0) && meter.admits(5 * GROUPS, 1));
        meter.set_level(Level::for_share(&vec![1.0; RANKS], 1.0));
        assert!(!meter.admits(0, 1) && meter.admits(RANKS - 1, 1));
        assert_eq!(meter.shed(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let arrived = meter.arrived();
        assert_eq!((arrived[0], arrived[5 * GROUPS], arrived[RANKS - 1]), (1, 2, 1));
        assert_eq!(arrived.iter().sum::<u64>(), 4);
    }
}
