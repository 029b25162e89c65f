//! `/metrics`: all counters in Prometheus' text format. No client's key is ever a label.

mod tokens;

use prometheus::TextEncoder;
use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::View;
use super::families::{Label, counter, family, gauge, histogram, real};
use super::{shed, upstreams as upstream_servers};
use crate::clock::Time;
use crate::decide::{DECISIONS, LimitMetrics};
use crate::metrics::{Counter, HistogramSnapshot};
use crate::reason::Reason;
use crate::server::{ConnectionCounts, Http2Errors};
use crate::store::Store;
use crate::store::memcached::{Health, Server};
use crate::telemetry::{CLASSES, Outcome, RouteMetrics};
use crate::tls::ListenerTls;

type Failed = [Counter; Reason::ALL.len()];

/// All metrics as text.
pub fn text(view: &View) -> String {
    let routes = view.shared.routes();
    let limits = view.shared.limits();
    let upstreams = view.shared.upstreams();
    let (succeeded, refused) = view.reloads_so_far.counts();
    let mut families = vec![
        family(
            "gateway_build_info",
            "The version that runs; always 1.",
            MetricType::GAUGE,
            [gauge(1, &[("version", env!("CARGO_PKG_VERSION"))])],
        ),
        family(
            "gateway_requests_total",
            "Requests by route, outcome and class of status.",
            MetricType::COUNTER,
            routes.iter().flat_map(|route| requests(route)),
        ),
        family(
            "gateway_request_duration_seconds",
            "Time from the head of a request to the end of its response, by route and outcome.",
            MetricType::HISTOGRAM,
            routes.iter().flat_map(|route| durations(route)),
        ),
        family(
            "gateway_request_failures_total",
            "Requests that failed, by route and reason.",
            MetricType::COUNTER,
            routes
                .iter()
                .flat_map(|route| reasons(route.workers.iter().map(|worker| &worker.failed), ("route", &route.name))),
        ),
        family(
            "gateway_upstream_failures_total",
            "Failures of upstreams, by reason.",
            MetricType::COUNTER,
            upstreams.iter().flat_map(|upstream| reasons(upstream.workers.iter(), ("upstream", &upstream.name))),
        ),
        family(
            "gateway_limit_decisions_total",
            "Decisions by limit: admitted, rejected, shadowed (over a limit that only reports), silenced, delayed (held \
             first), not_charged (refused by another limit), exempt and blocked (overrides), skipped and keyless (no \
             key), unknown (the store did not answer).",
            MetricType::COUNTER,
            limits.iter().flat_map(|limit| decisions(limit)),
        ),
        family(
            "gateway_requests_held",
            "Requests that wait for room in a limit.",
            MetricType::GAUGE,
            [gauge(view.shared.held(), &[])],
        ),
        family(
            "gateway_config_reloads_total",
            "Reloads of the configuration, by result.",
            MetricType::COUNTER,
            [counter(succeeded, &[("result", "ok")]), counter(refused, &[("result", "refused")])],
        ),
        family(
            "gateway_log_dropped_total",
            "Log lines that were dropped, because standard error was not read fast enough or could not be written.",
            MetricType::COUNTER,
            [counter(view.dropped_lines.count(), &[])],
        ),
    ];
    families.extend(upstream_servers::metrics(view));
    families.extend(shed::metrics(view));
    families.extend(connections(view.connections.counts()));
    families.extend(http2_errors(view.connections.http2_errors()));
    families.extend(tls(&view.tls));
    families.extend(tokens::families(&view.shared));
    families.extend(store(&view.store));
    families.retain(|family| !family.get_metric().is_empty());
    // Fails only for families without a metric or with a bad name.
    TextEncoder::new().encode_to_string(&families).unwrap_or_default()
}

