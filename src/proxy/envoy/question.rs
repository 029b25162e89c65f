//! Finds what to ask about a call: the limits, their descriptors and costs.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::fingerprint::Fingerprint;
use crate::proxy::worker_snapshot::{Combination, WorkerSnapshot};
use crate::request::decide::RouteLimit;
use crate::request::descriptors::Descriptor;
use crate::request::descriptors::messages::RateLimitRequest;
use crate::request::identify::{KeyCache, RequestAttributes};

/// The limits and costs that one call asks about. A place is the index of a limit.
pub(super) struct Question<'c> {
    pub(super) limits: Combination,
    /// By place.
    pub(super) descriptors: SmallVec<[Descriptor<'c>; 4]>,
    /// The places for each descriptor of the call.
    pub(super) places: Vec<SmallVec<[usize; 2]>>,
    /// By place: the counter that the limit is asked for, needed if one limit is asked several times.
    counters: SmallVec<[Option<CounterId>; 4]>,
}

/// The counter of a descriptor within its limit: by its key, if any, and by its tier, since each tier has its own counters.
type CounterId = (Option<Fingerprint>, Option<usize>);

impl<'c> Question<'c> {
    /// Finds the limits of each descriptor. If several descriptors have the same counter, it is asked once for their total
    /// cost: otherwise each of them would fit although all together do not.
    pub(super) fn new(
        gateway: &WorkerSnapshot,
        call: &'c RateLimitRequest,
        attributes: &RequestAttributes<'c>,
    ) -> Self {
        let (limits, descriptors, counters) = (Combination::new(), SmallVec::new(), SmallVec::new());
        let mut asked = Self { limits, descriptors, places: Vec::new(), counters };
        for descriptor in &call.descriptors {
            let rule = gateway.descriptors.find(&call.domain, descriptor);
            let is_report = rule.is_some_and(|rule| gateway.descriptors.reports(rule));
            let descriptor = Descriptor { entries: &descriptor.entries, hits: call.hits(descriptor), is_report };
            let limits = rule.and_then(|rule| Some((rule, gateway.rule(rule)?.limits.len())));
            let places = limits.into_iter().flat_map(|(rule, count)| (0..count).map(move |at| (rule, at)));
            let places = places.filter_map(|limit| asked.add(gateway, limit, descriptor, attributes)).collect();
            asked.places.push(places);
        }
        asked
    }

    fn add(
        &mut self,
        gateway: &WorkerSnapshot,
        limit: (usize, usize),
        descriptor: Descriptor<'c>,
        attributes: &RequestAttributes<'_>,
    ) -> Option<usize> {
        let of = |(rule, at): (usize, usize)| gateway.rule(rule)?.limits.get(at);
        let route_limit = of(limit)?;
        let mut counter = None;
        for place in 0..self.limits.len() {
            let Some(other) = of(self.limits[place]) else { continue };
            if !Arc::ptr_eq(&other.metrics, &route_limit.metrics) {
                continue;
            }
            let own = *counter.get_or_insert_with(|| counter_id(route_limit, &descriptor, attributes));
            let its = &self.descriptors[place];
            if its.is_report != descriptor.is_report {
                continue;
            }
            if *self.counters[place].get_or_insert_with(|| counter_id(other, its, attributes)) == own {
                let hits = &mut self.descriptors[place].hits;
                *hits = hits.saturating_add(descriptor.hits);
                return Some(place);
            }
        }
        self.limits.push(limit);
        self.descriptors.push(descriptor);
        self.counters.push(counter);
        Some(self.limits.len() - 1)
    }
}

fn counter_id(limit: &RouteLimit, descriptor: &Descriptor<'_>, attributes: &RequestAttributes<'_>) -> CounterId {
    let attributes = RequestAttributes { descriptors: std::slice::from_ref(descriptor), ..*attributes };
    let cache = &mut KeyCache::default();
    (limit.key.extract(&attributes, usize::MAX, cache), limit.rates.tier(&attributes, cache))
}
