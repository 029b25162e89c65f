//! Runs one request of the log through the gateway's own steps: route, identify, decide. The clock is that of the log.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::record::{Record, Spent};
use super::statistics::{Decided, LimitStatistics, Outcome};
use crate::base::clock::Time;
use crate::base::printable::printable;
use crate::commands::told_request;
use crate::config::{Config, Cost};
use crate::limit::{CountedUnit, MAX_QUOTA};
use crate::proxy::snapshot::{SharedState, Snapshot};
use crate::request::decide::{
    self, Asker, Decision, DecisionInput, DecisionState, LimitVerdict, PendingReservation, RouteLimit, StageRange,
};
use crate::request::identify::KeyCache;
use crate::request::identify::key_text::key_text;
use crate::request::resolve::{NextStep, Resolved};
use crate::store::{Answer, Asks, Counters, Store};

/// Shown for the counter of requests without a key.
const NO_KEY: &str = "(no key)";

/// The gateway as it would have decided.
pub(super) struct Replay<'c> {
    config: &'c Config,
    gateway: Snapshot,
    /// For requests whose line names no host.
    default_host: Option<&'c str>,
    uses_tls: bool,
    head: Parts,
    key_cache: RefCell<KeyCache>,
    /// In the order of the configuration.
    pub(super) limits: Vec<LimitStatistics>,
    pub(super) totals: Totals,
}

/// All requests, whatever limits say about them.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) unrouted: u64,
    /// Refused before limits are asked, for example because of an ambiguous path.
    pub(super) refused: u64,
    /// Refused or blocked by at least one limit.
    pub(super) limited: u64,
    /// Answered 429 in the log.
    pub(super) limited_then: u64,
    pub(super) first: Option<Time>,
    pub(super) last: Option<Time>,
}

impl<'c> Replay<'c> {
    /// Has empty counters. The limits of the configuration must not hold requests.
    pub(super) fn new(config: &'c Config, store: Store, default_host: Option<&'c str>) -> Self {
        let gateway = Snapshot::build(config, &SharedState::new(1, 1), Arc::new(store));
        let statistics = |rates: &Arc<decide::RateTable>| {
            let all: Vec<_> = rates.limits().cloned().collect();
            LimitStatistics::new(&rates.default_limit, &all)
        };
        Self {
            limits: gateway.limits.iter().map(statistics).collect(),
            uses_tls: !config.server.listen.is_empty() && config.server.listen.iter().all(|listener| listener.tls),
            head: http::Request::new(()).into_parts().0,
            key_cache: RefCell::default(),
            totals: Totals::default(),
            config,
            gateway,
            default_host,
        }
    }

    /// How many keys the store evicted although they were in use.
    pub(super) fn evicted(&self) -> u64 {
        match &self.gateway.store.counters {
            Counters::Memory(memory) => memory.evicted(),
            Counters::Shared(_) => 0,
        }
    }

    /// `None` if no route uses the limit.
    pub(super) fn metrics(&self, name: &str) -> Option<&decide::DecisionCounters> {
        let mut limits = self.gateway.served.iter().flat_map(|route| route.limits.iter());
        limits.find(|limit| limit.metrics.name == name).map(|limit| limit.metrics.workers.of(0))
    }

    /// Asks the limits that count bytes for the response, whose length is taken to be known. Returns whether there is room.
    fn charge_bytes(&self, limits: &[RouteLimit], state: &mut DecisionState<'_>, record: &Record) -> bool {
        let opened = state.reservations.open_bytes();
        let mut asks = Asks::new();
        for PendingReservation { costs, reserved, .. } in &opened {
            let more = costs.iter().map(|(_, cost, _)| response_bytes(cost, record)).max().unwrap_or(0);
            let limit = limits.get(reserved.place).filter(|_| more > 0);
            asks.extend(limit.map(|limit| reserved.ask_for(more, limit.on_limit.role())));
        }
        let Answer::Now(mut reply) = self.gateway.store.decide(&asks, record.time, 0) else { return true };
        let reserved = std::mem::take(&mut reply.reserved);
        let decision = state.conclude_later(limits, &reply, |_| record.bytes.unwrap_or(0));
        drop(asks);
        for reserved in opened.into_iter().map(|opened| opened.reserved).chain(reserved) {
            let cost = reserved.cost();
            self.gateway.store.settle(reserved, cost, None, record.time, 0);
        }
        decision == Decision::Admitted
    }

