//! Prepares what to ask the store about a request: its keys, the rates that apply to them, and its costs.

use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Decision, DecisionInput, DecisionState, LimitOutcome, LimitVerdict, RateSet, RouteLimit, SelectedRates};
use crate::base::fingerprint::Fingerprint;
use crate::config::{Missing, Role};
use crate::limit::{Limit, MAX_QUOTA};
use crate::store::{Ask, IfAbandoned, Reserved};

#[derive(Clone, Copy)]
pub(super) struct RateCheck<'a> {
    place: usize,
    key: Fingerprint,
    profile: RateSet<'a>,
    limit: &'a Arc<Limit>,
}

impl<'a> DecisionState<'a> {
    /// Reads keys, rates and costs and collects what to ask the store. Breaks off if the decision needs no store.
    pub(super) fn prepare(&mut self, input: &DecisionInput<'a, '_>) -> ControlFlow<Decision> {
        let key_cache = &mut input.key_cache.borrow_mut();
        let limits = input.limits.iter().enumerate();
        for (place, route_limit) in limits.filter(|(_, route_limit)| input.part.has(route_limit)) {
            let counters = route_limit.counters(input.worker);
            let resolved = input.quotas.get(place).and_then(Option::as_ref);
            let read = || route_limit.key.extract(input.attributes, place, key_cache);
            let found = resolved.map(|resolved| resolved.key).or_else(read);
            let key = match (found, route_limit.missing) {
                (Some(key), _) => key,
                (None, Missing::Shared) => route_limit.key.shared,
                // A pool without a key has no room.
                (None, Missing::Skip | Missing::Reject) if !route_limit.is_of_route => continue,
                (None, Missing::Skip) => {
                    counters.skipped.one();
                    continue;
                }
                (None, Missing::Reject) => {
                    counters.keyless.one();
                    return ControlFlow::Break(Decision::NoKey(place));
                }
            };
            if route_limit.blocks_either(input.attributes, key_cache) {
                return ControlFlow::Break(route_limit.blocked(input, place, key));
            }
            match route_limit.select(key, found.is_some(), input.attributes, key_cache, resolved) {
                SelectedRates::Exempt => {
                    self.exempt.push(place);
                    if route_limit.is_of_route {
                        counters.exempt.one();
                        route_limit.record_key(input, key, false);
                    }
                }
                SelectedRates::Block if !route_limit.is_of_route => {}
                SelectedRates::Block if route_limit.on_limit.role() == Role::Reports => {
                    self.shadow(counters, place);
                    route_limit.record_key(input, key, true);
                }
                SelectedRates::Block => return ControlFlow::Break(route_limit.blocked(input, place, key)),
                SelectedRates::Rates(profile, limit) => {
                    let check = RateCheck { place, key, profile, limit };
                    if route_limit.is_of_route && route_limit.max_in_flight.is_some() {
                        self.acquire_permit(input, check)?;
                    }
                    self.prepare_ask(input, &check)?;
                    if route_limit.is_of_route {
                        self.prepare_bans(input, place, profile, key, key_cache);
                    }
                }
            }
        }
        self.find_pools(input, Role::Reports)
    }

    /// Finds for each limit with a pool the ask of that pool. A limit whose pool exempts the key never refuses. A limit whose
    /// pool is asked only later, with others, has the role `until_then`. Keys that strangers share get no pool: strangers
    /// would use up what is for all others.
    pub(super) fn find_pools(&mut self, input: &DecisionInput<'a, '_>, until_then: Role) -> ControlFlow<Decision> {
        for at in self.asked..self.asks.len() {
            let Ask { limit, key, place, .. } = self.asks[at];
            let Some((route_limit, pool)) = input.limits.get(place).and_then(|limit| Some((limit, limit.overflow?)))
            else {
                continue;
            };
            let is_of_strangers = route_limit.key.is_of_strangers(key, input.attributes);
            let found = self.unasked().iter().position(|ask| ask.place == pool && !is_of_strangers);
            let (own, is_later) = (limit.capacity(), input.limits[pool].stage > input.part.to);
            let (most, role) = match found {
                Some(found) => (own.max(self.unasked()[found].limit.capacity()), route_limit.on_limit.role()),
                None if is_of_strangers => (own, route_limit.on_limit.role()),
                None if self.exempt.contains(&pool) => (u64::MAX, Role::Reports),
                None if is_later => (own, until_then),
                None => (own, route_limit.on_limit.role()),
            };
            let (need, cost) = input.initial_cost(place, most);
            if need > most && role == Role::Refuses && route_limit.on_limit.is_told() {
                return self.too_costly(input, place, key, most);
            }
            let ask = &mut self.asks[at];
            (ask.need, ask.cost, ask.role, ask.overflow) = (need, cost, role, found.map(|_| pool));
        }
        ControlFlow::Continue(())
    }

