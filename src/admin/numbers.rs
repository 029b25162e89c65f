//! Collects the numbers of the dashboard, with the outcomes of requests in groups.

use std::collections::BTreeMap;

use super::history::{ByOutcome, History};
use super::{View, certificates, limits, upstreams};
use crate::admin::dashboard::{
    ConnectionNumbers, Durations, LimitNumbers, MemoryNumbers, Numbers, RouteNumbers, SharedNumbers, StoreNumbers,
    StoreServer,
};
use crate::base::clock::Time;
use crate::base::metrics::{BOUNDS, Counter, HistogramSnapshot};
use crate::config::{self, Software};
use crate::net::Traffic;
use crate::proxy::telemetry::{MethodClass, Outcome, RouteMetrics};
use crate::request::decide::LimitMetrics;
use crate::store::Counters;
use crate::store::shared::Health;

/// Those that expire first.
const MOST_EXPIRIES: usize = 10;
/// There may be thousands of routes, and a stream gets the numbers each second.
const MOST_ROUTES: usize = 50;

pub(super) fn ended(route: &RouteMetrics) -> ByOutcome {
    let mut all = ByOutcome::default();
    for worker in route.workers.iter() {
        for (sum, outcome) in all.iter_mut().zip(Outcome::ALL) {
            let counters = MethodClass::ALL.iter().flat_map(|method| worker.ended(outcome, *method));
            *sum += counters.map(Counter::get).sum::<u64>();
        }
    }
    all
}

pub(super) fn describe(view: &View, history: &History, now: Time) -> Numbers {
    let connections = view.connections.of(Traffic::Requests).counts();
    Numbers {
        time_ms: now.micros() / 1000,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: view.started.seconds(),
        uptime_seconds: now.seconds().saturating_sub(view.started.seconds()),
        state: view.state(),
        requests: by_outcome(&history.total),
        forwarded_seconds: durations(view),
        held: view.shared.wait_queues.held(),
        minute: history.minute,
        limits: limits(view, history),
        routes: routes(history),
        store: store(view),
        upstreams: upstreams::list(view),
        connections: ConnectionNumbers {
            open: connections.open,
            max: connections.most,
            refused: connections.refused,
            evicted: connections.made_room,
            stalled: connections.stalled,
        },
        reloads: view.reloads_so_far.numbers(),
        certificates: view.certificate_reloads.numbers(),
        expiries: certificates::list(&view.config.load()).take(MOST_EXPIRIES).collect(),
    }
}

fn by_outcome(total: &ByOutcome) -> BTreeMap<String, u64> {
    Outcome::ALL.iter().zip(total).map(|(outcome, count)| (outcome.name().to_owned(), *count)).collect()
}

fn limits(view: &View, history: &History) -> Vec<LimitNumbers> {
    let describe = |limit: &LimitMetrics| LimitNumbers {
        name: limit.name.clone(),
        decisions: limits::decisions(Some(limit)),
        refused_this_minute: history.refused_this_minute(&limit.name),
    };
    let mut all: Vec<_> = view.shared.limits.all().iter().map(|limit| describe(limit)).collect();
    limits::sort(&mut all, history, |limit| (&limit.name, limit.decisions.refused()));
    all
}

fn routes(history: &History) -> Vec<RouteNumbers> {
    let of = |(name, counted): (&str, &ByOutcome)| {
        let groups = by_group(|outcome| counted[outcome as usize]);
        RouteNumbers {
            name: name.to_owned(),
            requests: counted.iter().sum(),
            refused: groups[LIMITED] + groups[REFUSED],
            failed: groups[FAILED],
        }
    };
    let mut all: Vec<_> = history.routes().map(of).collect();
    all.sort_by(|a, b| (b.requests, &a.name).cmp(&(a.requests, &b.name)));
    all.truncate(MOST_ROUTES);
    all
}

