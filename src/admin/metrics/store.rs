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
            gauged("gateway_store_keys", memory.keys()),
            gauged("gateway_store_max_keys", memory.max_keys()),
            gauged("gateway_store_bytes", memory.bytes()),
            gauged("gateway_store_max_bytes", memory.max_bytes),
            counted("gateway_store_evictions_total", memory.evicted()),
            gauged("gateway_store_snapshot_unread", usize::from(view.shared.unread_counters.lock().is_some())),
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
        gauged("gateway_share_gateways", usize::try_from(config.gateways).unwrap_or(usize::MAX)),
        gauged("gateway_share_known", usize::from(gateways.unknown(Some(share)).is_none())),
        counted("gateway_share_failed_lookups_total", gateways.failures()),
    ]
}

/// How the store decides now, among all modes of this kind of store.
fn modes(modes: &[(&str, bool)]) -> MetricFamily {
    gauges("gateway_store_mode", modes.iter().map(|(mode, applies)| gauge(usize::from(*applies), &[("mode", mode)])))
}

fn health(health: &Health, on_error: OnError) -> Vec<MetricFamily> {
    let all = health.servers();
    let answers = |is_up: bool| all.iter().any(|server| server.is_up() == is_up);
    let latency = HistogramSnapshot::from_iter([&health.latency]);
    let servers = |name: &str, of: fn(&Server) -> f64| {
        let metrics = all.iter().map(|server| real(of(server), &[("server", &server.address)]));
        gauges(name, metrics)
    };
    vec![
        modes(&[("shared", answers(true)), (on_error.word(), answers(false))]),
        gauged("gateway_store_keys", health.keys()),
        counted("gateway_store_decisions_total", health.decisions.iter().map(Counter::get).sum()),
        counted("gateway_store_round_trips_total", health.round_trips.get()),
        counted("gateway_store_remembered_total", health.remembered.iter().map(Counter::get).sum()),
        counted("gateway_store_errors_total", health.errors.count()),
        counted("gateway_store_local_total", health.local.get()),
        counted("gateway_store_lost_total", health.lost.get()),
        counted("gateway_store_forgotten_total", health.forgotten.get()),
        servers("gateway_store_up", |server| f64::from(u8::from(server.is_up()))),
        servers("gateway_store_clock_skew_seconds", Server::skew),
        counters(
            &format!("gateway_store_{}_evictions_total", health.name),
            all.iter().map(|server| counter(server.evictions(), &[("server", &server.address)])),
        ),
        histograms("gateway_store_round_trip_duration_seconds", [histogram(&latency, &[])]),
    ]
}
