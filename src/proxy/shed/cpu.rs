//! Measures the use of the processors: of the machine, of this process' control groups, and of its own threads.
//!
//! The largest of the three counts, because each can be exhausted alone: a machine by other processes, a control group by its
//! quota, and the workers of this process if they are fewer than the processors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

const GROUPS: &str = "/sys/fs/cgroup";

#[derive(Debug)]
pub(super) struct CpuUse {
    workers: u32,
    /// The folders of the control groups, version 2.
    groups: Vec<PathBuf>,
    before: Option<Reading>,
}

/// Counters that only grow, in microseconds except for `machine`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reading {
    /// Ticks of the system in use, and all ticks.
    machine: Option<(u64, u64)>,
    own: u64,
    /// For each group, the time in use and how many processors it may use.
    groups: Vec<Option<(u64, f64)>>,
}

impl CpuUse {
    pub(super) fn new(workers: usize) -> Self {
        let named = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { workers: u32::try_from(workers.max(1)).unwrap_or(u32::MAX), groups: groups(&named), before: None }
    }

    /// The share in use since the last call, which was `span` ago. `None` at the first call, or if the system does not tell.
    pub(super) fn since(&mut self, span: Duration) -> Option<f64> {
        let now = self.read();
        let before = self.before.replace(now.clone())?;
        let micros = span.as_secs_f64() * 1e6;
        #[expect(clippy::cast_precision_loss, reason = "times of a window are short")]
        let grown = |is: u64, was: u64| is.saturating_sub(was) as f64;
        let machine = now
            .machine
            .zip(before.machine)
            .map(|((busy, all), (busy_before, all_before))| grown(busy, busy_before) / grown(all, all_before).max(1.0));
        let own = grown(now.own, before.own) / micros / f64::from(self.workers);
        let groups = now.groups.iter().zip(&before.groups).filter_map(|(now, before)| {
            let ((used, processors), (used_before, _)) = now.zip(*before)?;
            Some(grown(used, used_before) / micros / processors)
        });
        machine.into_iter().chain([own]).chain(groups).reduce(f64::max)
    }

    /// Makes the next call of [`Self::since`] a first one.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }

    fn read(&self) -> Reading {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let group = |folder: &PathBuf| {
            let processors = quota(&text(&folder.join("cpu.max")))?;
            Some((used(&text(&folder.join("cpu.stat")))?, processors))
        };
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = u64::try_from(own.tv_sec.saturating_mul(1_000_000).saturating_add(own.tv_nsec / 1000));
        Reading {
            machine: machine(&text(Path::new("/proc/stat"))),
            own: own.unwrap_or(0),
            groups: self.groups.iter().map(group).collect(),
        }
    }
}

/// The folders of a process' control group and of its ancestors, from /proc/PID/cgroup.
fn groups(named: &str) -> Vec<PathBuf> {
    let path = named.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // A group outside the container is not visible.
    let path = Path::new(if path.contains("..") { "" } else { path });
    path.ancestors().map(|ancestor| Path::new(GROUPS).join(ancestor)).collect()
}

/// How many processors a control group may use, from the quota and the period in cpu.max. `None` without a quota.
fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    let (quota, period) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(quota / period).filter(|processors| processors.is_finite() && *processors > 0.0)
}

/// In microseconds, from cpu.stat.
fn used(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

/// The ticks in use and all ticks, from /proc/stat. Time that a hypervisor gives to others counts as in use.
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; the later fields are included in user and nice.
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *ticks.as_slice() else { return None };
    let busy = user + nice + system + irq + softirq + steal;
    Some((busy, busy + idle + iowait))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn reads_what_the_system_writes() {
        assert_eq!(machine("cpu  10 1 5 80 4 1 2 3 7 0\ncpu0 1 1"), Some((22, 106)));
        assert_eq!([machine(""), machine("cpu  1 2 3"), machine("intr 5")], [None; 3]);
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!([quota("max 100000\n"), quota(""), quota("0 0"), quota("5")], [None; 4]);
        assert_eq!(used("usage_usec 1234\nuser_usec 1000\n"), Some(1234));
        assert_eq!(used("user_usec 1000\n"), None);
        let folders = |text: &str| groups(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(folders("0::/a/b\n"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"]);
        assert_eq!(folders("1:cpu:/x\n0::/\n"), ["/sys/fs/cgroup/"]);
        assert_eq!(folders("0::/../x\n"), ["/sys/fs/cgroup/"]);
        assert_eq!(folders(""), ["/sys/fs/cgroup/"]);
    }

    #[test]
    fn a_busy_thread_is_seen() {
        let mut cpu = CpuUse::new(1);
        assert_eq!(cpu.since(Duration::from_secs(1)), None);
        let (begun, used) = (Instant::now(), || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap());
        // Other processes may have most of the processor.
        let end = used() + Duration::from_millis(100);
        while used() < end {
            std::hint::black_box(0);
        }
        let span = begun.elapsed();
        let share = cpu.since(span).unwrap();
        assert!(share > 0.09 / span.as_secs_f64(), "{share} of {span:?}");
    }
}
