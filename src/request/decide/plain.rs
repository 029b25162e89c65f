//! Decides about one limit that does nothing but refuse: most routes have just one, and most requests have its key. Then the
//! counters in memory say all that matters, and the lists of the general way would cost more than the decision.

use super::{Decision, DecisionInput, DecisionState, LimitOutcome, LimitVerdict, RouteLimit, SelectedRates};
use crate::config::OnLimit;
use crate::store::Ask;

impl<'a> DecisionState<'a> {
    /// Decides as the general way would. `None` if more than one verdict matters, or something has to be waited for; then
    /// nothing is charged or counted.
    pub(super) fn decide_plainly(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        let [route_limit] = input.limits else { return None };
        if !route_limit.is_plain() || !input.asks_all() || !input.attributes.descriptors.is_empty() {
            return None;
        }
        let key_cache = &mut *input.key_cache.borrow_mut();
        let resolved = input.quotas.first().and_then(Option::as_ref);
        let read = || route_limit.key.extract(input.attributes, 0, key_cache);
        let key = resolved.map(|resolved| resolved.key).or_else(read)?;
        let selected = route_limit.select(key, true, input.attributes, key_cache, resolved);
        let SelectedRates::Rates(profile, limit) = selected else { return None };
        let most = limit.capacity();
        let (need, cost) = input.initial_cost(0, most);
        if limit.rates().is_empty() || limit.is_watched() || need > most {
            return None;
        }
        let ask = Ask { need, ..Ask::new(limit, key, cost) };
        let verdict = input.store.decide_one(&ask, input.now)?;
        key_cache.shrink();
        self.asks.push(ask);
        self.profiles.push(profile);
        (self.decided, self.asked) = (self.asks.len(), self.asks.len());

        let counters = route_limit.counters(input.worker);
        if let Some(rate) = limit.deciding_rate(&verdict) {
            counters.fullest.observe(verdict.remaining, rate.capacity(), input.now);
        }
        let decision = if verdict.admitted {
            counters.admitted.one();
            Decision::Admitted
        } else {
            self.over(input, 0)
        };
        route_limit.record_key(input, key, !verdict.admitted);
        let (partition, verdict) = (route_limit.key.partition(key), LimitVerdict::Rates(verdict));
        self.outcomes.push(LimitOutcome { place: 0, profile, limit, partition, need, verdict, as_of: input.now });
        Some(decision)
    }
}

impl RouteLimit {
    /// Whether the limit only refuses, by its rates alone, and tells clients so.
    fn is_plain(&self) -> bool {
        let is_alone =
            self.is_of_route && self.overflow.is_none() && self.max_in_flight.is_none() && self.ban.is_none();
        is_alone && self.on_limit == OnLimit::Reject && self.slow.is_none() && !self.settles
    }
}
