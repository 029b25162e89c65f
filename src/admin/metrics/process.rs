//! Metrics of the process: its version, configuration and log; and its use of the system, under the names that all exporters for
//! Prometheus use.
//!
//! Those of the system come from `/proc`, so only Linux has them. What cannot be read is left out.

use prometheus::proto::MetricFamily;

use super::super::View;
use super::super::dashboard::{ReloadNumbers, State};
use super::super::families::{counted, counted_by, gauge, gauged, gauges, whole};

pub(super) fn families(view: &View) -> Vec<MetricFamily> {
    own(view).into_iter().chain(system()).collect()
}

fn own(view: &View) -> [MetricFamily; 10] {
    let (reloads, certificates) = (view.reloads_so_far.numbers(), view.certificate_reloads.numbers());
    let results = |numbers: &ReloadNumbers| [("ok", numbers.ok), ("refused", numbers.refused)];
    [
        gauges("gateway_build_info", [gauge(1, &[("version", env!("CARGO_PKG_VERSION"))])]),
        gauged("gateway_ready", usize::from(view.unready().is_none())),
        gauged("gateway_draining", usize::from(view.state() != State::Ready)),
        gauged("gateway_workers", view.shared.workers),
        counted_by("gateway_config_reloads_total", "result", results(&reloads)),
        gauged("gateway_config_last_reload_successful", usize::from(reloads.current)),
        gauges("gateway_config_last_success_timestamp_seconds", [whole(view.reloads_so_far.last_success().seconds())]),
        counted_by("gateway_tls_certificate_reloads_total", "result", results(&certificates)),
        gauged("gateway_tls_certificate_last_reload_successful", usize::from(certificates.current)),
        counted("gateway_log_dropped_total", view.dropped_lines.count()),
    ]
}

/// Of the use of the system.
fn system() -> Vec<MetricFamily> {
    #[cfg(target_os = "linux")]
    return linux::families().unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    return Vec::new();
}

#[cfg(target_os = "linux")]
mod linux {
    use procfs::process::{LimitValue, Process};
    use procfs::{ProcResult, WithCurrentSystemInfo, boot_time_secs, ticks_per_second};
    use prometheus::proto::MetricFamily;

    use super::super::super::families::{counters, gauges, real, sum};

    #[expect(clippy::cast_precision_loss, reason = "ticks, seconds and bytes stay below 2^53")]
    pub(super) fn families() -> ProcResult<Vec<MetricFamily>> {
        let process = Process::myself()?;
        let (stat, ticks) = (process.stat()?, ticks_per_second() as f64);
        let gauged = |name: &str, value: Option<f64>| gauges(name, value.map(|value| real(value, &[])));
        let handles = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Unlimited => None,
            LimitValue::Value(most) => Some(most as f64),
        });
        let started = boot_time_secs().map(|boot| boot as f64 + stat.starttime as f64 / ticks);
        Ok(vec![
            counters("process_cpu_seconds_total", [sum((stat.utime + stat.stime) as f64 / ticks, &[])]),
            gauged("process_resident_memory_bytes", Some(stat.rss_bytes().get() as f64)),
            gauged("process_virtual_memory_bytes", Some(stat.vsize as f64)),
            gauged("process_open_fds", process.fd_count().ok().map(|open| open as f64)),
            gauged("process_max_fds", handles),
            gauged("process_threads", Some(stat.num_threads as f64)),
            gauged("process_start_time_seconds", started.ok()),
        ])
    }
}
