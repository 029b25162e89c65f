//! May this request pass? All limits of its route are asked at once, and all are charged or none.

mod key_activity;
mod known_bans;
mod token_metrics;
mod counters;
mod temporary_overrides;
mod ban_limits;
mod rate_selector;
mod resolved_quotas;
mod outcome;
mod reservations;
mod concurrency;
mod wait_queues;
mod preparation;
mod bans;
mod delay;
mod slow;
mod first;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::config::{Cost, Missing, OnLimit, Role, Slow};
use crate::limit::Verdict;
use crate::request::identify::key_text::written_text;
use crate::request::identify::{KeyCache, KeyExtractor, RequestAttributes};
use crate::sources::quotas::QuotaSource;
use crate::store::{Answer, Ask, Asks, Reply, Store, Verdicts};

pub use ban_limits::BanLimits;
pub use bans::{BanRule, Strikes};
pub use concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
pub use counters::{DECISIONS, DecisionCounter, DecisionCounters, LimitMetrics};
pub use first::{Part, decide_first, refuse_first};
pub use key_activity::{KeyActivity, TopKeys, shown_since};
pub use known_bans::{KnownBan, KnownBans};
pub use outcome::{LimitOutcome, LimitOutcomes, LimitVerdict, longest_refusal};
pub use rate_selector::{RateSelector, RateSet, RateTable, SelectedRates};
pub use reservations::{
    CostKnown, Reservations, estimated_input, initial_cost_within, reserved_tokens, stated_cost, told_cost,
};
pub use resolved_quotas::{QuotaWaits, ResolvedQuota, ResolvedQuotas, resolve_quotas};
pub use temporary_overrides::{LimitOverrides, MAX_TEMPORARY, NotSet, TemporaryOverrides};
pub use token_metrics::{TokenCounts, TokenMetrics};
pub use wait_queues::WaitQueues;

use bans::Refused;

/// One limit as one route applies it.
pub struct RouteLimit {
    /// Which rates apply to which key.
    pub rates: RateSelector,
    /// Where quotas of keys come from, if there is such a source.
    pub quotas: Option<Arc<QuotaSource>>,
    /// How many requests of a key may be in flight.
    pub max_in_flight: Option<u64>,
    /// How the key is read from the route's requests.
    pub key: KeyExtractor,
    /// What a request costs.
    pub cost: Cost,
    /// What happens to a request over the limit.
    pub on_limit: OnLimit,
    /// How it bans keys, if it does.
    pub ban: Option<BanRule>,
    /// How it slows down requests that it admits, if it does.
    pub slow: Option<Slow>,
    /// What happens to a request without a key.
    pub missing: Missing,
    /// Counts the decisions of the limit.
    pub metrics: Arc<LimitMetrics>,
    /// Whether it is counted which keys come most often.
    pub counts_keys: bool,
    /// Whether it decides before a token is verified, see [`Part::First`].
    pub comes_first: bool,
}

/// Everything that a decision depends on.
pub struct DecisionInput<'a, 'r> {
    /// The limits of the route.
    pub limits: &'a [RouteLimit],
    /// Which of them are asked now.
    pub part: Part,
    /// The request.
    pub attributes: &'r RequestAttributes<'r>,
    /// What sources of quotas grant the request's keys, see [`ResolvedQuotas`].
    pub quotas: &'a [Option<ResolvedQuota>],
    /// The keys of the connection's previous request.
    pub key_cache: &'r RefCell<KeyCache>,
    /// The store of the counters.
    pub store: &'a Store,
    /// The requests in flight.
    pub concurrency: &'a Arc<ConcurrencyLimiter>,
    /// The requests that are held.
    pub wait_queues: &'a Arc<WaitQueues>,
    /// When the request arrived.
    pub now: Time,
    /// The index of the worker that serves it.
    pub worker: usize,
    /// Whether the request is admitted if the store does not answer.
    pub fail_open: bool,
    /// When the decision begins, if the request is traced. Then exchanges with the store are recorded.
    pub traced_since: Option<Time>,
}

/// What a decision produces besides its [`Decision`]. The caller creates it and `decide` fills it in place, since it is
/// too large to be moved for every request.
pub struct DecisionState<'a> {
    /// The outcomes that clients may see, in the order of the route's limits.
    pub outcomes: LimitOutcomes<'a>,
    /// What the store was asked.
    pub asks: Asks<'a>,
    /// The places of the limits that only report and would have refused the request.
    pub shadowed: SmallVec<[usize; 2]>,
    /// What is reserved until the response is known.
    pub reservations: Reservations<'a>,
    /// The permits of limits on requests in flight.
    pub permits: Vec<ConcurrencyPermit>,
    /// When the request began to be held, if it was.
    pub held_since: Option<Time>,
    /// The first exchanges with the store, if they are recorded.
    pub exchanges: Vec<StoreExchange>,
    /// For each ask, which of the rates of its limit it is about.
    profiles: SmallVec<[RateSet<'a>; 2]>,
    /// The places of the limits that have admitted the request and have no rates, so that the store is not asked.
    without_rates: SmallVec<[usize; 2]>,
    /// How many of the asks have been decided.
    decided: usize,
    /// The refusals that may lead to a ban.
    refused: Vec<Refused>,
}

