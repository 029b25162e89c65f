//! What the reply of the store means for a request: the decision, its counters, and the outcome of each limit, as clients
//! see it.
//!
//! If a limit has no room but its pool has, the pool is charged. That is no refusal, and clients see the pool. If neither
//! has room, clients see whichever has room first.

use std::mem;

use smallvec::SmallVec;

use super::rate_selector::RateSet;
use super::{Decision, DecisionCounters, DecisionInput, DecisionState, RouteLimit, bans};
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::config::{Cost, Role};
use crate::limit::{Limit, Verdict};
use crate::store::{Ask, Pooled, RefusedAsk, Reply, Reserved};

/// The decision of one limit about a request. A limit with rates and `max_in_flight` has one outcome for each.
#[derive(Clone, Copy, Debug)]
pub struct LimitOutcome<'a> {
    pub place: usize,
    pub profile: RateSet<'a>,
    /// The rates of `profile`.
    pub limit: &'a Limit,
    /// The key that is counted; `None` if it is no client's own.
    pub partition: Option<Fingerprint>,
    /// How much room the request needs, 1 or more: its cost, as far as known.
    pub need: u64,
    pub verdict: LimitVerdict,
    pub as_of: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitVerdict {
    Rates(Verdict),
    /// The verdict of its bound on requests in flight.
    InFlight {
        admitted: bool,
        remaining: u64,
    },
    /// The key is banned, so the request is refused even if the rates have room.
    Banned {
        /// When the ban has ended and the rates admit the request.
        until: Time,
    },
    /// The rates were not asked, because another limit refuses the request.
    Unknown,
}

/// Inline for two, because most routes have at most two limits.
pub type LimitOutcomes<'a> = SmallVec<[LimitOutcome<'a>; 2]>;

/// The refusal with the longest wait, which decides how long the client has to wait.
pub fn longest_refusal<'o, 'a>(outcomes: &'o [LimitOutcome<'a>]) -> Option<&'o LimitOutcome<'a>> {
    let refusals = outcomes.iter().filter(|outcome| !outcome.verdict.admitted());
    refusals.max_by_key(|outcome| outcome.until().unwrap_or(Time::MAX))
}

/// The outcome that tells a client most: the refusal with the longest wait, otherwise that with the least remaining.
pub fn binding<'o, 'a: 'o>(outcomes: impl Iterator<Item = &'o LimitOutcome<'a>>) -> Option<&'o LimitOutcome<'a>> {
    outcomes.min_by_key(|outcome| match (outcome.verdict.admitted(), outcome.verdict.remaining()) {
        (false, _) => (0, u64::MAX - outcome.until().unwrap_or(Time::MAX).micros()),
        (true, Some(remaining)) => (1, remaining),
        (true, None) => (2, 0),
    })
}

impl LimitVerdict {
    pub fn admitted(&self) -> bool {
        match *self {
            Self::Rates(Verdict { admitted, .. }) | Self::InFlight { admitted, .. } => admitted,
            Self::Banned { .. } => false,
            Self::Unknown => true,
        }
    }

    /// How many more requests the limit admits now; `None` if unknown.
    pub fn remaining(&self) -> Option<u64> {
        match *self {
            Self::Rates(Verdict { remaining, .. }) | Self::InFlight { remaining, .. } => Some(remaining),
            Self::Banned { .. } => Some(0),
            Self::Unknown => None,
        }
    }
}

impl LimitOutcome<'_> {
    /// When the limit admits more, as in [`Verdict::wait`]. `None` for requests in flight, whose end cannot be predicted.
    pub fn until(&self) -> Option<Time> {
        match self.verdict {
            LimitVerdict::Rates(verdict) => Some(self.as_of.after_micros(verdict.wait?)),
            LimitVerdict::Banned { until } => Some(until),
            LimitVerdict::InFlight { .. } | LimitVerdict::Unknown => None,
        }
    }

    /// Turns the verdict into a ban until this moment, or until the end of its own refusal if that is later.
    pub(super) fn ban(&mut self, until: Time) {
        let own = if self.verdict.admitted() { None } else { self.until() };
        self.verdict = LimitVerdict::Banned { until: own.map_or(until, |own| own.max(until)) };
    }
}

