//! Tells the documents of a body apart that is an array, such as a batch of JSON-RPC: each counts under its own key, in one
//! decision.
//!
//! A limit whose key is in the body is asked once for each different key, for all documents with that key together.

use super::RouteLimit;
use crate::base::fingerprint::Fingerprint;
use crate::config::Cost;
use crate::request::identify::body::{BodyProblem, InspectedBody, MAX_KEYS};
use crate::request::identify::{KeyCache, RequestAttributes};

/// Limits to ask, each with its place on the route.
pub type PlacedLimits = Vec<(usize, RouteLimit)>;

/// A counter within its limit: by its key, if any, and by its tier, since each tier has counters of its own.
pub type KeyCounter = (Option<Fingerprint>, Option<usize>);

/// The limits to ask about a request whose body is an array. The first ones have the places of the route. `None` if those of
/// the route suffice, because no key is in the body. Fails if the documents have more different keys than [`MAX_KEYS`].
pub fn of_elements(
    limits: &[RouteLimit],
    attributes: &RequestAttributes<'_>,
    key_cache: &mut KeyCache,
) -> Result<Option<PlacedLimits>, BodyProblem> {
    let elements = attributes.body.map_or(1, InspectedBody::elements);
    if elements == 1 || !limits.iter().any(RouteLimit::is_in_body) {
        return Ok(None);
    }
    let mut asked: PlacedLimits = limits.iter().cloned().enumerate().collect();
    for (place, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.is_in_body()) {
        // Each with the first document that it counts, and how many it counts.
        let (mut counters, mut read) = (Vec::<(KeyCounter, usize, u64)>::new(), limit.clone());
        for element in 0..elements {
            read.set_place(element);
            let counter = read.counter(attributes, key_cache);
            if let Some((.., count)) = counters.iter_mut().find(|(known, ..)| *known == counter) {
                *count += 1;
            } else if counters.len() < MAX_KEYS {
                counters.push((counter, element, 1));
            } else {
                return Err(BodyProblem::TooManyElements);
            }
        }
        // A pool cannot tell whose documents it takes.
        let has_pool = counters.len() == 1 || limit.overflow.is_some_and(|pool| !limits[pool].is_in_body());
        let of_counter = |(_, first, count): (KeyCounter, usize, u64)| {
            let mut limit = limit.clone();
            limit.set_place(first);
            limit.cost = limit.cost.times(count);
            limit.overflow = limit.overflow.filter(|_| has_pool);
            (place, limit)
        };
        let mut of_counters = counters.into_iter().map(of_counter);
        if let Some(first) = of_counters.next() {
            asked[place] = first;
        }
        asked.extend(of_counters);
    }
    Ok(Some(asked))
}

impl RouteLimit {
    /// Whether its key or its tier is in the body.
    fn is_in_body(&self) -> bool {
        self.key.is_in_body() || self.rates.is_in_body()
    }

    /// Reads the key and the tier as in [`KeyExtractor::set_place`](crate::request::identify::KeyExtractor::set_place).
    pub(super) fn set_place(&mut self, index: usize) {
        self.key.set_place(index);
        self.rates.set_place(index);
    }

    pub fn counter(&self, attributes: &RequestAttributes<'_>, key_cache: &mut KeyCache) -> KeyCounter {
        (self.key.extract_rare(attributes, key_cache), self.rates.tier(attributes, key_cache))
    }
}

impl Cost {
    /// The cost of several documents. What each of them costs is unknown if the head or the response tells the cost, so then
    /// each key is charged all of it.
    fn times(&self, count: u64) -> Self {
        match self {
            Self::Fixed(amount) => Self::Fixed(amount.saturating_mul(count)),
            Self::OnStatus(amount, statuses) => Self::OnStatus(amount.saturating_mul(count), statuses.clone()),
            Self::Elements => Self::Fixed(count),
            other => other.clone(),
        }
    }
}
