//! Metrics of the store: counters in memory, or the state of the servers that gateways share.

use prometheus::proto::MetricFamily;

use super::super::View;
use super::super::families::{counted, counter, counters, gauge, gauged, gauges, histogram, histograms, real};
use crate::base::metrics::{Counter, HistogramSnapshot};
use crate::config::OnError;
use crate::store::Counters;
use crate::store::shared::{Health, Server};

pub(super) fn families(view: &View) -> Vec<MetricFamily> {
    let snapshot = view.snapshot.load();
    let mut families = match &snapshot.store.counters {
        Counters::Memory(memory) => vec![
            modes(&[("memory", true)]),
            keys(memory.keys()),
            gauged("gateway_store_max_keys", "The maximum number of keys in memory.", memory.max_keys()),
            gauged("gateway_store_bytes", "Memory that the counters take.", memory.bytes()),
            gauged("gateway_store_max_bytes", "The maximum memory for the counters: max_memory.", memory.max_bytes),
            counted(
                "gateway_store_evictions_total",
                "Keys still in use that were evicted for others: max_keys or max_memory is too small.",
                memory.evicted(),
            ),
            gauged(
                "gateway_store_snapshot_unread",
                "1 if saved counters could not be read at the start, so that limits began anew.",
                usize::from(view.shared.unread_counters.lock().is_some()),
            ),
        ],
        Counters::Shared(shared) => health(shared.health(), snapshot.on_error),
    };
    families.extend(share(view));
    families
}

/// How many gateways share the limits, and how well that number is known; empty if limits are not shared.
fn share(view: &View) -> Vec<MetricFamily> {
    let (config, gateways) = (view.config.load(), &view.shared.gateways);
    let Some(share) = config.store.share() else { return Vec::new() };
    vec![
        gauged(
            "gateway_share_gateways",
            "How many gateways share the limits: each enforces its part of every rate.",
            usize::try_from(config.gateways).unwrap_or(usize::MAX),
        ),
        gauged(
            "gateway_share_known",
            "Whether it is known how many gateways share the limits: 0 until a lookup of their name has succeeded.",
            usize::from(gateways.unknown(Some(share)).is_none()),
        ),
        counted(
            "gateway_share_failed_lookups_total",
            "Lookups of the gateways' name that failed or had no answer; the last known number holds.",
            gateways.failures(),
        ),
    ]
}

fn keys(count: usize) -> MetricFamily {
    gauged("gateway_store_keys", "Keys whose counters are held in memory.", count)
}

/// How the store decides now, among all modes of this kind of store.
fn modes(modes: &[(&str, bool)]) -> MetricFamily {
    gauges(
        "gateway_store_mode",
        "How decisions are made now, 1 for each that applies: memory; shared (a server answers), and what \
         on_error says (local, allow, reject) for the keys of servers that do not answer.",
        modes.iter().map(|(mode, applies)| gauge(usize::from(*applies), &[("mode", mode)])),
    )
}

fn health(health: &Health, on_error: OnError) -> Vec<MetricFamily> {
    let all = health.servers();
    let answers = |is_up: bool| all.iter().any(|server| server.is_up() == is_up);
    let latency = HistogramSnapshot::from_iter([&health.latency]);
    let servers = |name: &str, help: &str, of: fn(&Server) -> f64| {
        let metrics = all.iter().map(|server| real(of(server), &[("server", &server.address)]));
        gauges(name, help, metrics)
    };
    vec![
        modes(&[("shared", answers(true)), (on_error.word(), answers(false))]),
        keys(health.keys()),
        counted(
            "gateway_store_decisions_total",
            "Decisions by counters on servers: more than round trips, because several can share one.",
            health.decisions.iter().map(Counter::get).sum(),
        ),
        counted(
            "gateway_store_round_trips_total",
            "Exchanges with servers; one can serve many decisions.",
            health.round_trips.get(),
        ),
        counted(
            "gateway_store_remembered_total",
            "Refusals without asking a server, because an earlier one still held.",
            health.remembered.iter().map(Counter::get).sum(),
        ),
        counted(
            "gateway_store_errors_total",
            "Exchanges with servers that failed in whole or in part, and attempts to connect that failed.",
            health.errors.count(),
        ),
        counted(
            "gateway_store_local_total",
            "Decisions made from the last known counts, because a server did not answer.",
            health.local.get(),
        ),
        counted(
            "gateway_store_lost_total",
            "Known counters that were missing on a server: evicted, or lost in a restart.",
            health.lost.get(),
        ),
        counted(
            "gateway_store_forgotten_total",
            "Keys that had to make room before a server knew what was admitted for them.",
            health.forgotten.get(),
        ),
        servers("gateway_store_up", "Whether the server answers.", |server| f64::from(u8::from(server.is_up()))),
        servers(
            "gateway_store_clock_skew_seconds",
            "How far the server's clock is ahead of this machine's, in whole seconds; below 0, it is behind.",
            Server::skew,
        ),
        counters(
            &format!("gateway_store_{}_evictions_total", health.name),
            "Items that the server has evicted for lack of memory; counters may be among them.",
            all.iter().map(|server| counter(server.evictions(), &[("server", &server.address)])),
        ),
        histograms(
            "gateway_store_round_trip_duration_seconds",
            "How long exchanges with servers took.",
            [histogram(&latency, &[])],
        ),
    ]
}