fn requests(route: &RouteMetrics) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for outcome in Outcome::ALL {
        for (class, name) in CLASSES.iter().enumerate() {
            let count = route.workers.iter().map(|worker| worker.ended[outcome as usize][class].get()).sum();
            // Most pairs never occur. A series that exists once never disappears, since counts only grow.
            if count > 0 {
                let labels = [("route", &*route.name), ("outcome", outcome.name()), ("status", name)];
                metrics.push(counter(count, &labels));
            }
        }
    }
    metrics
}

/// The failures of all workers by reason.
fn reasons<'a>(workers: impl Iterator<Item = &'a Failed>, of: Label<'_>) -> Vec<Metric> {
    let mut counts = [0; Reason::ALL.len()];
    workers.for_each(|failed| counts.iter_mut().zip(failed).for_each(|(sum, count)| *sum += count.get()));
    // Most reasons never occur. A series that exists once never disappears, since counts only grow.
    let happened = Reason::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
    happened.map(|(reason, count)| counter(count, &[of, ("reason", reason.name())])).collect()
}

fn durations(route: &RouteMetrics) -> Vec<Metric> {
    let of = |outcome: Outcome| {
        let mut snapshot = HistogramSnapshot::default();
        route.workers.iter().for_each(|worker| worker.latency[outcome as usize].add_to(&mut snapshot));
        // Most outcomes never occur. A series that exists once never disappears, since counts only grow.
        let has_happened = snapshot.buckets.iter().any(|count| *count > 0);
        has_happened.then(|| histogram(&snapshot, &[("route", &route.name), ("outcome", outcome.name())]))
    };
    Outcome::ALL.into_iter().filter_map(of).collect()
}

fn connections(counts: ConnectionCounts) -> [MetricFamily; 7] {
    let counted = |name: &str, help: &str, count: u64| family(name, help, MetricType::COUNTER, [counter(count, &[])]);
    [
        family(
            "gateway_connections",
            "Connections of clients that are open.",
            MetricType::GAUGE,
            [gauge(counts.open, &[])],
        ),
        family(
            "gateway_connections_max",
            "How many may be open: max_connections, or what the limit of file handles allows.",
            MetricType::GAUGE,
            [gauge(counts.most, &[])],
        ),
        counted(
            "gateway_connections_refused_total",
            "Connections that were closed at once, because their address had max_connections_per_ip.",
            counts.refused,
        ),
        counted(
            "gateway_proxy_protocol_failures_total",
            "Connections that were closed because they did not begin with a valid preamble of the PROXY protocol.",
            counts.bad_preambles,
        ),
        counted(
            "gateway_connections_evicted_total",
            "Idle connections that were closed to make room for others, because max_connections were open.",
            counts.made_room,
        ),
        counted(
            "gateway_connections_stalled_total",
            "Connections that were ended because the client read nothing for body_timeout.",
            counts.stalled,
        ),
        counted(
            "gateway_accept_failures_total",
            "How often no connection could be accepted because file handles or memory were exhausted.",
            counts.exhausted,
        ),
    ]
}

fn http2_errors(errors: &Http2Errors) -> [MetricFamily; 3] {
    let counted = |(error, count): (&str, u64)| counter(count, &[("error", error)]);
    [
        family(
            "gateway_http2_connection_errors_total",
            "Connections of HTTP/2 clients that were ended with an error (GOAWAY), by error.",
            MetricType::COUNTER,
            errors.connections().map(counted),
        ),
        family(
            "gateway_http2_stream_errors_total",
            "Streams of HTTP/2 clients that were reset with an error (RST_STREAM), by error.",
            MetricType::COUNTER,
            errors.streams().map(counted),
        ),
        family(
            "gateway_http2_requests_refused_total",
            "Requests of HTTP/2 clients that reached no route, because their heads were not valid or too large, or there \
             were too many at once; counted when their connection ends.",
            MetricType::COUNTER,
            [counter(errors.refused_requests(), &[])],
        ),
    ]
}

