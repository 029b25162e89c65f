//! Decides without a future where nothing is waited for. One limit that does nothing but refuse, as most routes have, is decided
//! in one step: the counters in memory say all that matters, and the lists of the general way would cost more than the decision.

use super::{Decision, DecisionInput, DecisionState, LimitOutcome, LimitVerdict, RouteLimit, SelectedRates};
use crate::config::OnLimit;
use crate::store::Ask;

impl<'a> DecisionState<'a> {
    /// Decides as the general way would. `None` if more than one verdict matters, or something has to be waited for; then
    /// nothing is charged or counted.
    pub fn decide_plainly(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        let [route_limit] = input.limits else { return None };
        if !input.attributes.contradictory.is_empty() {
            return None;
        }
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
        if limit.rates().is_empty() || limit.watched.is_some() || need > most {
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

    /// Decides if nothing has to be waited for: the counters are in memory, and no limit holds requests. Most decisions are so,
    /// and without a future they cost less.
    pub(super) fn decide_at_once(&mut self, input: &DecisionInput<'a, '_>) -> Option<Decision> {
        if self.unasked().is_empty() || input.may_hold() {
            return None;
        }
        let mut reply = input.store.decide_at_once(self.unasked(), input.now)?;
        let decision = self.conclude(input, &mut reply);
        Some(self.finish(input, decision))
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::ControlFlow;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::base::clock::Time;
    use crate::config::{self, Cost, Key, PathPattern, Source};
    use crate::request::decide::{DECISIONS, LimitMetrics, RateSelector, RateTable, Stage, StageRange, TopKeys};
    use crate::request::identify::{KeyExtractor, RequestAttributes};
    use crate::store::Store;
    use crate::store::memory::Memory;

    fn route_limit(rates: &[&str], cost: Cost) -> RouteLimit {
        let key = Key { parts: vec![vec![Source::Header("x-key".parse().unwrap())]] };
        let limit = config::Limit { key, cost, ..config::Limit::with_rates("limit", rates) };
        let path = PathPattern { text: "/*".to_owned(), segments: Vec::new(), rest: true };
        RouteLimit {
            rates: RateSelector::new(Arc::new(RateTable::new(&limit)), &limit, &path),
            quotas: None,
            max_in_flight: None,
            key: KeyExtractor::new(&limit.name, &limit.key, &path, None),
            cost: limit.cost.clone(),
            on_limit: limit.on_limit,
            ban: None,
            slow: None,
            overflow: None,
            is_of_route: true,
            settles: false,
            missing: limit.missing,
            metrics: Arc::new(LimitMetrics::new(&limit.name, 1)),
            counts_keys: true,
            notices: None,
            stage: Stage::Head,
        }
    }

    /// Everything that one way decides about a request with these headers, and has counted so far.
    fn decided(is_plain: bool, limits: &[RouteLimit], store: &Store, headers: &HeaderMap, now: Time) -> Option<String> {
        let attributes = RequestAttributes {
            method: &Method::GET,
            host: "h",
            path: "/",
            query: None,
            headers,
            client: [192, 0, 2, 1].into(),
            contradictory: &[],
            client_cert: None,
            tokens: &[],
            route: "r",
            body: None,
            descriptors: &[],
        };
        let input = DecisionInput {
            limits,
            part: StageRange::ALL,
            attributes: &attributes,
            quotas: &[],
            key_cache: &RefCell::default(),
            store,
            concurrency: &Arc::default(),
            wait_queues: &Arc::default(),
            now,
            worker: 0,
            fail_open: true,
            asker: None,
            traced_since: None,
        };
        let mut state = DecisionState::new(store, 0);
        let decision = if is_plain {
            state.decide_plainly(&input)?
        } else {
            match state.prepare(&input) {
                ControlFlow::Break(decision) => state.finish(&input, decision),
                ControlFlow::Continue(()) => {
                    let Poll::Ready(decision) =
                        pin!(state.decide(&input)).poll(&mut Context::from_waker(Waker::noop()))
                    else {
                        panic!("it waits for memory");
                    };
                    decision
                }
            }
        };
        let metrics = &limits[0].metrics;
        let counts = DECISIONS.map(|(name, count)| (name, metrics.decisions(count)));
        let (outcomes, over, asks) = (&state.outcomes, &state.over, &state.asks);
        let (keys, fullest) = (TopKeys::of(&metrics.keys, now, 10), metrics.fullest(now));
        let left = (state.unasked().len(), state.undecided().len());
        Some(format!("{decision:?} {outcomes:?} {over:?} {asks:?} {left:?} {counts:?} {keys:?} {fullest}"))
    }

    #[test]
    fn the_short_way_decides_counts_and_tells_what_the_general_way_does() {
        let header = |name: &'static str, value: &'static str| (name.parse().unwrap(), HeaderValue::from_static(value));
        for (rates, cost) in
            [(&["3/s"][..], Cost::Fixed(1)), (&["2/s", "5/m"], Cost::Fixed(1)), (&["9/s"], by_header())]
        {
            let ways = [true, false].map(|is_plain| {
                let store = Store::from(Memory::new(100, usize::MAX)).simulated();
                (is_plain, [route_limit(rates, cost.clone())], store)
            });
            for step in 0..60 {
                let key = ["a", "b"][usize::from(step % 3 == 0)];
                let headers = [header("x-key", key), header("x-cost", ["1", "4", "7"][step % 3])];
                let now = Time::from_micros(1_700_000_000_000_000 + step as u64 * 130_000);
                let [short, general] = ways.each_ref().map(|(is_plain, limits, store)| {
                    decided(*is_plain, limits, store, &HeaderMap::from_iter(headers.clone()), now)
                });
                assert!(short.is_some());
                assert_eq!(short, general, "{rates:?}, step {step}");
            }
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_general_way() {
        let (limits, store) = ([route_limit(&["3/s"], by_header())], Store::from(Memory::new(100, usize::MAX)));
        let now = Time::from_micros(1_700_000_000_000_000);
        let decided = |limits: &[RouteLimit], lines: &[(&'static str, &'static str)]| {
            let lines = lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            decided(true, limits, &store, &lines.collect(), now)
        };
        assert_eq!(decided(&limits, &[]), None, "strangers share a key");
        assert_eq!(decided(&limits, &[("x-key", "a"), ("x-cost", "4")]), None, "it can never pass");
        let two = [limits[0].clone(), limits[0].clone()];
        assert_eq!(decided(&two, &[("x-key", "a")]), None);
        let silent = [RouteLimit { on_limit: OnLimit::Silent, ..limits[0].clone() }];
        assert_eq!(decided(&silent, &[("x-key", "a")]), None);
        assert!(decided(&limits, &[("x-key", "a")]).is_some());
    }

    fn by_header() -> Cost {
        Cost::RequestHeader("x-cost".parse().unwrap())
    }
}
