//! Metrics of clients' connections, with TLS and HTTP/2.

use prometheus::proto::MetricFamily;

use super::super::View;
use super::super::families::{counted, counted_by, gauge, gauged, gauges};
use crate::net::Traffic;
use crate::net::tls::Identity;
use crate::server::{ConnectionCounts, Http2Errors};

pub(super) fn families(view: &View) -> Vec<MetricFamily> {
    let [requests, decisions] = [Traffic::Requests, Traffic::Decisions].map(|kind| view.connections.of(kind).counts());
    let http2 = http2_errors(&view.connections.of(Traffic::Requests).http2_errors);
    connections(requests, decisions).into_iter().chain(http2).chain(tls(view)).collect()
}

fn connections(counts: ConnectionCounts, decisions: ConnectionCounts) -> [MetricFamily; 10] {
    let of_both = |count: fn(&ConnectionCounts) -> u64| count(&counts) + count(&decisions);
    [
        gauged("gateway_connections", counts.open),
        gauged("gateway_decision_connections", decisions.open),
        gauged("gateway_decision_connections_max", decisions.most),
        counted("gateway_connections_accepted_total", of_both(|counts| counts.accepted)),
        gauged("gateway_connections_max", counts.most),
        counted("gateway_connections_refused_total", of_both(|counts| counts.refused)),
        counted("gateway_proxy_protocol_failures_total", of_both(|counts| counts.bad_preambles)),
        counted("gateway_connections_evicted_total", of_both(|counts| counts.made_room)),
        counted("gateway_connections_stalled_total", of_both(|counts| counts.stalled)),
        counted("gateway_accept_failures_total", of_both(|counts| counts.exhausted)),
    ]
}

fn http2_errors(errors: &Http2Errors) -> [MetricFamily; 3] {
    [
        counted_by("gateway_http2_connection_errors_total", "error", errors.connections.by_name()),
        counted_by("gateway_http2_stream_errors_total", "error", errors.streams.by_name()),
        counted("gateway_http2_requests_refused_total", errors.refused_requests.get()),
    ]
}

fn tls(view: &View) -> [MetricFamily; 2] {
    let (shaken, failed) = (view.tls.handshakes.get(), view.tls.failed_handshakes.get());
    let config = view.config.load();
    let expiry = |identity: &Identity| {
        let seconds = usize::try_from(identity.not_after.seconds()).unwrap_or(usize::MAX);
        gauge(seconds, &[("certificate", &identity.file)])
    };
    [
        counted_by("gateway_tls_handshakes_total", "result", [("ok", shaken), ("failed", failed)]),
        gauges("gateway_tls_certificate_expiry_timestamp_seconds", config.identities().into_iter().map(expiry)),
    ]
}
