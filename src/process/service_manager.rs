//! Tells the service manager, such as systemd, that the gateway is ready, reloads or stops, and that all of its workers still
//! work (`sd_notify(3)`). Without a service manager this does nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::Instant;

use crate::base::metrics::{Counter, PerWorker};

/// The longest pause between two heartbeats of a worker that works, on a busy machine.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload has begun. It ends with [`ready`].
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot tell the service manager about a reload"),
    }
}

pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Tells the service manager regularly that the process works. Otherwise the service manager restarts the process.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// The longest pause that the service manager allows; `None` if it does not watch.
    longest: Option<Duration>,
    /// For each worker, its heartbeats at the last check, and since when that number is the same.
    seen: Vec<(u64, Instant)>,
}

impl Watchdog {
    pub(super) fn new(workers: usize) -> Self {
        Self { longest: sd_notify::watchdog_enabled(), seen: vec![(0, Instant::now()); workers] }
    }

    /// How often to call [`Self::check`]; `None` is never.
    pub(super) fn check_every(&self) -> Option<Duration> {
        // As sd_watchdog_enabled(3) recommends.
        self.longest.map(|longest| (longest / 2).max(Duration::from_millis(1)))
    }

    /// Reports that the process works, unless a worker has had no heartbeat for too long.
    pub(super) fn check(&mut self, heartbeats: &PerWorker<Counter>) {
        match self.hanging(heartbeats, Instant::now()) {
            None => tell(&[NotifyState::Watchdog]),
            Some(worker) => tracing::error!(worker, "a worker hangs: the service manager gets no sign of life"),
        }
    }

    fn hanging(&mut self, heartbeats: &PerWorker<Counter>, now: Instant) -> Option<usize> {
        for (worker, (count, since)) in self.seen.iter_mut().enumerate() {
            let current = heartbeats.of(worker).get();
            if current != *count {
                (*count, *since) = (current, now);
            }
        }
        self.seen.iter().position(|(_, since)| now - *since > LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_heartbeats_hangs_until_it_has_one() {
        let (begun, heartbeats) = (Instant::now(), PerWorker::<Counter>::new(2));
        let mut watchdog = Watchdog { longest: None, seen: vec![(0, begun); 2] };
        let mut at = |seconds, working: &[usize]| {
            working.iter().for_each(|worker| heartbeats.of(*worker).one());
            watchdog.hanging(&heartbeats, begun + Duration::from_secs(seconds))
        };
        assert_eq!([at(1, &[0, 1]), at(4, &[0]), at(6, &[0]), at(7, &[0])], [None, None, None, Some(1)]);
        assert_eq!([at(8, &[0, 1]), at(14, &[])], [None, Some(0)]);
    }
}