/// Inline for one, because most refused requests are refused by one limit.
type Refusals = SmallVec<[RefusedAsk; 1]>;

impl<'a> DecisionState<'a> {
    /// Counts that the request is over the limit at this place. Returns the decision of that limit alone.
    pub(super) fn over(&mut self, input: &DecisionInput<'_, '_>, place: usize) -> Decision {
        self.over_limit(&input.limits[place], input.worker, place)
    }

    fn over_limit(&mut self, route_limit: &RouteLimit, worker: usize, place: usize) -> Decision {
        let on_limit = route_limit.on_limit;
        let counters = route_limit.counters(worker);
        if on_limit.role() == Role::Reports {
            self.shadow(counters, place);
            return Decision::Admitted;
        }
        self.over.push(place);
        if on_limit.is_told() {
            counters.rejected.one();
            Decision::Rejected
        } else {
            counters.silenced.one();
            Decision::Silenced(place)
        }
    }

    pub(super) fn shadow(&mut self, counters: &DecisionCounters, place: usize) {
        counters.shadowed.one();
        if !self.shadowed.contains(&place) {
            self.shadowed.push(place);
        }
    }

    /// Makes a decision of the reply, and counts it with the charges from before the body was read. Ends the hold.
    pub(super) fn conclude(&mut self, input: &DecisionInput<'a, '_>, reply: &mut Reply) -> Decision {
        if !reply.reserved.is_empty() || self.undecided().iter().any(|ask| ask.settles) {
            self.reserve(input, reply);
        }
        self.conclude_reserved(input, reply)
    }

    /// The same if [`Self::reserve`] has been called already.
    pub(super) fn conclude_reserved(&mut self, input: &DecisionInput<'a, '_>, reply: &mut Reply) -> Decision {
        let as_of = reply.as_of.unwrap_or(input.now);
        let banned = bans::banned(&reply.verdicts, as_of);
        let is_of_limit = |refusal: &RefusedAsk| bans::limit_of(refusal.place).is_none();
        let refusals: Refusals = reply.refusals(self.unasked()).filter(is_of_limit).collect();
        let decision = banned.unwrap_or_else(|| decision(input, &refusals));
        if decision == Decision::Admitted && self.reservations.is_provisional {
            // The reply is kept until the body of the request is read.
            self.asked = self.asks.len();
            self.first = Some(Box::new(Reply { as_of: Some(as_of), ..mem::take(reply) }));
            return decision;
        }
        if let Some(first) = self.first.take() {
            *reply = first.later(as_of).joined(mem::take(reply));
        }
        if !reply.reached.is_empty() {
            self.tell_reached(input, &reply.reached);
        }
        for at in self.decided..self.asks.len() {
            let Ask { limit, key, place, .. } = self.asks[at];
            let (own, pooled) = (reply.verdict(place), reply.pooled(place));
            let is_banned = |place| matches!(decision, Decision::Banned { place: banned, .. } if banned == place);
            if let Some(limit_place) = bans::limit_of(place) {
                if !bans::is_of_counted_key(place) {
                    continue;
                }
                let (place, route_limit) = (limit_place, &input.limits[limit_place]);
                own.into_iter().for_each(|verdict| route_limit.note_ban(input, key, limit, verdict, as_of));
                if is_banned(place) {
                    route_limit.counters(input.worker).banned.one();
                    self.tell_ban(decision);
                }
                continue;
            }
            let route_limit = &input.limits[place];
            if !route_limit.is_of_route && pooled.is_none() {
                continue;
            }
            let counters = route_limit.counters(input.worker);
            let verdict = pooled.map(|pooled| pooled.verdict).or(own);
            if let Some((verdict, rate)) = verdict.and_then(|verdict| Some((verdict, limit.deciding_rate(&verdict)?))) {
                counters.fullest.observe(verdict.remaining, rate.capacity(), input.now);
            }
            let telling = input.telling(place);
            let gives_back = telling.is_some_and(|descriptor| descriptor.gives_back);
            let has_no_room = own.is_some_and(|verdict| !verdict.admitted) && !gives_back;
            let is_refused = refusals.iter().any(|refusal| refusal.place == place);
            let is_over = is_refused
                || pooled.is_some_and(|pooled| !pooled.verdict.admitted)
                || has_no_room && route_limit.overflow.is_none();
            if is_banned(place) {
                // The ask about the ban comes later and counts this.
            } else if is_over {
                self.over(input, place);
                if banned.is_none() && is_refused && input.reported(place).is_none() {
                    self.strike(input, place, key);
                }
            } else if decision != Decision::Admitted {
                counters.not_charged.one();
            } else if has_no_room {
                counters.overflowed.one();
                self.overflowed.push(place);
            } else {
                counters.admitted.one();
            }
            route_limit.record_key(input, key, is_over || is_banned(place) || self.shadowed.contains(&place));
            let is_told = route_limit.on_limit.is_told() || is_banned(place);
            let shown = match own.filter(|_| telling.is_some()) {
                // There is room for what gives back.
                Some(own) => {
                    let verdict = Verdict { admitted: own.admitted || gives_back, ..own };
                    Some((self.asks[at].need, LimitVerdict::Rates(verdict)))
                }
                None if is_told => self.shown_verdict(input, at, decision, reply, &refusals),
                None => None,
            };
            if let Some((need, verdict)) = shown {
                let (profile, partition) = (self.profiles[at], route_limit.key.partition(key));
                let outcome = LimitOutcome { place, profile, limit, partition, need, verdict, as_of };
                if is_told { self.outcomes.push(outcome) } else { self.told.push(outcome) }
            }
        }
        self.pooled.append(&mut reply.pooled);
        if !self.permits.is_empty() || !input.asks_all() {
            // Outcomes of earlier stages and of requests in flight were added first. Restore the order of the route.
            self.outcomes.sort_by_key(|outcome| outcome.place);
        }
        decision
    }

