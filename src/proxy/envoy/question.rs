//! What the limits of a call are asked: which limits, each about which descriptor, and what that costs.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::proxy::worker_snapshot::{Combination, WorkerSnapshot};
use crate::request::descriptors::Descriptor;
use crate::request::descriptors::messages::RateLimitRequest;
use crate::request::identify::{KeyCache, RequestAttributes};

/// See the head of this file. A place is the index of a limit.
pub(super) struct Question<'c> {
    /// The limits.
    pub(super) limits: Combination,
    /// What each is asked about.
    pub(super) descriptors: SmallVec<[Descriptor<'c>; 4]>,
    /// The places of each descriptor of the call.
    pub(super) places: Vec<SmallVec<[usize; 2]>>,
}

impl<'c> Question<'c> {
    /// Finds what limits each descriptor. If several name the same counter, it is asked once, for what they cost together:
    /// otherwise each of them would fit where all do not.
    pub(super) fn new(
        gateway: &WorkerSnapshot,
        call: &'c RateLimitRequest,
        attributes: &RequestAttributes<'c>,
    ) -> Self {
        let mut asked = Self { limits: Combination::new(), descriptors: SmallVec::new(), places: Vec::new() };
        for descriptor in &call.descriptors {
            let rule = gateway.descriptors.find(&call.domain, descriptor);
            let descriptor = Descriptor { entries: &descriptor.entries, hits: call.hits(descriptor) };
            let limits = rule.and_then(|rule| Some((rule, gateway.rule(rule)?.limits.len())));
            let places = limits.into_iter().flat_map(|(rule, count)| (0..count).map(move |at| (rule, at)));
            let places = places.map(|limit| asked.add(gateway, limit, descriptor, attributes)).collect();
            asked.places.push(places);
        }
        asked
    }

    /// Asks a limit about a descriptor. Returns its place.
    fn add(
        &mut self,
        gateway: &WorkerSnapshot,
        limit: (usize, usize),
        descriptor: Descriptor<'c>,
        attributes: &RequestAttributes<'_>,
    ) -> usize {
        let of = |(rule, at): (usize, usize)| gateway.rule(rule)?.limits.get(at);
        let key = |limit, descriptor: &Descriptor<'_>| {
            let attributes = RequestAttributes { descriptors: std::slice::from_ref(descriptor), ..*attributes };
            of(limit)?.key.extract(&attributes, usize::MAX, &mut KeyCache::default())
        };
        let is_same = |place: &usize| {
            let (other, its) = (self.limits[*place], &self.descriptors[*place]);
            let is_same_limit = of(other).zip(of(limit)).is_some_and(|(a, b)| Arc::ptr_eq(&a.metrics, &b.metrics));
            is_same_limit && key(other, its) == key(limit, &descriptor)
        };
        if let Some(place) = (0..self.limits.len()).find(is_same) {
            let hits = &mut self.descriptors[place].hits;
            *hits = hits.saturating_add(descriptor.hits);
            return place;
        }
        self.limits.push(limit);
        self.descriptors.push(descriptor);
        self.limits.len() - 1
    }
}
