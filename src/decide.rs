//! May this request pass? Every limit of its route is asked at once; all are charged, or none.

mod rate_selector;
mod outcome;
mod reservations;
mod concurrency;
mod wait_queues;
mod delay;

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Time;
use crate::config::{Cost, Missing, OnLimit};
use crate::fingerprint::Fingerprint;
use crate::identify::{KeyCache, KeyExtractor, RequestAttributes};
use crate::limit::{Limit, Verdict};
use crate::metrics::{Counter, PerWorker};
use crate::store::{Answer, Ask, Asks, Reply, Store, Verdicts};

pub use concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
pub use outcome::{LimitOutcome, LimitOutcomes, longest_refusal};
pub use rate_selector::{RateSelector, RateTable, SelectedRates};
pub use reservations::{Reservations, stated};
pub use wait_queues::WaitQueues;

/// One limit as it guards one route.
pub struct RouteLimit {
    /// Which rates hold for whom.
    pub rates: RateSelector,
    /// How many requests of a key may be under way.
    pub max_in_flight: Option<u64>,
    /// How its key is read from the route's requests.
    pub identity: KeyExtractor,
    /// What requests cost.
    pub cost: Cost,
    /// What happens over the limit.
    pub on_limit: OnLimit,
    /// What happens without a key.
    pub missing: Missing,
    /// What it has decided.
    pub metrics: Arc<LimitMetrics>,
}

/// What a limit has decided, on all routes.
#[derive(Debug)]
pub struct LimitMetrics {
    /// Its name.
    pub name: String,
    /// By worker.
    pub workers: PerWorker<DecisionCounters>,
}

/// The decisions of one limit on one worker.
#[derive(Debug, Default)]
pub struct DecisionCounters {
    /// Let through by this limit and all others of the route.
    pub admitted: Counter,
    /// Refused by this limit.
    pub rejected: Counter,
    /// Over this limit, and let through because it only reports.
    pub shadowed: Counter,
    /// Over this limit, and answered as if all were well.
    pub silenced: Counter,
    /// Held by this limit until there was room, or until that took too long.
    pub delayed: Counter,
    /// Would have been let through by this limit, refused by another: not charged.
    pub not_charged: Counter,
    /// Not counted, because the key is exempt.
    pub exempt: Counter,
    /// Refused, because the key is blocked.
    pub blocked: Counter,
    /// Not asked, for want of a key.
    pub skipped: Counter,
    /// Refused for want of a key.
    pub keyless: Counter,
    /// Not decided, because the store did not answer.
    pub unknown: Counter,
}

/// All that a decision is made from.
pub struct DecisionInput<'a, 'r> {
    /// The limits of the route.
    pub limits: &'a [RouteLimit],
    /// The request.
    pub attributes: &'r RequestAttributes<'r>,
    /// What the connection's requests were last identified as.
    pub key_cache: &'r RefCell<KeyCache>,
    /// Where counters live.
    pub store: &'a Store,
    /// Who is under way.
    pub concurrency: &'a Arc<ConcurrencyLimiter>,
    /// Who is held.
    pub wait_queues: &'a Arc<WaitQueues>,
    /// When the request came.
    pub now: Time,
    /// Which worker serves it.
    pub worker: usize,
    /// Whether it passes if the store does not answer.
    pub passes_unknown: bool,
}

/// What belongs to a decision and outlives it. Made where it is needed and filled in place: it is too large to be moved
/// about for every request.
pub struct DecisionState<'a> {
    /// What the limits say that were asked, those that clients are told of.
    pub outcomes: LimitOutcomes<'a>,
    /// What the store was asked.
    pub asks: Asks<'a>,
    /// The guards that only report, and would have refused the request.
    pub shadowed: SmallVec<[usize; 2]>,
    /// What is reserved until the response.
    pub reservations: Reservations<'a>,
    /// What holds its place among those under way.
    pub permits: Vec<ConcurrencyPermit>,
    /// Since when it was held, if it was.
    pub held_since: Option<Time>,
}

/// The outcome for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may pass.
    Admitted,
    /// At least one limit refuses.
    Rejected,
    /// This guard wants it answered without anybody being asked.
    Silenced(usize),
    /// This guard lets nothing of its key pass.
    Blocked(usize),
    /// It costs more than a guard ever allows at once.
    TooCostly {
        /// Which guard.
        place: usize,
        /// The most that is allowed.
        most: u64,
    },
    /// This guard wants a key.
    NoKey(usize),
    /// The store does not answer.
    Unknown,
}