/// When the store was asked, and when it had answered; `None` if it did not answer.
pub type StoreExchange = (Time, Option<Time>);

/// The most exchanges that are recorded of a request. A held request may ask very often.
const MOST_EXCHANGES: usize = 8;

/// What is decided about a request. A place is the index of a limit in [`DecisionInput::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// All limits admit it.
    Admitted,
    /// At least one limit refuses it.
    Rejected,
    /// It is over the limit at this place, which answers as if nothing were wrong.
    Silenced(usize),
    /// The limit at this place blocks its key.
    Blocked(usize),
    /// A limit has refused its key too often before.
    Banned {
        /// The place of the limit.
        place: usize,
        /// Microseconds until the ban ends.
        wait: u64,
        /// Whether it was the refusal of this request that was one too many.
        begins: bool,
    },
    /// It costs more than a limit ever allows at once.
    TooCostly {
        /// The place of the limit.
        place: usize,
        /// The most that the limit allows.
        most: u64,
    },
    /// It has no key, and the limit at this place requires one.
    NoKey(usize),
    /// The store does not answer.
    Unknown,
}

impl<'a> DecisionState<'a> {
    /// The state before the decision.
    pub fn new(store: &'a Store, worker: usize) -> Self {
        let reservations = Reservations::new(store, worker);
        let (outcomes, asks, shadowed, permits) = (SmallVec::new(), Asks::new(), SmallVec::new(), Vec::new());
        let (profiles, without_rates, decided) = (SmallVec::new(), SmallVec::new(), 0);
        let (held_since, exchanges) = (None, Vec::new());
        let refused = Vec::new();
        Self {
            outcomes,
            asks,
            shadowed,
            reservations,
            permits,
            held_since,
            exchanges,
            profiles,
            without_rates,
            decided,
            refused,
        }
    }
}

impl DecisionInput<'_, '_> {
    /// Whether a request about which so is decided is served.
    pub fn passes(&self, decision: Decision) -> bool {
        decision == Decision::Admitted || decision == Decision::Unknown && self.fail_open
    }
}

impl RouteLimit {
    fn counters(&self, worker: usize) -> &DecisionCounters {
        self.metrics.workers.of(worker)
    }

    /// Counts the request among those of its key.
    fn record_key(&self, input: &DecisionInput<'_, '_>, key: Fingerprint, is_refused: bool) {
        if !self.counts_keys {
            return;
        }
        let text = || written_text(&self.key.parts(input.attributes));
        self.metrics.keys.of(input.worker).record(key, is_refused, input.now, text);
    }
}

/// Decides. With the memory store the result is ready at once unless the request is held. With Memcached it takes as
/// long as the store takes to answer.
pub async fn decide<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    let decision = match state.prepare(input) {
        ControlFlow::Break(decision) => state.finish(input, decision),
        ControlFlow::Continue(()) => state.decide(input).await,
    };
    state.with_bans(input, decision).await
}

impl<'a> DecisionState<'a> {
    /// What the store is asked next.
    fn undecided(&self) -> &[Ask<'a>] {
        &self.asks[self.decided..]
    }

    /// Asks the store what has been prepared.
    async fn decide(&mut self, input: &DecisionInput<'a, '_>) -> Decision {
        let decision = if self.undecided().is_empty() {
            Decision::Admitted
        } else if input.limits.iter().any(|route_limit| route_limit.on_limit.delay().is_some()) {
            Box::pin(delay::decide(input, self)).await
        } else {
            match input.store.decide(self.undecided(), input.now, input.worker) {
                Answer::Now(reply) => self.hold_or_conclude(input, reply).await,
                Answer::Later(reply) => match self.receive(input, reply).await {
                    Some(reply) => self.hold_or_conclude(input, reply).await,
                    None => self.unknown(input),
                },
                Answer::Away => self.unknown(input),
            }
        };
        self.finish(input, decision)
    }

    /// Counts the decision for the limits about which the store is not asked.
    fn finish(&mut self, input: &DecisionInput<'a, '_>, decision: Decision) -> Decision {
        input.key_cache.borrow_mut().shrink();
        self.decided = self.asks.len();
        for place in self.without_rates.drain(..) {
            let counters = input.limits[place].counters(input.worker);
            match decision {
                Decision::Banned { place: banned, .. } if banned == place => {}
                _ if input.passes(decision) => counters.admitted.one(),
                _ => counters.not_charged.one(),
            }
        }
        decision
    }

    /// Waits for the answer of the store; `None` if there will be none.
    async fn receive(&mut self, input: &DecisionInput<'_, '_>, reply: oneshot::Receiver<Reply>) -> Option<Reply> {
        let asked = (input.traced_since.is_some() && self.exchanges.len() < MOST_EXCHANGES).then(clock::now);
        let reply = reply.await.ok();
        if let Some(asked) = asked {
            self.exchanges.push((asked, reply.as_ref().map(|_| clock::now())));
        }
        reply
    }

