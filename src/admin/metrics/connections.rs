//! Metrics of clients' connections, with TLS and HTTP/2.

use prometheus::proto::MetricFamily;

use super::super::View;
use super::super::families::{counted, counter, counters, gauge, gauged, gauges};
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
        gauged("gateway_connections", "Open connections of clients.", counts.open),
        gauged("gateway_decision_connections", "Open connections of proxies that ask for decisions.", decisions.open),
        gauged(
            "gateway_decision_connections_max",
            "The maximum number of open connections of proxies that ask for decisions.",
            decisions.most,
        ),
        counted(
            "gateway_connections_accepted_total",
            "Connections of clients, and of proxies that ask for decisions, that got a place of max_connections.",
            of_both(|counts| counts.accepted),
        ),
        gauged(
            "gateway_connections_max",
            "The maximum number of open connections: max_connections, or what the limit of file handles allows if that is less.",
            counts.most,
        ),
        counted(
            "gateway_connections_refused_total",
            "Connections that were closed at once, because their address had max_connections_per_ip already.",
            of_both(|counts| counts.refused),
        ),
        counted(
            "gateway_proxy_protocol_failures_total",
            "Connections that were closed because they did not begin with a valid preamble of the PROXY protocol.",
            of_both(|counts| counts.bad_preambles),
        ),
        counted(
            "gateway_connections_evicted_total",
            "Idle connections that were closed to make room for others, because max_connections were open.",
            of_both(|counts| counts.made_room),
        ),
        counted(
            "gateway_connections_stalled_total",
            "Connections that were closed because the client read nothing for body_timeout.",
            of_both(|counts| counts.stalled),
        ),
        counted(
            "gateway_accept_failures_total",
            "How often no connection could be accepted because file handles or memory were exhausted.",
            of_both(|counts| counts.exhausted),
        ),
    ]
}

fn http2_errors(errors: &Http2Errors) -> [MetricFamily; 3] {
    let by_error = |(error, count): (&str, u64)| counter(count, &[("error", error)]);
    [
        counters(
            "gateway_http2_connection_errors_total",
            "Connections of HTTP/2 clients that ended with an error (GOAWAY), by error.",
            errors.connections.by_name().map(by_error),
        ),
        counters(
            "gateway_http2_stream_errors_total",
            "Streams of HTTP/2 clients that were reset with an error (RST_STREAM), by error.",
            errors.streams.by_name().map(by_error),
        ),
        counted(
            "gateway_http2_requests_refused_total",
            "Requests of HTTP/2 clients that reached no route, because their heads were not valid or too large, or there \
             were too many at once; counted when their connection ends.",
            errors.refused_requests.get(),
        ),
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
        counters(
            "gateway_tls_handshakes_total",
            "TLS handshakes that clients began, by result.",
            [counter(shaken, &[("result", "ok")]), counter(failed, &[("result", "failed")])],
        ),
        gauges(
            "gateway_tls_certificate_expiry_timestamp_seconds",
            "When the first certificate of each chain expires, in seconds since 1970.",
            config.identities().into_iter().map(expiry),
        ),
    ]
}