impl<'a> DecisionState<'a> {
    /// Nothing yet.
    pub fn new(store: &'a Store, worker: usize) -> Self {
        let reservations = Reservations::new(store, worker);
        let (outcomes, asks, shadowed) = (SmallVec::new(), Asks::new(), SmallVec::new());
        Self { outcomes, asks, shadowed, reservations, permits: Vec::new(), held_since: None }
    }
}

impl RouteLimit {
    fn decided(&self, worker: usize) -> &DecisionCounters {
        self.metrics.workers.of(worker)
    }
}

/// Decides. With a store in this process it answers on the spot, unless the request is to be held; otherwise it waits
/// for as long as the store lets it.
pub async fn decide<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    if input.limits.is_empty() {
        return Decision::Admitted;
    }
    let mut evaluation = Evaluation { profiles: SmallVec::new(), boarded: SmallVec::new(), state };
    let decision = match evaluation.read(input) {
        Some(decision) => decision,
        None if evaluation.state.asks.is_empty() => Decision::Admitted,
        None if input.limits.iter().any(|route_limit| matches!(route_limit.on_limit, OnLimit::Delay { .. })) => {
            Box::pin(delay::decide(input, &mut evaluation)).await
        }
        None => match input.store.decide(&evaluation.state.asks, input.now, input.worker) {
            Answer::Now(reply) => evaluation.conclude(input, reply),
            Answer::Later(reply) => match reply.await {
                Ok(reply) => evaluation.conclude(input, reply),
                Err(_) => evaluation.unknown(input),
            },
            Answer::Away => evaluation.unknown(input),
        },
    };
    let passes = decision == Decision::Admitted || decision == Decision::Unknown && input.passes_unknown;
    for place in &evaluation.boarded {
        let decided = input.limits[*place].decided(input.worker);
        if passes { decided.admitted.one() } else { decided.not_charged.one() }
    }
    decision
}

/// What a guard is to decide: which rates, for whom.
struct RateCheck<'a> {
    place: usize,
    key: Fingerprint,
    profile: usize,
    limit: &'a Arc<Limit>,
}

/// A case while it is open.
struct Evaluation<'a, 'o> {
    /// For each ask, which of the limit's rates hold.
    profiles: SmallVec<[usize; 2]>,
    /// The guards that have let it aboard and have no rates to ask for.
    boarded: SmallVec<[usize; 2]>,
    state: &'o mut DecisionState<'a>,
}

