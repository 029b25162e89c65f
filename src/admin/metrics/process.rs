//! Metrics of the process itself: its version, configuration and log.

use prometheus::proto::{MetricFamily, MetricType};

use super::super::View;
use super::super::dashboard::State;
use super::super::families::{counted, counter, family, gauge, gauged, whole};

pub(super) fn families(view: &View) -> [MetricFamily; 10] {
    let results =
        |(succeeded, refused)| [counter(succeeded, &[("result", "ok")]), counter(refused, &[("result", "refused")])];
    [
        family(
            "gateway_build_info",
            "The running version; always 1.",
            MetricType::GAUGE,
            [gauge(1, &[("version", env!("CARGO_PKG_VERSION"))])],
        ),
        gauged(
            "gateway_ready",
            "Whether load balancers should send requests, as /readyz says: 0 while the gateway drains or stops.",
            usize::from(view.state() == State::Ready),
        ),
        gauged(
            "gateway_draining",
            "Whether an operator or a signal has asked for no more requests.",
            usize::from(view.state() != State::Ready),
        ),
        gauged("gateway_workers", "Threads that serve requests.", view.shared.workers()),
        family(
            "gateway_config_reloads_total",
            "Reloads of the configuration, by result.",
            MetricType::COUNTER,
            results(view.reloads_so_far.counts()),
        ),
        gauged(
            "gateway_config_last_reload_successful",
            "Whether the latest configuration is in force: 0 if it was refused, and the previous one stays in force.",
            usize::from(view.reloads_so_far.is_last_good()),
        ),
        family(
            "gateway_config_last_success_timestamp_seconds",
            "Since when the configuration is in force, in seconds since 1970.",
            MetricType::GAUGE,
            [whole(view.reloads_so_far.last_success().seconds())],
        ),
        family(
            "gateway_tls_certificate_reloads_total",
            "How often changed files of certificates were read again, by result.",
            MetricType::COUNTER,
            results(view.certificate_reloads.counts()),
        ),
        gauged(
            "gateway_tls_certificate_last_reload_successful",
            "Whether the files of the certificates can be used: 0 if they were refused, and the previous ones stay in \
             use.",
            usize::from(view.certificate_reloads.is_last_good()),
        ),
        counted(
            "gateway_log_dropped_total",
            "Log lines that were dropped, because standard error did not take them fast enough, or at all.",
            view.dropped_lines.count(),
        ),
    ]
}