    fn acquire_permit(&mut self, input: &DecisionInput<'a, '_>, check: RateCheck<'a>) -> ControlFlow<Decision> {
        let RateCheck { place, key, profile, limit } = check;
        let route_limit = &input.limits[place];
        let Some(max_in_flight) = route_limit.max_in_flight else { return ControlFlow::Continue(()) };
        let acquired = input.concurrency.acquire(key, max_in_flight);
        let (admitted, remaining) = (acquired.is_some(), acquired.as_ref().map_or(0, |(_, remaining)| *remaining));
        route_limit.counters(input.worker).fullest.observe(remaining, max_in_flight, input.now);
        let decision = if admitted { Decision::Admitted } else { self.over(input, place) };
        if !admitted {
            self.refused_unasked(input, place, key);
        }
        if decision != Decision::Admitted || limit.rates().is_empty() && self.held_since.is_none() {
            // Otherwise the request is recorded when its rates decide, or was recorded before it was held.
            route_limit.record_key(input, key, !admitted);
        }
        let (verdict, partition) = (LimitVerdict::InFlight { admitted, remaining }, route_limit.key.partition(key));
        let outcome = LimitOutcome { place, profile, limit, partition, need: 1, verdict, as_of: input.now };
        if let Some((permit, _)) = acquired {
            self.permits.push(permit);
            if input.may_hold() {
                self.in_flight.push(check);
            }
            if route_limit.on_limit.is_told() {
                self.outcomes.push(outcome);
            }
            if limit.rates().is_empty() {
                self.without_rates.push(place);
            }
        } else if decision == Decision::Rejected {
            self.outcomes = SmallVec::from_iter([outcome]);
        }
        if decision == Decision::Admitted { ControlFlow::Continue(()) } else { ControlFlow::Break(decision) }
    }

    /// The request begins to be held. A held request is not in flight, so it takes no place.
    pub(super) fn leave_flight(&mut self) {
        self.permits.clear();
        self.without_rates.clear();
        self.outcomes.retain(|outcome| !matches!(outcome.verdict, LimitVerdict::InFlight { .. }));
    }

    /// The request is no longer held, so it joins those in flight again. Breaks off if there is no room.
    pub(super) fn rejoin_flight(&mut self, input: &DecisionInput<'a, '_>) -> ControlFlow<Decision> {
        if !self.permits.is_empty() {
            return ControlFlow::Continue(());
        }
        let left = std::mem::take(&mut self.in_flight);
        left.into_iter().try_for_each(|check| self.acquire_permit(input, check))
    }

    fn prepare_ask(&mut self, input: &DecisionInput<'a, '_>, check: &RateCheck<'a>) -> ControlFlow<Decision> {
        let RateCheck { place, key, profile, limit } = *check;
        if limit.rates().is_empty() {
            return ControlFlow::Continue(());
        }
        let route_limit = &input.limits[place];
        let most = limit.capacity();
        let ((need, cost), role) = match route_limit.is_of_route {
            true => (input.initial_cost(place, most), route_limit.on_limit.role()),
            // A pool is asked only instead of other limits.
            false => ((0, 0), Role::Reports),
        };
        if need > most && route_limit.on_limit.is_told() && route_limit.overflow.is_none() {
            return self.too_costly(input, place, key, most);
        }
        let settles = route_limit.settles;
        // A pool holds only its own requests.
        let held_above = route_limit.slow.filter(|_| route_limit.is_of_route).map(|slow| slow.from);
        let if_abandoned = if input.asker.is_some() { IfAbandoned::Stays } else { IfAbandoned::Ends };
        let in_steps = input.charges_in_steps(place);
        let ask = Ask { need, settles, if_abandoned, held_above, role, in_steps, place, ..Ask::new(limit, key, cost) };
        self.asks.push(ask);
        if settles {
            self.note_reserved(input, &ask);
        }
        if let Some(used) = input.reported(place) {
            let mut reserved = Reserved::nothing(&ask);
            reserved.watch = route_limit.watch(input, key);
            self.reservations.owe(reserved, used);
        }
        if let Some(given) = input.telling(place).filter(|descriptor| descriptor.gives_back) {
            self.reservations.owe(Reserved::of_any(&ask, given.hits.min(MAX_QUOTA)), 0);
        }
        self.profiles.push(profile);
        ControlFlow::Continue(())
    }

    /// Counts that a request costs more than the limit at this place, and its pool, ever allow at once.
    fn too_costly(
        &mut self,
        input: &DecisionInput<'a, '_>,
        place: usize,
        key: Fingerprint,
        most: u64,
    ) -> ControlFlow<Decision> {
        input.limits[place].counters(input.worker).rejected.one();
        input.limits[place].record_key(input, key, true);
        self.refused_unasked(input, place, key);
        ControlFlow::Break(Decision::TooCostly { place, most })
    }
}

impl RouteLimit {
    /// Counts that the limit, which is at this place, blocks the key.
    fn blocked(&self, input: &DecisionInput<'_, '_>, place: usize, key: Fingerprint) -> Decision {
        self.counters(input.worker).blocked.one();
        self.record_key(input, key, true);
        Decision::Blocked(place)
    }
}
