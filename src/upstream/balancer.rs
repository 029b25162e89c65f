//! Chooses an endpoint for each request.
//!
//! The candidates are the endpoints that get requests now. They are computed when that changes, and replaced as a whole, so a
//! request reads them without a lock, in a handful of locked instructions.

mod rendezvous;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;

use super::endpoint::Endpoint;
use super::health::Availability;
use crate::base::clock::Monotonic;
use crate::config::{Balance, Overload};
use rendezvous::Rendezvous;

/// How often a random choice is repeated if it hits an endpoint that cannot get the request.
const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Balancer {
    balance: Balance,
    overload: Overload,
    candidates: ArcSwap<Candidates>,
    turn: AtomicUsize,
}

/// The weight is 1 to 100.
#[derive(Clone, Debug)]
pub(super) struct Weighted {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) weight: u32,
}

#[derive(Debug, Default)]
struct Candidates {
    all: Vec<Weighted>,
    availabilities: Vec<Availability>,
    /// Those that get requests.
    usable: Vec<Weighted>,
    /// Their indices, each as often as its weight, spread evenly.
    schedule: Vec<usize>,
    rendezvous: Rendezvous,
}

/// Why a request is sent to no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFound {
    /// Those that were not tried have as many requests in flight as they may.
    Full,
    /// There is no endpoint, or all were tried.
    NoneLeft,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Criteria<'a> {
    /// The hash of the key by which the request is balanced, if the upstream balances by keys and the request has one.
    pub(super) key: Option<u64>,
    /// The ids of endpoints that have failed to serve it.
    pub(super) tried: &'a [usize],
}

impl Balancer {
    pub(super) fn new(balance: Balance, overload: Overload, endpoints: Vec<Weighted>) -> Self {
        let candidates = ArcSwap::from_pointee(Candidates::new(endpoints));
        Self { balance, overload, candidates, turn: AtomicUsize::new(0) }
    }

    pub(super) fn set(&self, endpoints: Vec<Weighted>) {
        self.candidates.store(Arc::new(Candidates::new(endpoints)));
    }

    /// Computes again which endpoints get requests. Returns whether that has changed.
    pub(super) fn refresh(&self) -> bool {
        let current = self.candidates.load();
        let has_changed = !current.all.iter().map(availability).eq(current.availabilities.iter().copied());
        if has_changed {
            self.set(current.all.clone());
        }
        has_changed
    }

    pub(super) fn endpoints(&self) -> Vec<Weighted> {
        self.candidates.load().all.clone()
    }

    /// The clients for which an endpoint has lately worked, as bits.
    pub(super) fn served_lately(&self, now: Monotonic) -> u64 {
        let current = self.candidates.load();
        current.all.iter().fold(0, |clients, weighted| clients | weighted.endpoint.state.load.served_lately(now))
    }

    pub(super) fn has_other(&self, than: &Endpoint) -> bool {
        let current = self.candidates.load();
        current
            .usable
            .iter()
            .any(|other| other.endpoint.id != than.id && availability(other) == Availability::Available)
    }

    /// Whether the request can be sent now to an endpoint that was not tried, and the availability of that endpoint.
    pub(super) fn can_try(&self, criteria: Criteria<'_>) -> Option<Availability> {
        self.find(&self.candidates.load(), criteria).ok().map(availability)
    }

    /// An endpoint that gets requests, was not `tried`, and has the same name but an address of the other family. The request
    /// counts as begun there.
    pub(super) fn sibling(&self, of: &Endpoint, tried: &[usize]) -> Option<Arc<Endpoint>> {
        let current = self.candidates.load();
        let usable = current.usable.iter().map(|weighted| &weighted.endpoint);
        let mut siblings = usable.filter(|one| of.target.is_sibling(&one.target));
        siblings.find(|one| !tried.contains(&one.id) && self.begin(one)).cloned()
    }

    pub(super) fn most_in_flight(&self, endpoint: &Endpoint) -> Option<usize> {
        match self.overload.adaptive {
            Some(_) => Some(endpoint.state.adaptive.get()),
            None => self.overload.max_in_flight,
        }
    }

    /// Begins a request at this endpoint, unless it has as many as it may.
    fn begin(&self, endpoint: &Endpoint) -> bool {
        endpoint.state.load.begin(self.most_in_flight(endpoint))
    }

    /// The request already counts as begun at the endpoint.
    pub(super) fn choose(&self, criteria: Criteria<'_>) -> Result<Arc<Endpoint>, NotFound> {
        let candidates = &*self.candidates.load();
        // Another worker may take the last place of an endpoint at the same time.
        for _ in 0..TRIES {
            let found = self.find(candidates, criteria)?;
            if self.begin(&found.endpoint) {
                return Ok(found.endpoint.clone());
            }
        }
        Err(NotFound::Full)
    }