impl<'a> Evaluation<'a, '_> {
    /// Reads keys, rates and costs; what that alone decides is the answer.
    fn read(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        let key_cache = &mut input.key_cache.borrow_mut();
        for (place, route_limit) in input.limits.iter().enumerate() {
            let decided = route_limit.decided(input.worker);
            let known = route_limit.identity.of(input.attributes, place, key_cache);
            let key = match (known, route_limit.missing) {
                (Some(key), _) => key,
                (None, Missing::Shared) => route_limit.identity.nobody(),
                (None, Missing::Skip) => {
                    decided.skipped.one();
                    continue;
                }
                (None, Missing::Reject) => {
                    decided.keyless.one();
                    return Some(Decision::NoKey(place));
                }
            };
            match route_limit.rates.of(&route_limit.identity, known.is_some(), input.attributes, key_cache) {
                SelectedRates::Exempt => decided.exempt.one(),
                SelectedRates::Block if route_limit.on_limit == OnLimit::Shadow => self.shadow(decided, place),
                SelectedRates::Block => {
                    decided.blocked.one();
                    return Some(Decision::Blocked(place));
                }
                SelectedRates::Rates(profile, limit) => {
                    let check = RateCheck { place, key, profile, limit };
                    let decision = self.board(input, &check).or_else(|| self.prepare(input, &check));
                    if decision.is_some() {
                        return decision;
                    }
                }
            }
        }
        None
    }

    /// Takes a place among those under way, if their number is limited.
    fn board(&mut self, input: &DecisionInput<'a, '_>, check: &RateCheck<'a>) -> Option<Decision> {
        let RateCheck { place, key, profile, limit } = *check;
        let route_limit = &input.limits[place];
        let decided = route_limit.decided(input.worker);
        let taken = input.concurrency.enter(key, route_limit.max_in_flight?);
        let (admitted, remaining) = (taken.is_some(), taken.as_ref().map_or(0, |(_, left)| *left));
        let verdict = Verdict { admitted, rate: limit.rates().len(), remaining, wait: None };
        let outcomes = LimitOutcome { place, profile, limit, need: 1, verdict };
        match (taken, route_limit.on_limit) {
            (Some((permit, _)), _) => {
                self.state.permits.push(permit);
                if route_limit.on_limit.is_told() {
                    self.state.outcomes.push(outcomes);
                }
                if limit.rates().is_empty() {
                    self.boarded.push(place);
                }
                None
            }
            (None, OnLimit::Shadow) => {
                self.shadow(decided, place);
                None
            }
            (None, OnLimit::Silent) => {
                decided.silenced.one();
                Some(Decision::Silenced(place))
            }
            (None, OnLimit::Reject | OnLimit::Delay { .. }) => {
                decided.rejected.one();
                self.state.outcomes = SmallVec::from_iter([outcomes]);
                Some(Decision::Rejected)
            }
        }
    }

    /// Notes what to ask the store.
    fn prepare(&mut self, input: &DecisionInput<'a, '_>, check: &RateCheck<'a>) -> Option<Decision> {
        let RateCheck { place, key, profile, limit } = *check;
        if limit.rates().is_empty() {
            return None;
        }
        let route_limit = &input.limits[place];
        let most = limit.capacity();
        let cost = reservations::price_within(&route_limit.cost, most, input.attributes.headers);
        if cost > most && route_limit.on_limit.is_told() {
            route_limit.decided(input.worker).rejected.one();
            return Some(Decision::TooCostly { place, most });
        }
        let (settles, advisory) =
            (reservations::is_settled(&route_limit.cost), route_limit.on_limit == OnLimit::Shadow);
        let ask = Ask { limit, key, need: cost, cost, settles, advisory, place };
        if settles {
            self.state.reservations.owe(&route_limit.cost, ask);
        }
        self.state.asks.push(ask);
        self.profiles.push(profile);
        None
    }

    fn shadow(&mut self, decided: &DecisionCounters, place: usize) {
        decided.shadowed.one();
        if !self.state.shadowed.contains(&place) {
            self.state.shadowed.push(place);
        }
    }

    fn unknown(&self, input: &DecisionInput<'_, '_>) -> Decision {
        self.state.asks.iter().for_each(|ask| input.limits[ask.place].decided(input.worker).unknown.one());
        Decision::Unknown
    }

    /// The guards that these verdicts would have refuse the request.
    fn refusing<'s>(&'s self, verdicts: &'s Verdicts) -> impl Iterator<Item = (usize, Verdict)> {
        let asked = self.state.asks.iter().zip(verdicts);
        let refused = asked.filter(|(ask, (_, verdict))| !verdict.admitted && !ask.advisory);
        refused.map(|(ask, (_, verdict))| (ask.place, *verdict))
    }

    /// What the verdicts come to. Nobody is held any more.
    fn conclude(&mut self, input: &DecisionInput<'a, '_>, Reply { verdicts, reserved }: Reply) -> Decision {
        let is_silent = |place: usize| input.limits[place].on_limit == OnLimit::Silent;
        let decision = match self.refusing(&verdicts).fold(None, |found: Option<(usize, bool)>, (place, _)| {
            let (first, silent) = found.unwrap_or((place, true));
            Some((first, silent && is_silent(place)))
        }) {
            None => Decision::Admitted,
            Some((first, true)) => Decision::Silenced(first),
            Some((_, false)) => Decision::Rejected,
        };
        let all = decision == Decision::Admitted;
        for at in 0..verdicts.len().min(self.state.asks.len()) {
            let (place, verdict) = (self.state.asks[at].place, verdicts[at].1);
            let route_limit = &input.limits[place];
            let decided = route_limit.decided(input.worker);
            match (verdict.admitted, route_limit.on_limit) {
                (true, _) if all => decided.admitted.one(),
                (true, _) => decided.not_charged.one(),
                (false, OnLimit::Shadow) => self.shadow(decided, place),
                (false, OnLimit::Silent) => decided.silenced.one(),
                (false, OnLimit::Reject | OnLimit::Delay { .. }) => decided.rejected.one(),
            }
            if !route_limit.on_limit.is_told() {
                continue;
            }
            let Ask { limit, need, .. } = self.state.asks[at];
            self.state.outcomes.push(LimitOutcome { place, profile: self.profiles[at], limit, need, verdict });
        }
        self.state.reservations.reserved(reserved);
        if !self.state.permits.is_empty() {
            // What is said of requests under way was said first: back to the order of the route.
            self.state.outcomes.sort_by_key(|outcomes| outcomes.place);
        }
        decision
    }
}