fn tls(tls: &ListenerTls) -> [MetricFamily; 2] {
    let (shaken, failed) = tls.handshakes();
    let expiries = tls.expiries();
    let expiry = |(file, not_after): &(String, Time)| {
        gauge(usize::try_from(not_after.seconds()).unwrap_or(usize::MAX), &[("certificate", file)])
    };
    [
        family(
            "gateway_tls_handshakes_total",
            "TLS handshakes with clients that have begun one, by result.",
            MetricType::COUNTER,
            [counter(shaken, &[("result", "ok")]), counter(failed, &[("result", "failed")])],
        ),
        family(
            "gateway_tls_certificate_expiry_timestamp_seconds",
            "When the first certificate of each chain expires, in seconds since 1970.",
            MetricType::GAUGE,
            expiries.iter().map(expiry),
        ),
    ]
}

fn decisions(limit: &LimitMetrics) -> Vec<Metric> {
    let metric = |(kind, count): &(&str, _)| {
        counter(limit.decisions(*count), &[("limit", limit.name.as_str()), ("decision", *kind)])
    };
    DECISIONS.iter().map(metric).collect()
}

fn store(store: &Store) -> Vec<MetricFamily> {
    match store {
        Store::Memory(memory) => vec![
            family("gateway_store_keys", "Keys held in memory.", MetricType::GAUGE, [gauge(memory.keys(), &[])]),
            family(
                "gateway_store_bytes",
                "Memory that the counters take, of max_memory.",
                MetricType::GAUGE,
                [gauge(memory.bytes(), &[])],
            ),
            family(
                "gateway_store_evictions_total",
                "Keys still in use that were evicted for others: max_keys or max_memory is too small.",
                MetricType::COUNTER,
                [counter(memory.evicted(), &[])],
            ),
        ],
        Store::Memcached(memcached) => health(memcached.health()),
    }
}

fn health(health: &Health) -> Vec<MetricFamily> {
    let mut snapshot = HistogramSnapshot::default();
    health.latency.add_to(&mut snapshot);
    let counted = |name: &str, help: &str, count: u64| family(name, help, MetricType::COUNTER, [counter(count, &[])]);
    let servers = |name: &str, help: &str, of: fn(&Server) -> f64| {
        let metrics = health.servers.iter().map(|server| real(of(server), &[("server", &server.address)]));
        family(name, help, MetricType::GAUGE, metrics)
    };
    vec![
        counted(
            "gateway_store_round_trips_total",
            "Exchanges with Memcached; one serves many decisions.",
            health.round_trips.get(),
        ),
        counted(
            "gateway_store_remembered_total",
            "Refusals given without asking Memcached, because an earlier one still held.",
            health.remembered.iter().map(Counter::get).sum(),
        ),
        counted(
            "gateway_store_errors_total",
            "Exchanges with Memcached that failed in whole or in part, and attempts to connect that failed.",
            health.errors.get(),
        ),
        counted(
            "gateway_store_local_total",
            "Decisions made from the last known counts, because Memcached did not answer.",
            health.local.get(),
        ),
        counted(
            "gateway_store_lost_total",
            "Counters that were known and found missing in Memcached: evicted, or gone with a restart.",
            health.lost.get(),
        ),
        counted(
            "gateway_store_forgotten_total",
            "Keys that made room for others before Memcached knew what they had been admitted.",
            health.forgotten.get(),
        ),
        servers("gateway_store_up", "Whether the server answers.", |server| f64::from(u8::from(server.is_up()))),
        servers(
            "gateway_store_clock_skew_seconds",
            "How far the server's clock is ahead of this machine's, as far as whole seconds tell.",
            Server::skew,
        ),
        servers(
            "gateway_store_memcached_evictions",
            "Items that the server says it has evicted for want of memory: counters may be among them.",
            Server::evictions,
        ),
        family(
            "gateway_store_round_trip_duration_seconds",
            "How long exchanges with Memcached took.",
            MetricType::HISTOGRAM,
            [histogram(&snapshot, &[])],
        ),
    ]
}