fn durations(view: &View) -> Durations {
    let routes = view.shared.routes.all();
    let workers = routes.iter().flat_map(|route| route.workers.iter());
    describe_durations(&workers.map(|worker| &worker.latency[Outcome::Forwarded as usize]).collect())
}

fn describe_durations(sum: &HistogramSnapshot) -> Durations {
    #[expect(clippy::cast_precision_loss, reason = "the bounds have few digits")]
    let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6).collect();
    Durations { bounds, counts: sum.buckets.to_vec() }
}

fn store(view: &View) -> Option<StoreNumbers> {
    let config = view.config.load();
    match (&view.snapshot.load().store.counters, &config.store) {
        (Counters::Memory(memory), config::Store::Memory { max_keys, max_memory, .. }) => {
            Some(StoreNumbers::Memory(MemoryNumbers {
                keys: memory.keys(),
                max_keys: *max_keys,
                bytes: memory.bytes(),
                max_bytes: *max_memory,
                evictions: memory.evicted(),
                gateways: config.gateways,
            }))
        }
        (Counters::Shared(shared), config::Store::Shared(config)) => {
            let numbers = shared_store(shared.health());
            Some(match config.software {
                Software::Memcached => StoreNumbers::Memcached(numbers),
                Software::Valkey => StoreNumbers::Valkey(numbers),
            })
        }
        // A reload is changing the store.
        (Counters::Memory(_), config::Store::Shared(_)) | (Counters::Shared(_), config::Store::Memory { .. }) => None,
    }
}

fn shared_store(health: &Health) -> SharedNumbers {
    let servers = health.servers();
    let servers = servers.iter().map(|server| StoreServer {
        server: server.address.clone(),
        up: server.is_up(),
        clock_skew_seconds: server.skew(),
        evictions: server.evictions(),
    });
    SharedNumbers {
        servers: servers.collect(),
        round_trips: health.round_trips.get(),
        errors: health.errors.count(),
        local: health.local.get(),
        lost: health.lost.get(),
        round_trip_seconds: describe_durations(&HistogramSnapshot::from_iter([&health.latency])),
    }
}

/// Outcomes that mean about the same to an operator.
#[derive(Debug)]
pub struct Group {
    pub name: &'static str,
    /// Each outcome is in one group.
    pub outcomes: &'static [Outcome],
}

/// The page of the dashboard has the same groups.
pub const GROUPS: [Group; 5] = [
    Group { name: "served", outcomes: &[Outcome::Forwarded, Outcome::Responded, Outcome::Tunneled] },
    Group { name: "over a limit", outcomes: &[Outcome::Limited, Outcome::Silenced] },
    Group { name: "refused", outcomes: &[Outcome::Blocked, Outcome::Refused, Outcome::Unrouted] },
    Group { name: "failed", outcomes: &[Outcome::Failed, Outcome::Unavailable, Outcome::Shed] },
    Group { name: "abandoned", outcomes: &[Outcome::Abandoned] },
];

/// The index of the group of requests over a limit.
pub const LIMITED: usize = 1;
/// The index of the group of requests that are refused for another reason.
pub const REFUSED: usize = 2;
/// The index of the group of failed requests.
pub const FAILED: usize = 3;

pub type ByGroup<T> = [T; GROUPS.len()];

/// `requests` says how many requests had an outcome.
pub fn by_group(requests: impl Fn(Outcome) -> u64) -> ByGroup<u64> {
    GROUPS.map(|group| group.outcomes.iter().fold(0, |sum, outcome| requests(*outcome).saturating_add(sum)))
}

pub fn by_group_of_names(requests: &BTreeMap<String, u64>) -> ByGroup<u64> {
    by_group(|outcome| requests.get(outcome.name()).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_in_one_group() {
        let mut grouped: Vec<_> =
            GROUPS.iter().flat_map(|group| group.outcomes).map(|outcome| outcome.name()).collect();
        let mut all: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
        let names = [LIMITED, REFUSED, FAILED].map(|place| GROUPS[place].name);
        assert_eq!(names, ["over a limit", "refused", "failed"]);
    }
}