    fn find<'c>(&self, candidates: &'c Candidates, criteria: Criteria<'_>) -> Result<&'c Weighted, NotFound> {
        if let [only] = candidates.all.as_slice()
            && criteria.tried.is_empty()
        {
            return if self.has_room(only) { Ok(only) } else { Err(NotFound::Full) };
        }
        let chosen = match (&self.balance, criteria.key) {
            // A further attempt takes no turn. Otherwise one of two servers that fails would always be the next in turn.
            (Balance::RoundRobin, _) if criteria.tried.is_empty() => self.next_in_turn(candidates, criteria),
            (Balance::Hash(_), Some(key)) => {
                candidates.rendezvous.find(key, |weighted| self.is_open(weighted, criteria))
            }
            _ => self.less_busy(candidates, criteria),
        };
        let usable = &candidates.usable;
        if let Some(open) = chosen.or_else(|| usable.iter().find(|weighted| self.is_open(weighted, criteria))) {
            return Ok(open);
        }
        let is_tried = |weighted: &Weighted| criteria.tried.contains(&weighted.endpoint.id);
        if !usable.iter().all(is_tried) {
            return Err(NotFound::Full);
        }
        // Endpoints that get no requests are better than a failure.
        let mut others = candidates.all.iter().filter(|weighted| !is_tried(weighted)).peekable();
        let why_none = if others.peek().is_some() { NotFound::Full } else { NotFound::NoneLeft };
        others.find(|weighted| self.has_room(weighted)).ok_or(why_none)
    }

    fn has_room(&self, weighted: &Weighted) -> bool {
        self.most_in_flight(&weighted.endpoint).is_none_or(|most| weighted.endpoint.state.load.in_flight() < most)
    }

    fn is_open(&self, weighted: &Weighted, criteria: Criteria<'_>) -> bool {
        !criteria.tried.contains(&weighted.endpoint.id) && self.has_room(weighted)
    }

    fn next_in_turn<'c>(&self, candidates: &'c Candidates, criteria: Criteria<'_>) -> Option<&'c Weighted> {
        let turns = &candidates.schedule;
        (0..turns.len()).find_map(|_| {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % turns.len();
            let weighted = candidates.usable.get(*turns.get(turn)?)?;
            self.is_open(weighted, criteria).then_some(weighted)
        })
    }

    /// The less busy one of two that are chosen at random by their weights (Mitzenmacher, "The Power of Two Choices in
    /// Randomized Load Balancing", 2001).
    fn less_busy<'c>(&self, candidates: &'c Candidates, criteria: Criteria<'_>) -> Option<&'c Weighted> {
        let turns = candidates.schedule.len();
        let at = |turn| {
            let weighted = candidates.usable.get(*candidates.schedule.get(turn)?)?;
            self.is_open(weighted, criteria).then_some((turn, weighted))
        };
        let (taken, first) = (0..TRIES).find_map(|_| at(fastrand::usize(..turns.max(1))))?;
        if candidates.usable.len() == 1 {
            return Some(first);
        }
        // Another turn is another endpoint, unless its weight gives it several turns.
        let another = || at((taken + fastrand::usize(1..turns.max(2))) % turns);
        let is_another = |(_, second): &(usize, &Weighted)| second.endpoint.id != first.endpoint.id;
        let Some((_, second)) = (0..TRIES).find_map(|_| another().filter(is_another)) else { return Some(first) };
        let load = |one: &Weighted, other: &Weighted| {
            one.endpoint.state.load.in_flight().saturating_mul(other.weight as usize)
        };
        Some(if load(second, first) < load(first, second) { second } else { first })
    }
}

fn availability(weighted: &Weighted) -> Availability {
    weighted.endpoint.state.availability()
}

/// Endpoints get requests if none has a lower rank.
fn rank(availability: Availability) -> u8 {
    match availability {
        Availability::Available => 0,
        Availability::Unchecked => 1,
        Availability::Unhealthy | Availability::Ejected => 2,
    }
}

impl Candidates {
    fn new(all: Vec<Weighted>) -> Self {
        let availabilities: Vec<_> = all.iter().map(availability).collect();
        // If no endpoint is healthy, the checks may be wrong rather than all endpoints.
        let best = availabilities.iter().copied().map(rank).min();
        let is_best = |(_, availability): &(_, &Availability)| Some(rank(**availability)) == best;
        let usable: Vec<_> =
            all.iter().zip(&availabilities).filter(is_best).map(|(weighted, _)| weighted.clone()).collect();
        let schedule = schedule(&usable.iter().map(|weighted| weighted.weight).collect::<Vec<_>>());
        let rendezvous = Rendezvous::new(&usable);
        Self { all, availabilities, usable, schedule, rendezvous }
    }
}

/// Spreads indices evenly by their weights (smooth weighted round-robin): the next turn goes to the index whose share is
/// furthest behind.
fn schedule(weights: &[u32]) -> Vec<usize> {
    let total: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
    let mut owed = vec![0i64; weights.len()];
    let mut turn = || {
        owed.iter_mut().zip(weights).for_each(|(owed, weight)| *owed += i64::from(*weight));
        let chosen = (0..owed.len()).max_by_key(|index| (owed[*index], std::cmp::Reverse(*index)))?;
        owed[chosen] -= total;
        Some(chosen)
    };
    (0..total).map_while(|_| turn()).collect()
}

#[cfg(test)]
mod tests;
