//! Decides whether a request may pass. All limits of its route are asked at once, and all are charged or none.

pub mod heavy_hitters;
mod key_activity;
mod counters;
mod temporary_overrides;
mod rate_selector;
mod sent_rate;
mod resolved_quotas;
mod outcome;
mod reservations;
mod growth;
mod preparation;
mod plain;
mod bans;
mod delay;
mod slow;
mod first;
mod batch;
mod notices;

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::base::clock::{self, Time};
use crate::base::concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
use crate::config::{Cost, Missing, OnLimit, Slow};
use crate::request::descriptors::Descriptor;
use crate::request::descriptors::messages::RateLimitOverride;
use crate::request::identify::{KeyCache, KeyExtractor, RequestAttributes};
use crate::sources::notices::LimitNotices;
use crate::sources::quotas::QuotaSource;
use crate::store::{Answer, Ask, Asks, Pooled, Reply, Store};

pub use bans::{BanRule, KnownBan, KnownBans, Strikes};
pub use batch::{KeyCounter, PlacedLimits, of_elements};
pub use counters::{
    DECISIONS, DecisionCounter, DecisionCounters, LimitMetrics, OTHER_MODELS, TokenCounts, TokenMetrics,
};
pub use delay::WaitQueues;
pub use first::{Stage, StageRange, charge_first, decide_first, decide_without_body, refuse_first};
pub use growth::{Beyond, Growth, Needed, OpenReservation};
pub use key_activity::{KeyActivity, TopKeys, shown_since};
pub use outcome::{LimitOutcome, LimitOutcomes, LimitVerdict, binding, longest_refusal};
pub use rate_selector::{BanLimits, RateSelector, RateSet, RateTable, SelectedRates};
pub use reservations::{
    CostKnown, PendingReservation, Reservations, initial_cost_within, is_settled, reserved_tokens, response_cost,
    stated_cost,
};
pub use resolved_quotas::{QuotaWaits, ResolvedQuota, ResolvedQuotas, resolve_quotas};
pub use temporary_overrides::{LimitOverrides, MAX_TEMPORARY, NotSet, TemporaryOverride, TemporaryOverrides};

use bans::Refused;
use preparation::RateCheck;

/// One limit as one route applies it.
#[derive(Clone)]
pub struct RouteLimit {
    pub rates: RateSelector,
    /// `None` without a source of quotas.
    pub quotas: Option<Arc<QuotaSource>>,
    /// The most requests of a key in flight.
    pub max_in_flight: Option<u64>,
    pub key: KeyExtractor,
    pub cost: Cost,
    pub on_limit: OnLimit,
    /// `None` if the limit bans no keys.
    pub ban: Option<BanRule>,
    /// `None` if the limit slows down no requests.
    pub slow: Option<Slow>,
    /// The index, among the limits of the route, of the pool that is charged instead when this limit has no room.
    pub overflow: Option<usize>,
    /// Whether the route names the limit. Otherwise it is only the pool of others.
    pub is_of_route: bool,
    /// Whether the cost may be known only from the response.
    pub settles: bool,
    pub missing: Missing,
    pub metrics: Arc<LimitMetrics>,
    /// Whether to count which keys come most often.
    pub counts_keys: bool,
    /// Who is told when a key has used a share of a rate; `None` if nobody is.
    pub notices: Option<Arc<LimitNotices>>,
    pub stage: Stage,
}

pub struct DecisionInput<'a, 'r> {
    pub limits: &'a [RouteLimit],
    /// Which of the limits are asked now.
    pub part: StageRange,
    pub attributes: &'r RequestAttributes<'r>,
    /// What sources of quotas grant the request's keys.
    pub quotas: &'a [Option<ResolvedQuota>],
    /// The keys of the connection's previous request.
    pub key_cache: &'r RefCell<KeyCache>,
    pub store: &'a Store,
    pub concurrency: &'a Arc<ConcurrencyLimiter>,
    pub wait_queues: &'a Arc<WaitQueues>,
    /// When the decision is made. The clock was read after everything that was waited for.
    pub now: Time,
    pub worker: usize,
    /// Whether to admit the request if the store does not answer.
    pub fail_open: bool,
    /// The proxy that asks about the request, if the request does not come from its client.
    pub asker: Option<Asker>,
    /// When the decision begins, if the request is traced. Then exchanges with the store are recorded.
    pub traced_since: Option<Time>,
}

/// A proxy that asks about a request, and may let it pass once it stops waiting. So a dropped request stays charged, and no
/// request is held for longer than the proxy waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub longest_hold: Duration,
}

impl Asker {
    /// How long a request may wait, about which this asker asks or its client itself.
    pub fn longest_wait(asker: Option<Self>) -> Duration {
        asker.map_or(Duration::MAX, |asker| asker.longest_hold)
    }
}