    /// Counts what limits say about an ask for more, after the request was admitted, and corrects the outcomes. `need` is what
    /// the limit at a place was asked for.
    pub fn conclude_later(&mut self, limits: &[RouteLimit], reply: &Reply, need: impl Fn(usize) -> u64) -> Decision {
        let as_of = reply.as_of.unwrap_or_else(clock::now);
        let mut decision = Decision::Admitted;
        for (place, verdict) in &reply.verdicts {
            let Some(route_limit) = limits.get(*place) else { continue };
            let is_of = |outcome: &&mut LimitOutcome<'_>| {
                outcome.place == *place && matches!(outcome.verdict, LimitVerdict::Rates(_))
            };
            if let Some(outcome) = self.outcomes.iter_mut().find(is_of) {
                (outcome.verdict, outcome.as_of, outcome.need) = (LimitVerdict::Rates(*verdict), as_of, need(*place));
            }
            if !verdict.admitted {
                match self.over_limit(route_limit, self.reservations.worker, *place) {
                    Decision::Silenced(_) if decision == Decision::Rejected => {}
                    Decision::Admitted => {}
                    refused => decision = refused,
                }
            }
        }
        decision
    }

    /// The costs for which the limit at this place was charged, each with the first charge: its own, and those of its users.
    pub fn costs<'l>(&self, limits: &'l [RouteLimit], place: usize) -> impl Iterator<Item = (&'l Cost, u64)> {
        let is_for = move |ask: &&Ask<'_>| match self.overflowed.contains(&ask.place) {
            true => limits[ask.place].overflow == Some(place),
            false => ask.place == place && limits[place].is_of_route,
        };
        self.asks.iter().filter(is_for).map(|ask| (&limits[ask.place].cost, ask.cost))
    }

    /// Keeps each reservation with the limits whose costs it covers: the one charged, or those whose pool was charged. Call it
    /// once, because costs in bytes begin here.
    pub(super) fn reserve(&mut self, input: &DecisionInput<'a, '_>, reply: &mut Reply) {
        let reserved = mem::take(&mut reply.reserved);
        // Costs in bytes may be reserved only while the bytes pass.
        let is_nothing = |ask: &&Ask<'_>| ask.settles && reserved.iter().all(|one| one.place != ask.place);
        let nothing: Vec<_> = self.undecided().iter().filter(is_nothing).map(Reserved::nothing).collect();
        for mut reserved in reserved.into_iter().chain(nothing) {
            let place = reserved.place;
            if let Some(limit) = input.limits.get(place) {
                reserved.watch = limit.watch(input, reserved.key()).of(reserved.cost());
            }
            let is_for = |ask: &&Ask<'_>| match reply.verdict(ask.place) {
                Some(Verdict { admitted: false, .. }) => ask.overflow == Some(place),
                Some(_) => ask.place == place,
                None => false,
            };
            let costs = self.asks[self.decided..].iter().filter(is_for);
            let costs = costs.map(|ask| (ask.place, &input.limits[ask.place].cost, ask.cost)).collect();
            self.reservations.add(costs, reserved);
        }
    }

    /// The cost that was asked of the limit of the ask at this index, and the verdict that clients see. `None` if clients see
    /// its pool instead, or if only other limits asked it and it had no room.
    fn shown_verdict(
        &self,
        input: &DecisionInput<'a, '_>,
        at: usize,
        decision: Decision,
        reply: &Reply,
        refusals: &[RefusedAsk],
    ) -> Option<(u64, LimitVerdict)> {
        let Ask { need, place, .. } = self.asks[at];
        let is_told = |place: usize| input.limits[place].on_limit.is_told();
        // Clients see the ban of a limit as the outcome of that limit, not of its pool.
        let is_shown =
            |refusal: &RefusedAsk, pooled: &Pooled| is_told(pooled.place) && input.limits[refusal.place].ban.is_none();
        let sooner = |refusal: &RefusedAsk| refusal.sooner().filter(|pooled| is_shown(refusal, pooled));
        if let Some(Pooled { demand, verdict, .. }) = reply.pooled(place) {
            let hands_over = |ask: &Ask<'_>| {
                ask.overflow == Some(place)
                    && reply.verdict(ask.place).is_some_and(|verdict| !verdict.admitted)
                    && is_told(ask.place)
            };
            let is_first = |refusal: &RefusedAsk| {
                is_told(refusal.place) && sooner(refusal).is_some_and(|pooled| pooled.place == place)
            };
            let is_shown = match verdict.admitted {
                true => input.limits[place].is_of_route || self.undecided().iter().any(hands_over),
                false => refusals.iter().any(is_first),
            };
            if is_shown {
                return Some((demand.need, LimitVerdict::Rates(verdict)));
            }
        }
        if !input.limits[place].is_of_route {
            return None;
        }
        // Another limit may have refused the request before this one was asked.
        let Some(verdict) = reply.verdict(place) else { return Some((need, LimitVerdict::Unknown)) };
        match refusals.iter().find(|refusal| refusal.place == place) {
            Some(refusal) if sooner(refusal).is_some() => None,
            Some(refusal) => Some((need, LimitVerdict::Rates(Verdict { wait: refusal.wait(), ..verdict }))),
            None if verdict.admitted => Some((need, LimitVerdict::Rates(verdict))),
            // The pool has room, or whether it has is unknown.
            None => (decision != Decision::Admitted).then_some((need, LimitVerdict::Unknown)),
        }
    }
}

/// What the refusals amount to. A request is silenced only if no limit refuses it openly.
fn decision(input: &DecisionInput<'_, '_>, refusals: &[RefusedAsk]) -> Decision {
    match refusals {
        [] => Decision::Admitted,
        _ if refusals.iter().any(|refusal| input.limits[refusal.place].on_limit.is_told()) => Decision::Rejected,
        [first, ..] => Decision::Silenced(first.place),
    }
}
