//! `/api/upstreams`: each server of each upstream, as JSON, and the same as metrics.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily};

use super::View;
use super::families::{self, counter, counters, gauge, gauges, histogram, histograms};
use crate::admin::dashboard::{ServerNumbers, UpstreamNumbers};
use crate::base::metrics::HistogramSnapshot;
use crate::upstream::{Availability, Endpoint, EndpointStatus, RetryCounts, Upstream};

pub(super) fn list(view: &View) -> Vec<UpstreamNumbers> {
    view.snapshot.load().upstreams.iter().map(|upstream| describe(upstream)).collect()
}

fn describe(upstream: &Upstream) -> UpstreamNumbers {
    let retries = upstream.retries();
    let servers = upstream.status().into_iter();
    UpstreamNumbers {
        name: upstream.config.name.clone(),
        retries: retries.sent,
        retries_over_budget: retries.refused,
        waiting: upstream.waiting(),
        servers: servers.map(|(endpoint, weight, status)| server(upstream, &endpoint, weight, &status)).collect(),
    }
}

fn server(upstream: &Upstream, endpoint: &Endpoint, weight: u32, status: &EndpointStatus) -> ServerNumbers {
    ServerNumbers {
        server: endpoint.to_string(),
        weight,
        health: status.availability.name().to_owned(),
        in_flight: status.in_flight,
        max_in_flight: upstream.most_in_flight(endpoint),
        requests: status.requests,
        failures: status.failures,
        failures_in_row: status.failures_in_row,
        ejections: status.ejections,
        failed_checks: status.failed_checks,
        latency_seconds: status.latency.map(|latency| latency.as_secs_f64()),
    }
}

pub(super) fn metrics(view: &View) -> Vec<MetricFamily> {
    let upstreams = view.snapshot.load().upstreams.clone();
    let servers: Vec<_> = upstreams.iter().flat_map(|upstream| labelled(upstream)).collect();
    let counted = |name, count: fn(&EndpointStatus) -> u64| {
        let metrics = servers.iter().map(|server| counter(count(&server.status), &server.labels()));
        counters(name, metrics)
    };
    let retried = |name, count: fn(&RetryCounts) -> u64| {
        let metric =
            |upstream: &Arc<Upstream>| counter(count(&upstream.retries()), &[("upstream", &upstream.config.name)]);
        counters(name, upstreams.iter().map(metric))
    };
    vec![
        gauges(
            "gateway_upstream_server_healthy",
            servers
                .iter()
                .map(|server| server.gauge(usize::from(server.status.availability == Availability::Available))),
        ),
        gauges("gateway_upstream_server_in_flight", servers.iter().map(|server| server.gauge(server.status.in_flight))),
        gauges(
            "gateway_upstream_server_max_in_flight",
            servers.iter().filter_map(|server| Some(server.gauge(server.most?))),
        ),
        histograms(
            "gateway_upstream_server_latency_seconds",
            servers.iter().map(|server| histogram(&server.latencies, &server.labels())),
        ),
        counted("gateway_upstream_server_requests_total", |status| status.requests),
        counted("gateway_upstream_server_failures_total", |status| status.failures),
        counted("gateway_upstream_server_ejections_total", |status| status.ejections),
        counted("gateway_upstream_server_failed_checks_total", |status| status.failed_checks),
        retried("gateway_upstream_retries_total", |retries| retries.sent),
        retried("gateway_upstream_retries_over_budget_total", |retries| retries.refused),
        gauges(
            "gateway_upstream_requests_waiting",
            upstreams.iter().map(|upstream| gauge(upstream.waiting(), &[("upstream", &upstream.config.name)])),
        ),
        families::counted("gateway_upstream_failed_lookups_total", view.shared.names.failures.get()),
    ]
}

/// Two names may have the same address, but no two series may have the same labels.
fn labelled(upstream: &Upstream) -> Vec<Labelled> {
    let mut known = HashMap::new();
    let label = |(endpoint, _, status): (Arc<Endpoint>, u32, EndpointStatus)| {
        let address = endpoint.to_string();
        let count = known.entry(address.clone()).and_modify(|count| *count += 1).or_insert(1);
        let server = if *count == 1 { address } else { format!("{address} #{count}") };
        let (most, latencies) = (upstream.most_in_flight(&endpoint), endpoint.latencies());
        Labelled { upstream: upstream.config.name.clone(), server, most, status, latencies }
    };
    upstream.status().into_iter().map(label).collect()
}

struct Labelled {
    upstream: String,
    server: String,
    most: Option<usize>,
    status: EndpointStatus,
    latencies: HistogramSnapshot,
}

impl Labelled {
    fn labels(&self) -> [(&str, &str); 2] {
        [("upstream", &self.upstream), ("server", &self.server)]
    }

    fn gauge(&self, value: usize) -> Metric {
        gauge(value, &self.labels())
    }
}
