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

    /// Where the decision of the limits about a request is to be counted. `None` if the request is shed.
    pub fn admits(
        &self,
        priority: u8,
        attributes: &RequestAttributes<'_>,
        now: Time,
        worker: usize,
    ) -> Option<&Counts<Counter>> {
        self.meter.admits(overload::rank(priority, attributes.client, now.seconds()), worker)
    }
}

/// Counts what becomes of the requests for one upstream, and holds its level of shedding.
#[derive(Debug)]
pub struct Meter {
    /// The name of the upstream; empty for routes without one.
    pub name: String,
    level: AtomicU32,
    workers: PerWorker<ByRank>,
}

#[derive(Debug)]
struct ByRank(Box<[Counts<Counter>]>);

impl Default for ByRank {
    fn default() -> Self {
        Self((0..RANKS).map(|_| Counts::default()).collect())
    }
}

/// How many requests limits have admitted and refused, and how many were shed before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts<T> {
    admitted: T,
    refused: T,
    shed: T,
}

impl Counts<Counter> {
    pub fn decided(&self, is_admitted: bool) {
        if is_admitted { self.admitted.one() } else { self.refused.one() }
    }
}

impl Counts<u64> {
    #[expect(clippy::cast_precision_loss, reason = "counts of a window are small")]
    fn since(self, before: Self) -> Counts<f64> {
        Counts {
            admitted: (self.admitted - before.admitted) as f64,
            refused: (self.refused - before.refused) as f64,
            shed: (self.shed - before.shed) as f64,
        }
    }
}

impl Counts<f64> {
    /// How many limits would admit without shedding, if they refused the same share of those that were shed.
    fn wanted(self) -> f64 {
        let decided = self.admitted + self.refused;
        self.admitted + self.shed * if decided > 0.0 { self.admitted / decided } else { 1.0 }
    }
}

impl Meter {
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, level: AtomicU32::new(0), workers: PerWorker::new(workers) }
    }

    /// The counts of this rank if a request of it passes. Otherwise counts the request.
    fn admits(&self, rank: usize, worker: usize) -> Option<&Counts<Counter>> {
        let counts = self.workers.of(worker).0.get(rank)?;
        let level = self.level();
        if level == Level::NONE || level.admits(rank, || fastrand::u8(..)) {
            return Some(counts);
        }
        counts.shed.one();
        None
    }

    pub fn level(&self) -> Level {
        Level(self.level.load(Ordering::Relaxed))
    }

    pub fn shed(&self) -> [u64; HIGHEST_PRIORITY as usize + 1] {
        let counts = self.counts();
        std::array::from_fn(|priority| {
            counts.iter().skip(priority * GROUPS).take(GROUPS).map(|counts| counts.shed).sum()
        })
    }

    fn set_level(&self, level: Level) {
        self.level.store(level.0, Ordering::Relaxed);
    }

    /// By rank.
    fn counts(&self) -> Vec<Counts<u64>> {
        let mut sums = vec![Counts::default(); RANKS];
        for worker in self.workers.iter() {
            for (sum, counts) in sums.iter_mut().zip(&worker.0) {
                sum.admitted += counts.admitted.get();
                sum.refused += counts.refused.get();
                sum.shed += counts.shed.get();
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_when_they_are_shed_or_decided() {
        let meter = Meter::new("a".to_owned(), 2);
        let decided = |rank, worker, is_admitted| meter.admits(rank, worker).map(|counts| counts.decided(is_admitted));
        assert_eq!([decided(5 * GROUPS, 0, true), decided(5 * GROUPS, 1, false)], [Some(()); 2]);
        meter.set_level(Level::for_share(&vec![1.0; RANKS], 1.0));
        assert_eq!([decided(0, 1, true), decided(RANKS - 1, 1, true)], [None, Some(())]);
        assert!(meter.admits(RANKS - 1, 0).is_some(), "its client goes away before it is decided");
        assert_eq!(meter.shed(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let counts = meter.counts();
        let counted = |rank: usize| [counts[rank].admitted, counts[rank].refused, counts[rank].shed];
        assert_eq!([0, 5 * GROUPS, RANKS - 1].map(counted), [[0, 0, 1], [1, 1, 0], [1, 0, 0]]);
    }

    #[test]
    fn what_limits_refuse_takes_nothing_of_what_is_admitted() {
        let wanted = |admitted, refused, shed| Counts { admitted, refused, shed }.wanted().to_string();
        assert_eq!([wanted(20.0, 980.0, 0.0), wanted(10.0, 490.0, 500.0), wanted(0.0, 10.0, 90.0)], ["20", "20", "0"]);
        assert_eq!([wanted(0.0, 0.0, 100.0), wanted(50.0, 0.0, 50.0)], ["100"; 2], "limits refuse nothing");
    }
}
