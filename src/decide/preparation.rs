//! What the store is asked about a request: its keys, the rates that apply to them, and its costs.

use std::ops::ControlFlow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Decision, DecisionInput, DecisionState, LimitOutcome, LimitVerdict, RateSet, SelectedRates, reservations};
use crate::config::{Missing, OnLimit};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::Ask;

/// One limit with the key and the rates that apply to a request.
struct RateCheck<'a> {
    place: usize,
    key: Fingerprint,
    profile: RateSet<'a>,
    limit: &'a Arc<Limit>,
}

impl<'a> DecisionState<'a> {
    /// Reads keys, rates and costs and collects what to ask the store. Breaks off where no store is needed to decide.
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
                (None, Missing::Shared) => route_limit.key.shared(),
                (None, Missing::Skip) => {
                    counters.skipped.one();
                    continue;
                }
                (None, Missing::Reject) => {
                    counters.keyless.one();
                    return ControlFlow::Break(Decision::NoKey(place));
                }
            };
            match route_limit.select((key, found.is_some()), input.attributes, key_cache, resolved) {
                SelectedRates::Exempt => {
                    counters.exempt.one();
                    route_limit.record_key(input, key, false);
                }
                SelectedRates::Block if route_limit.on_limit == OnLimit::Shadow => {
                    self.shadow(counters, place);
                    route_limit.record_key(input, key, true);
                }
                SelectedRates::Block => {
                    counters.blocked.one();
                    route_limit.record_key(input, key, true);
                    return ControlFlow::Break(Decision::Blocked(place));
                }
                SelectedRates::Rates(profile, limit) => {
                    let check = RateCheck { place, key, profile, limit };
                    self.acquire_permit(input, &check)?;
                    self.prepare_ask(input, &check)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Counts the request among those in flight if the limit bounds their number.
    fn acquire_permit(&mut self, input: &DecisionInput<'a, '_>, check: &RateCheck<'a>) -> ControlFlow<Decision> {
        let RateCheck { place, key, profile, limit } = *check;
        let route_limit = &input.limits[place];
        let Some(max_in_flight) = route_limit.max_in_flight else { return ControlFlow::Continue(()) };
        let counters = route_limit.counters(input.worker);
        let acquired = input.concurrency.acquire(key, max_in_flight);
        let (admitted, remaining) = (acquired.is_some(), acquired.as_ref().map_or(0, |(_, remaining)| *remaining));
        counters.fullest.observe(max_in_flight.saturating_sub(remaining), max_in_flight, input.now);
        let verdict = LimitVerdict::InFlight { admitted, remaining };
        let outcome = LimitOutcome { place, profile, limit, need: 1, verdict };
        let is_refused = !admitted && route_limit.on_limit != OnLimit::Shadow;
        if is_refused || limit.rates().is_empty() {
            // Otherwise its rates decide, too, and then it is counted.
            route_limit.record_key(input, key, !admitted);
        }
        match (acquired, route_limit.on_limit) {
            (Some((permit, _)), _) => {
                self.permits.push(permit);
                if route_limit.on_limit.is_told() {
                    self.outcomes.push(outcome);
                }
                if limit.rates().is_empty() {
                    self.without_rates.push(place);
                }
                ControlFlow::Continue(())
            }
            (None, OnLimit::Shadow) => {
                self.shadow(counters, place);
                ControlFlow::Continue(())
            }
            (None, OnLimit::Silent) => {
                counters.silenced.one();
                ControlFlow::Break(Decision::Silenced(place))
            }
            (None, OnLimit::Reject | OnLimit::Delay { .. }) => {
                counters.rejected.one();
                self.outcomes = SmallVec::from_iter([outcome]);
                ControlFlow::Break(Decision::Rejected)
            }
        }
    }

    /// Adds the question of one limit to what the store is asked.
    fn prepare_ask(&mut self, input: &DecisionInput<'a, '_>, check: &RateCheck<'a>) -> ControlFlow<Decision> {
        let RateCheck { place, key, profile, limit } = *check;
        if limit.rates().is_empty() {
            return ControlFlow::Continue(());
        }
        let route_limit = &input.limits[place];
        let most = limit.capacity();
        let cost = reservations::initial_cost_within(&route_limit.cost, most, input.attributes.headers);
        if cost > most && route_limit.on_limit.is_told() {
            route_limit.counters(input.worker).rejected.one();
            route_limit.record_key(input, key, true);
            return ControlFlow::Break(Decision::TooCostly { place, most });
        }
        let settles = reservations::is_settled(&route_limit.cost);
        let advisory = route_limit.on_limit == OnLimit::Shadow;
        let ask = Ask { limit, key, need: cost, cost, settles, advisory, place };
        if settles {
            self.reservations.expect(&route_limit.cost, ask);
        }
        self.asks.push(ask);
        self.profiles.push(profile);
        ControlFlow::Continue(())
    }
}
