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
use crate::config::{Balance, Overload};
use rendezvous::Rendezvous;

/// How often a random choice is repeated if it hits an endpoint that cannot get the request.
const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Balancer {
    strategy: Strategy,
    most: MostInFlight,
    candidates: ArcSwap<Candidates>,
    turn: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum MostInFlight {
    Unlimited,
    Fixed(usize),
    /// By the latency of each endpoint.
    Adaptive,
}

impl From<Overload> for MostInFlight {
    fn from(Overload { max_in_flight, adaptive, .. }: Overload) -> Self {
        match (adaptive, max_in_flight) {
            (Some(_), _) => Self::Adaptive,
            (None, Some(most)) => Self::Fixed(most),
            (None, None) => Self::Unlimited,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Strategy {
    RoundRobin,
    LeastRequests,
    Hash,
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
    /// Indices of endpoints that get requests.
    usable: Vec<usize>,
    /// The same indices, each as often as its weight, spread evenly.
    schedule: Vec<usize>,
    rendezvous: Rendezvous,
}

#[derive(Debug)]
pub(super) enum Choice {
    /// The request already counts as begun at this endpoint.
    Endpoint(Arc<Endpoint>),
    /// All endpoints have as many requests in flight as they may.
    Full,
    /// There is no endpoint, or all were tried.
    None,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Criteria<'a> {
    /// The hash of the key by which the request is balanced, if the upstream balances by keys and the request has one.
    pub(super) key: Option<u64>,
    /// The ids of endpoints that have failed to serve it.
    pub(super) tried: &'a [usize],
}

impl Balancer {
    pub(super) fn new(balance: &Balance, most: MostInFlight, endpoints: Vec<Weighted>) -> Self {
        let strategy = match balance {
            Balance::RoundRobin => Strategy::RoundRobin,
            Balance::LeastRequests => Strategy::LeastRequests,
            Balance::Hash(_) => Strategy::Hash,
        };
        let candidates = ArcSwap::from_pointee(Candidates::new(endpoints));
        Self { strategy, most, candidates, turn: AtomicUsize::new(0) }
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

    pub(super) fn has_other(&self, than: &Endpoint) -> bool {
        let current = self.candidates.load();
        let mut usable = current.usable.iter().filter_map(|index| current.all.get(*index));
        usable.any(|other| other.endpoint.id != than.id && availability(other) == Availability::Available)
    }

    /// Whether the request can be sent now to an endpoint that was not tried, and the availability of that endpoint.
    pub(super) fn can_try(&self, criteria: Criteria<'_>) -> Option<Availability> {
        self.find(&self.candidates.load(), criteria).ok().map(availability)
    }

    /// An endpoint that gets requests, was not `tried`, and has the same name but an address of the other family. The request
    /// counts as begun there.
    pub(super) fn sibling(&self, of: &Endpoint, tried: &[usize]) -> Option<Arc<Endpoint>> {
        let current = self.candidates.load();
        let usable = current.usable.iter().filter_map(|index| current.all.get(*index));
        let mut siblings = usable.map(|weighted| &weighted.endpoint).filter(|one| of.target.is_sibling(&one.target));
        siblings.find(|one| !tried.contains(&one.id) && self.begin(one)).cloned()
    }

    pub(super) fn most_in_flight(&self, endpoint: &Endpoint) -> Option<usize> {
        match self.most {
            MostInFlight::Unlimited => None,
            MostInFlight::Fixed(most) => Some(most),
            MostInFlight::Adaptive => Some(endpoint.state.adaptive.get()),
        }
    }

    /// Begins a request at this endpoint, unless it has as many as it may.
    fn begin(&self, endpoint: &Endpoint) -> bool {
        endpoint.state.load.begin(self.most_in_flight(endpoint))
    }

    pub(super) fn choose(&self, criteria: Criteria<'_>) -> Choice {
        let candidates = &*self.candidates.load();
        let mut is_full = false;
        // Another worker may take the last place of an endpoint at the same time.
        for _ in 0..TRIES {
            match self.find(candidates, criteria) {
                Ok(found) if self.begin(&found.endpoint) => return Choice::Endpoint(found.endpoint.clone()),
                Ok(_) => {}
                Err(NotFound::Full) => {
                    is_full = true;
                    break;
                }
                Err(NotFound::NoneLeft) => return Choice::None,
            }
        }
        if is_full || !candidates.usable.is_empty() { Choice::Full } else { Choice::None }
    }

    fn find<'c>(&self, candidates: &'c Candidates, criteria: Criteria<'_>) -> Result<&'c Weighted, NotFound> {
        if let [only] = candidates.all.as_slice()
            && criteria.tried.is_empty()
        {
            return if self.has_room(only) { Ok(only) } else { Err(NotFound::Full) };
        }
        let chosen = match (self.strategy, criteria.key) {
            // A further attempt takes no turn. Otherwise one of two servers that fails would always be the next in turn.
            (Strategy::RoundRobin, _) if criteria.tried.is_empty() => self.next_in_turn(candidates, criteria),
            (Strategy::Hash, Some(key)) => {
                candidates.rendezvous.find(key, &candidates.all, |weighted| self.is_open(weighted, criteria))
            }
            (Strategy::RoundRobin | Strategy::LeastRequests, _) | (Strategy::Hash, None) => {
                self.less_busy(candidates, criteria)
            }
        };
        if let Some(chosen) = chosen {
            return Ok(chosen);
        }
        let usable = || candidates.usable.iter().filter_map(|index| candidates.all.get(*index));
        let is_tried = |weighted: &&Weighted| criteria.tried.contains(&weighted.endpoint.id);
        if let Some(open) = usable().find(|weighted| self.is_open(weighted, criteria)) {
            return Ok(open);
        }
        if !usable().all(|weighted| is_tried(&weighted)) {
            return Err(NotFound::Full);
        }
        // Endpoints that get no requests are better than a failure.
        let others = candidates.all.iter().filter(|weighted| !is_tried(weighted));
        let mut is_full = false;
        for other in others {
            if self.has_room(other) {
                return Ok(other);
            }
            is_full = true;
        }
        Err(if is_full { NotFound::Full } else { NotFound::NoneLeft })
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
            let weighted = candidates.all.get(*turns.get(turn)?)?;
            self.is_open(weighted, criteria).then_some(weighted)
        })
    }

    /// The less busy one of two that are chosen at random by their weights (Mitzenmacher, "The Power of Two Choices in
    /// Randomized Load Balancing", 2001).
    fn less_busy<'c>(&self, candidates: &'c Candidates, criteria: Criteria<'_>) -> Option<&'c Weighted> {
        let turns = candidates.schedule.len();
        let at = |turn| {
            let weighted = candidates.all.get(*candidates.schedule.get(turn)?)?;
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

#[derive(Clone, Copy, Debug)]
enum NotFound {
    /// Those that were not tried have as many requests in flight as they may.
    Full,
    NoneLeft,
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
        let best = availabilities.iter().map(|availability| rank(*availability)).min();
        let is_usable = |index: &usize| availabilities.get(*index).map(|availability| rank(*availability)) == best;
        let usable: Vec<_> = (0..all.len()).filter(is_usable).collect();
        let weight = |index: &usize| all.get(*index).map_or(1, |weighted| weighted.weight);
        let turns = schedule(&usable.iter().map(weight).collect::<Vec<_>>());
        let schedule = turns.into_iter().filter_map(|turn| usable.get(turn).copied()).collect();
        let rendezvous = Rendezvous::new(&all, &usable);
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