/// What a decision produces besides its [`Decision`]. `decide` fills it in place, because it is too large to move.
pub struct DecisionState<'a> {
    /// The outcomes that clients may see, in the order of the route's limits.
    pub outcomes: LimitOutcomes<'a>,
    /// The outcomes that only the proxy that asks may see, because these limits refuse nothing.
    pub told: Vec<LimitOutcome<'a>>,
    pub asks: Asks<'a>,
    /// The places of the limits that only report, and that the request exceeds.
    pub shadowed: SmallVec<[usize; 2]>,
    /// The places of the limits that refuse the request.
    pub over: SmallVec<[usize; 2]>,
    /// The places of the limits without room whose pools are charged instead.
    pub overflowed: SmallVec<[usize; 2]>,
    /// The verdicts of pools of limits without room.
    pub pooled: Vec<Pooled>,
    pub reservations: Reservations<'a>,
    pub permits: Vec<ConcurrencyPermit>,
    /// The limits of `permits`, if the request may be held.
    in_flight: Vec<RateCheck<'a>>,
    pub held_since: Option<Time>,
    /// Whether something was waited for since the decision began.
    has_waited: bool,
    /// The first exchanges with the store, if they are recorded.
    pub exchanges: Vec<StoreExchange>,
    /// For each ask, the rates of its limit that it is about.
    profiles: SmallVec<[RateSet<'a>; 2]>,
    /// The places of the limits that have admitted the request and have no rates, so the store is not asked.
    without_rates: SmallVec<[usize; 2]>,
    /// The places of the limits that exempt the keys of the request.
    exempt: SmallVec<[usize; 2]>,
    decided: usize,
    /// How many of the asks the store has answered: more than `decided` while the body of the request is read.
    asked: usize,
    /// The store's reply to the asks that are answered but not decided.
    first: Option<Box<Reply>>,
    /// What is asked last, since strangers share the key.
    of_strangers: Vec<(Ask<'a>, RateSet<'a>)>,
    /// The refusals that may lead to a ban.
    refused: Vec<Refused>,
    /// What other requests had reserved of watched limits before the store was asked, with the places of the limits.
    reserved_before: Vec<(usize, u64)>,
}

/// When the store was asked, and when it answered; `None` if it did not answer.
pub type StoreExchange = (Time, Option<Time>);

/// The most exchanges that are recorded of a request, since a held request may ask very often.
const MOST_EXCHANGES: usize = 8;

/// The decision about a request. A place is the index of a limit in [`DecisionInput::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Admitted,
    Rejected,
    /// The request is over the limit at this place, whose answer pretends success.
    Silenced(usize),
    /// The limit at this place blocks its key.
    Blocked(usize),
    /// The key is banned because a limit has refused it too often.
    Banned {
        place: usize,
        until: Time,
        /// Whether the ban begins with this request.
        begins: bool,
    },
    /// The request costs more than a limit ever allows at once.
    TooCostly {
        place: usize,
        most: u64,
    },
    /// The request has no key, and the limit at this place requires one.
    NoKey(usize),
    Unknown,
}

impl<'a> DecisionState<'a> {
    pub fn new(store: &'a Store, worker: usize) -> Self {
        Self {
            outcomes: SmallVec::new(),
            told: Vec::new(),
            asks: Asks::new(),
            shadowed: SmallVec::new(),
            over: SmallVec::new(),
            overflowed: SmallVec::new(),
            pooled: Vec::new(),
            reservations: Reservations::new(store, worker),
            permits: Vec::new(),
            in_flight: Vec::new(),
            held_since: None,
            has_waited: false,
            exchanges: Vec::new(),
            profiles: SmallVec::new(),
            without_rates: SmallVec::new(),
            exempt: SmallVec::new(),
            decided: 0,
            asked: 0,
            first: None,
            of_strangers: Vec::new(),
            refused: Vec::new(),
            reserved_before: Vec::new(),
        }
    }
}

impl DecisionInput<'_, '_> {
    /// Whether all limits of the route are asked together.
    fn asks_all(&self) -> bool {
        self.part == StageRange::ALL
    }

    /// How much room the request needs in the limit at this place, which allows `most` at once, and the first charge.
    fn initial_cost(&self, place: usize, most: u64) -> (u64, u64) {
        match (self.attributes.descriptors.get(place), &self.limits[place].cost) {
            (Some(descriptor), _) if descriptor.is_report || descriptor.gives_back => (1, 0),
            (Some(descriptor), _) => (descriptor.hits.max(1), descriptor.hits),
            (None, &Cost::Fixed(cost)) => (cost.max(1), cost),
            (None, cost) => {
                let cost = initial_cost_within(cost, most, self.attributes);
                // Without room for a single byte, a request cannot be served.
                (cost.max(1), if self.charges_in_steps(place) { 0 } else { cost })
            }
        }
    }

    /// The use of the limit at this place that the call reports, if it is a report.
    fn reported(&self, place: usize) -> Option<u64> {
        let descriptor = self.attributes.descriptors.get(place)?;
        descriptor.is_report.then_some(descriptor.hits)
    }