    /// Counts that the request is over the limit at this place. Returns what that limit alone makes of the request.
    fn over(&mut self, input: &DecisionInput<'_, '_>, place: usize) -> Decision {
        let on_limit = input.limits[place].on_limit;
        let counters = input.limits[place].counters(input.worker);
        if on_limit.role() == Role::Reports {
            self.shadow(counters, place);
            Decision::Admitted
        } else if on_limit.is_told() {
            counters.rejected.one();
            Decision::Rejected
        } else {
            counters.silenced.one();
            Decision::Silenced(place)
        }
    }

    fn shadow(&mut self, counters: &DecisionCounters, place: usize) {
        counters.shadowed.one();
        if !self.shadowed.contains(&place) {
            self.shadowed.push(place);
        }
    }

    fn unknown(&self, input: &DecisionInput<'_, '_>) -> Decision {
        let limits = self.undecided().iter().filter_map(|ask| input.limits.get(ask.place));
        limits.for_each(|route_limit| route_limit.counters(input.worker).unknown.one());
        Decision::Unknown
    }

    /// The verdicts that refuse the request, with the places of their limits. Those of limits that only report do not.
    fn refusals<'v>(&'v self, verdicts: &'v Verdicts) -> impl Iterator<Item = (usize, Verdict)> {
        let refuses = |place| self.undecided().iter().any(|ask| ask.place == place && ask.role == Role::Refuses);
        verdicts.iter().copied().filter(move |(place, verdict)| !verdict.admitted && refuses(*place))
    }

    /// Makes a decision of the verdicts, after the request was held if its limits slow it down.
    async fn hold_or_conclude(&mut self, input: &DecisionInput<'a, '_>, reply: Reply) -> Decision {
        match slow::longest(input, self, &reply.verdicts) {
            // This is seldom needed, and would make the future of each request larger.
            Some(longest) => Box::pin(slow::hold(input, self, longest, reply)).await,
            None => self.conclude(input, reply),
        }
    }

    /// Makes a decision of the verdicts and counts it. The request is not held any longer.
    fn conclude(&mut self, input: &DecisionInput<'a, '_>, Reply { verdicts, reserved }: Reply) -> Decision {
        let banned = bans::banned(input, &verdicts);
        let decision = banned.unwrap_or_else(|| self.decision(input, &verdicts));
        for at in self.decided..self.asks.len() {
            let Ask { limit, key, need, place, .. } = self.asks[at];
            // Another limit may have refused the request before anything was known of this one.
            let verdict = verdicts.iter().find(|(of, _)| *of == place).map(|(_, verdict)| *verdict);
            let is_banned = |place| matches!(decision, Decision::Banned { place: banned, .. } if banned == place);
            if let Some(place) = bans::limit_of(input, place) {
                let route_limit = &input.limits[place];
                verdict.into_iter().for_each(|verdict| route_limit.note_ban(input, key, (limit, verdict), input.now));
                if is_banned(place) {
                    route_limit.counters(input.worker).banned.one();
                    self.tell_ban(decision);
                }
                continue;
            }
            let route_limit = &input.limits[place];
            let counters = route_limit.counters(input.worker);
            if let Some((verdict, rate)) = verdict.and_then(|verdict| Some((verdict, limit.rates().get(verdict.rate)?)))
            {
                counters.fullest.observe(verdict.remaining, rate.capacity(), input.now);
            }
            let is_over = verdict.is_some_and(|verdict| !verdict.admitted);
            if is_banned(place) {
                // It is counted as such.
            } else if is_over {
                self.over(input, place);
                if banned.is_none() {
                    self.strike(input, place, key);
                }
            } else if decision == Decision::Admitted {
                counters.admitted.one();
            } else {
                counters.not_charged.one();
            }
            route_limit.record_key(input, key, is_over || is_banned(place) || self.shadowed.contains(&place));
            if !route_limit.on_limit.is_told() && !is_banned(place) {
                continue;
            }
            let (profile, verdict) = (self.profiles[at], verdict.map_or(LimitVerdict::Unknown, LimitVerdict::Rates));
            self.outcomes.push(LimitOutcome { place, profile, limit, need, verdict });
        }
        self.reservations.record(reserved);
        if !self.permits.is_empty() || input.part != Part::All {
            // Those of limits that come first, and those about requests in flight, were added first: this restores the
            // order of the route.
            self.outcomes.sort_by_key(|outcome| outcome.place);
        }
        decision
    }

    /// What the verdicts amount to. A request is silenced only if no limit refuses it openly.
    fn decision(&self, input: &DecisionInput<'_, '_>, verdicts: &Verdicts) -> Decision {
        let mut silenced = None;
        for (place, _) in self.refusals(verdicts) {
            if input.limits[place].on_limit.is_told() {
                return Decision::Rejected;
            }
            silenced.get_or_insert(place);
        }
        silenced.map_or(Decision::Admitted, Decision::Silenced)
    }
}