    /// Decides a request, which is not before the last one.
    pub(super) fn add(&mut self, record: &Record) {
        self.totals.requests += 1;
        self.totals.first.get_or_insert(record.time);
        self.totals.last = Some(record.time);
        self.totals.limited_then += u64::from(record.status == Some(StatusCode::TOO_MANY_REQUESTS));
        self.head.headers.clear();
        for (name, value) in &record.headers {
            self.head.headers.append(name, value.clone());
        }
        (self.head.method, self.head.uri) = (record.method.clone(), record.uri.clone());
        told_request::add_host(&mut self.head, record.named_host().or(self.default_host));
        let peer = record.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.gateway.resolver.remove_unforwarded(&mut self.head.headers, peer);
        let request = told_request::arrived(&self.head, peer, self.uses_tls);
        let Resolved { client, target, route, next, .. } = self.gateway.resolver.resolve(request);
        match next {
            NextStep::Refuse(_) => self.totals.refused += 1,
            NextStep::Unrouted => self.totals.unrouted += 1,
            NextStep::Preflight | NextStep::Decide => {}
        }
        let (NextStep::Decide, Some(index)) = (next, route) else { return };
        let Some(route) = self.gateway.served.get(index) else { return };
        let attributes = request.attributes(&client, &target, &route.metrics.name);
        let input = DecisionInput {
            // A source knows the quotas of today, not those of the time of the log.
            quotas: &[],
            limits: &route.limits,
            part: StageRange::ALL,
            attributes: &attributes,
            key_cache: &self.key_cache,
            store: &self.gateway.store,
            concurrency: &self.gateway.concurrency,
            wait_queues: &self.gateway.wait_queues,
            now: record.time,
            worker: 0,
            traced_since: None,
            fail_open: true,
            // The bytes pass elsewhere, as for a proxy that asks.
            asker: Some(Asker { longest_hold: Duration::MAX }),
        };
        let mut state = DecisionState::new(&self.gateway.store, 0);
        // The memory store answers at once, and no limit holds requests.
        let decided = pin!(decide::decide(&input, &mut state)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(decision) = decided else { return };
        let mut has_room = true;
        if decision == Decision::Admitted {
            has_room = self.charge_bytes(&route.limits, &mut state, record);
            state.reservations.settle(|cost| response_cost(cost, record), &mut [], || record.time);
        }
        state.reservations.keep(|| record.time);
        self.totals.limited += u64::from(decision != Decision::Admitted || !has_room);
        let indices =
            self.config.routes.get(index).into_iter().flat_map(|route| route.limits.iter().chain(&route.pools));
        for (place, index) in indices.enumerate() {
            if let Some(statistics) = self.limits.get_mut(*index) {
                note(record, &input, decision, &state, place, statistics);
            }
        }
    }
}

/// The final cost, as far as the log has it; `None` if the request costs what was reserved. Bytes of the response are not in it.
fn response_cost(cost: &Cost, record: &Record) -> Option<u64> {
    if let Cost::Bytes(_) = cost {
        return None;
    }
    let by_status = record.status.and_then(|status| decide::response_cost(cost, status, &HeaderMap::new()));
    by_status.or_else(|| match (cost, record.spent?) {
        (Cost::Tokens(cost), Spent::Tokens(used)) => Some(cost.weights.cost(used)),
        (Cost::Tokens(_) | Cost::ResponseHeader { .. }, Spent::Cost(cost)) => Some(cost.min(MAX_QUOTA)),
        _ => None,
    })
}

/// The bytes of the response that a limit with this cost counts.
fn response_bytes(cost: &Cost, record: &Record) -> u64 {
    match cost {
        Cost::Bytes(cost) => cost.counted.of([0, record.bytes.unwrap_or(0)]),
        _ => 0,
    }
}

/// Notes the decision of the limit at this place, if there is one.
fn note(
    record: &Record,
    input: &DecisionInput<'_, '_>,
    decision: Decision,
    state: &DecisionState<'_>,
    place: usize,
    statistics: &mut LimitStatistics,
) {
    let Some(route_limit) = input.limits.get(place) else { return };
    let is_shadowed = state.shadowed.contains(&place);
    let own = route_limit.rates.default_limit();
    let text = || {
        let parts = route_limit.key.parts(input.attributes);
        if parts.iter().all(Option::is_none) { NO_KEY.to_owned() } else { printable(&key_text(&parts)) }
    };
    let time = record.time;
    if let Decision::TooCostly { place: refusing, most } = decision {
        if refusing == place {
            let found = route_limit.key.extract(input.attributes, usize::MAX, &mut KeyCache::default());
            let key = found.unwrap_or(route_limit.key.shared);
            let (need, outcome) = (most.saturating_add(1), Outcome::Rejected);
            let decided = Decided { key, time, limit: own, is_own: false, need, cost: 0, demand: 0, outcome };
            statistics.add(&decided, text);
        }
        return;
    }
    let Some(ask) = state.asks.iter().find(|ask| ask.place == place) else {
        statistics.counts.reported_blocks += u64::from(is_shadowed);
        return;
    };
    let (mut has_ban_begun, mut is_banned) = (false, false);
    match decision {
        Decision::Admitted | Decision::Rejected => {}
        Decision::Banned { place: of, begins, .. } => {
            (has_ban_begun, is_banned) = (begins && of == place, !begins && of == place);
        }
        _ => return,
    }
    // A pool that the route does not name is asked only if other limits have no room.
    let pooled = state.pooled.iter().find(|pooled| pooled.place == place);
    if !route_limit.is_of_route && pooled.is_none() {
        return;
    }
    if is_banned {
        statistics.counts.banned += 1;
        return;
    }
    let told = state.outcomes.iter().find(|outcome| outcome.place == place);
    if let (Some(slow), Some(LimitVerdict::Rates(verdict))) = (route_limit.slow, told.map(|found| found.verdict)) {
        statistics.counts.held += u64::from(verdict.level > slow.from);
        statistics.counts.fullest_held = statistics.counts.fullest_held.max(verdict.level);
    }
    let outcome = match decision {
        _ if is_shadowed || state.over.contains(&place) => Outcome::Rejected,
        Decision::Admitted if state.overflowed.contains(&place) => Outcome::Overflowed,
        Decision::Admitted => Outcome::Charged,
        _ => Outcome::NotCharged,
    };
    let told = |(cost, initial): (&Cost, u64)| {
        response_cost(cost, record).unwrap_or(initial).saturating_add(response_bytes(cost, record))
    };
    let cost = state.costs(input.limits, place).map(told).max().unwrap_or(0);
    let is_told_later = state.costs(input.limits, place).any(|(cost, _)| cost.is_known_from_response());
    let was_refused = record.status == Some(StatusCode::TOO_MANY_REQUESTS);
    let estimated = if is_told_later && was_refused { statistics.mean_cost(ask.key) } else { None };
    let need = pooled.map_or(ask.need, |pooled| pooled.demand.need);
    let decided = Decided {
        key: ask.key,
        time,
        limit: ask.limit,
        is_own: Arc::ptr_eq(ask.limit, own),
        // A response that another limit has kept away needs nothing.
        need: match outcome {
            Outcome::NotCharged => need,
            _ if ask.limit.unit() == CountedUnit::Bytes => need.max(cost),
            _ => need,
        },
        cost,
        demand: estimated.unwrap_or(cost),
        outcome,
    };
    statistics.add(&decided, text);
    if is_told_later && !was_refused {
        statistics.learn(ask.key, cost);
    }
    if has_ban_begun {
        statistics.begin_ban(ask.key);
    }
}
