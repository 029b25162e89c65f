//! Metrics of the process's use of the system, under the names that all exporters for Prometheus use.
//!
//! They come from `/proc`, so only Linux has them. What cannot be read is left out.

use prometheus::proto::MetricFamily;

pub(super) fn families() -> Vec<MetricFamily> {
    #[cfg(target_os = "linux")]
    return linux::families().unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    return Vec::new();
}

#[cfg(target_os = "linux")]
mod linux {
    use procfs::process::{LimitValue, Process};
    use procfs::{ProcResult, WithCurrentSystemInfo, boot_time_secs, ticks_per_second};
    use prometheus::proto::{MetricFamily, MetricType};

    use super::super::super::families::{family, real, sum};

    #[expect(clippy::cast_precision_loss, reason = "ticks, seconds and bytes stay below 2^53")]
    pub(super) fn families() -> ProcResult<Vec<MetricFamily>> {
        let process = Process::myself()?;
        let (stat, ticks) = (process.stat()?, ticks_per_second() as f64);
        let gauged = |name: &str, help: &str, value: Option<f64>| {
            family(name, help, MetricType::GAUGE, value.map(|value| real(value, &[])))
        };
        let handles = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Unlimited => None,
            LimitValue::Value(most) => Some(most as f64),
        });
        let started = boot_time_secs().map(|boot| boot as f64 + stat.starttime as f64 / ticks);
        Ok(vec![
            family(
                "process_cpu_seconds_total",
                "Processor time that the process has used, in its own code and in the system.",
                MetricType::COUNTER,
                [sum((stat.utime + stat.stime) as f64 / ticks, &[])],
            ),
            gauged(
                "process_resident_memory_bytes",
                "Resident memory of the process.",
                Some(stat.rss_bytes().get() as f64),
            ),
            gauged("process_virtual_memory_bytes", "Size of the address space.", Some(stat.vsize as f64)),
            gauged("process_open_fds", "Open file handles.", process.fd_count().ok().map(|open| open as f64)),
            gauged("process_max_fds", "The maximum number of open file handles.", handles),
            gauged("process_threads", "Threads of the process.", Some(stat.num_threads as f64)),
            gauged("process_start_time_seconds", "When the process was started, in seconds since 1970.", started.ok()),
        ])
    }
}