    /// The descriptor about which the limit at this place is asked, if the limit refuses nothing for it.
    fn telling(&self, place: usize) -> Option<&Descriptor<'_>> {
        self.attributes.descriptors.get(place).filter(|descriptor| descriptor.only_tells())
    }

    /// How long whoever asks may wait for the answer.
    fn longest_hold(&self) -> Duration {
        Asker::longest_wait(self.asker)
    }

    fn may_hold(&self) -> bool {
        self.limits.iter().any(|limit| limit.slow.is_some() || limit.on_limit.delay().is_some())
    }

    pub fn passes(&self, decision: Decision) -> bool {
        decision == Decision::Admitted || decision == Decision::Unknown && self.fail_open
    }
}

impl RouteLimit {
    /// This limit with the rates and the key read from the descriptor at this place. With `only_tells`, it refuses nothing;
    /// with `sent`, it has that rate instead of its own.
    #[must_use]
    pub fn of_descriptor(&self, place: usize, only_tells: bool, sent: Option<RateLimitOverride>) -> Self {
        let mut limit = self.clone();
        limit.set_place(place);
        sent.into_iter().for_each(|sent| limit.rates.set_sent(sent));
        if only_tells { Self { on_limit: OnLimit::Shadow, ban: None, slow: None, ..limit } } else { limit }
    }

    fn counters(&self, worker: usize) -> &DecisionCounters {
        self.metrics.workers.of(worker)
    }
}

/// With the memory store the result is ready at once unless the request is held. With a shared one it takes as long as the store
/// takes to answer. If the request is refused, its charges from before its body was read are given back.
pub async fn decide<'a>(input: &DecisionInput<'a, '_>, state: &mut DecisionState<'a>) -> Decision {
    if input.limits.is_empty() {
        return Decision::Admitted;
    }
    if let Some(decision) = state.decide_plainly(input) {
        return decision;
    }
    state.rejoin_strangers();
    let before = state.asks.len();
    let decision = match state.prepare(input) {
        ControlFlow::Break(decision @ Decision::NoKey(_)) if input.part == StageRange::BODY => {
            // Charge as for a request whose body cannot be used.
            Box::pin(state.decide_without_key(input, before, decision)).await
        }
        ControlFlow::Break(decision) => state.finish(input, decision),
        ControlFlow::Continue(()) => match state.decide_at_once(input) {
            Some(decision) => decision,
            None => state.decide(input).await,
        },
    };
    let decision = if state.refused.is_empty() { decision } else { state.with_bans(input, decision).await };
    if !input.passes(decision) && !matches!(decision, Decision::NoKey(_)) {
        state.give_back();
    }
    decision
}

impl<'a> DecisionState<'a> {
    fn undecided(&self) -> &[Ask<'a>] {
        &self.asks[self.decided..]
    }

    async fn decide(&mut self, input: &DecisionInput<'a, '_>) -> Decision {
        let decision = if self.unasked().is_empty() {
            self.conclude_first(input);
            Decision::Admitted
        } else if input.limits.iter().any(|route_limit| route_limit.on_limit.delay().is_some()) {
            Box::pin(delay::decide(input, self)).await
        } else {
            match input.store.decide(self.unasked(), input.now, input.worker) {
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

    /// Counts the decision for the limits about which the store was not asked.
    fn finish(&mut self, input: &DecisionInput<'a, '_>, decision: Decision) -> Decision {
        input.key_cache.borrow_mut().shrink();
        if decision == Decision::Admitted && self.reservations.is_provisional {
            return decision;
        }
        (self.decided, self.asked) = (self.asks.len(), self.asks.len());
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

    /// Waits for the answer of the store. `None` if there will be none.
    async fn receive(&mut self, input: &DecisionInput<'_, '_>, reply: oneshot::Receiver<Reply>) -> Option<Reply> {
        let asked = (input.traced_since.is_some() && self.exchanges.len() < MOST_EXCHANGES).then(clock::now);
        let reply = reply.await.ok();
        self.has_waited = true;
        if let Some(asked) = asked {
            self.exchanges.push((asked, reply.as_ref().map(|_| clock::now())));
        }
        reply
    }

    fn unknown(&mut self, input: &DecisionInput<'a, '_>) -> Decision {
        let asked = self.unasked().iter().filter_map(|ask| input.limits.get(ask.place));
        asked.filter(|limit| limit.is_of_route).for_each(|limit| limit.counters(input.worker).unknown.one());
        if input.fail_open {
            self.conclude_first(input);
        }
        Decision::Unknown
    }

    /// Turns the verdicts into a decision, after the request was held if its limits slow it down.
    async fn hold_or_conclude(&mut self, input: &DecisionInput<'a, '_>, mut reply: Reply) -> Decision {
        match slow::longest(input, self, &reply) {
            // Boxed because it is seldom needed and would make the future of each request larger.
            Some(longest) => Box::pin(slow::hold(input, self, longest, reply)).await,
            None => self.conclude(input, &mut reply),
        }
    }
}
