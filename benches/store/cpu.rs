//! CPU seconds, user and system, of this process and of others.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Of all threads so far.
pub(crate) fn own() -> f64 {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap().as_secs_f64()
}

/// Of all threads so far.
pub(crate) fn of(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let nanos = tasks.map(|task| {
        let line = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        line.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanos.sum()).as_secs_f64()
}

/// The cores of this process, as the kernel writes them: `0` or `0-3`.
pub(crate) fn cores() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}
