//! The health of the servers, for the metrics and the log.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::failure::LinkFailure;
use super::protocol::{Protocol, Statistics};
use crate::base::clock::{self, Time};
use crate::base::metrics::{Counter, Histogram, PerWorker};
use crate::base::repeated_event::RepeatedEvent;

/// How often servers are asked for statistics.
const EVERY: Duration = Duration::from_secs(10);
/// The longest time that a server may take to connect and to tell its statistics.
const TIMEOUT: Duration = Duration::from_secs(1);
/// In seconds. A server reports whole seconds, and updates its clock once a second.
const TICK: i64 = 2;

#[derive(Debug)]
pub struct Health {
    pub round_trips: Counter,
    /// Exchanges that failed in whole or in part, and failed attempts to connect.
    pub errors: RepeatedEvent,
    /// Notified of each of them.
    pub(super) failing: Notify,
    pub decisions: PerWorker<Counter>,
    /// Decisions without an exchange, because a remembered refusal still held.
    pub remembered: PerWorker<Counter>,
    /// Decisions made from the last known counts, because a server did not answer.
    pub local: Counter,
    /// Known counters that a server had lost: evicted, or gone with a restart.
    pub lost: Counter,
    /// Keys that had to make room before a server knew their admissions.
    pub forgotten: Counter,
    /// Duration of exchanges, in microseconds.
    pub latency: Histogram,
    keys: AtomicUsize,
    /// Those that keep counters now.
    servers: ArcSwap<Vec<Arc<Server>>>,
    /// The name of the servers in messages and metrics.
    pub name: &'static str,
}

#[derive(Debug, Default)]
pub struct Server {
    pub address: String,
    /// False before the first attempt to connect.
    down: AtomicBool,
    /// Whether it has ever answered.
    was_up: AtomicBool,
    /// How often it has come back.
    returns: RepeatedEvent,
    /// If it has never answered: why it refused the gateway at the last attempt to connect at which it did.
    refusal: Mutex<Option<String>>,
    /// From its last statistics: seconds by which its clock is ahead of ours (negative if behind), and items evicted.
    skew: AtomicI64,
    evictions: AtomicU64,
}

impl Server {
    pub(super) fn new(address: String) -> Arc<Self> {
        Arc::new(Self { address, ..Self::default() })
    }

    pub fn is_up(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// How many seconds its clock was ahead of ours at the last statistics.
    #[expect(clippy::cast_precision_loss, reason = "seconds that matter are few")]
    pub fn skew(&self) -> f64 {
        self.skew.load(Ordering::Relaxed) as f64
    }

    /// How many items it had evicted at the last statistics.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }
}

impl Health {
    pub(super) fn new(servers: &[String], workers: usize, name: &'static str) -> Self {
        let servers = servers.iter().cloned().map(Server::new).collect();
        Self {
            round_trips: Counter::default(),
            errors: RepeatedEvent::default(),
            failing: Notify::default(),
            decisions: PerWorker::new(workers),
            remembered: PerWorker::new(workers),
            local: Counter::default(),
            lost: Counter::default(),
            forgotten: Counter::default(),
            latency: Histogram::default(),
            keys: AtomicUsize::new(0),
            servers: ArcSwap::from_pointee(servers),
            name,
        }
    }

    pub fn servers(&self) -> Arc<Vec<Arc<Server>>> {
        self.servers.load_full()
    }

    /// From now on, these keep the counters.
    pub(super) fn replace(&self, servers: Vec<Arc<Server>>) {
        self.servers.store(Arc::new(servers));
    }

    /// No server is asked any more, because the driver has failed.
    pub(super) fn lose_all(&self) {
        self.servers().iter().for_each(|server| server.down.store(true, Ordering::Relaxed));
    }

    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Which server has refused this gateway from the start, and why: the password is wrong, for example.
    pub fn refusal(&self) -> Option<String> {
        let servers = self.servers();
        servers.iter().find_map(|server| Some(format!("{}: {}", server.address, server.refusal.lock().as_ref()?)))
    }

    /// Whether any server has ever answered.
    pub fn has_answered(&self) -> bool {
        self.servers.load().iter().any(|server| server.was_up.load(Ordering::Relaxed))
    }

    pub(super) fn know(&self, keys: usize) {
        self.keys.store(keys, Ordering::Relaxed);
    }

    pub(super) fn is_away(&self) -> bool {
        self.servers.load().iter().all(|server| !server.is_up())
    }

    fn said(&self, server: &Server, skew: i64, evictions: u64) {
        let Server { address, skew: before, evictions: evicted, .. } = server;
        evicted.store(evictions, Ordering::Relaxed);
        if before.swap(skew, Ordering::Relaxed) != skew && skew != 0 {
            tracing::warn!(server = address, seconds = skew, "{}'s clock differs from that of this machine", self.name);
        }
    }

    pub(super) fn up(&self, server: &Server) {
        let Server { address, down, refusal, was_up, returns, .. } = server;
        *refusal.lock() = None;
        was_up.store(true, Ordering::Relaxed);
        if down.swap(false, Ordering::Relaxed) && returns.add(clock::now()).is_some() {
            tracing::info!(server = address, "{} is back", self.name);
        }
    }

    pub(super) fn down(&self, server: &Server, failure: &LinkFailure) {
        let Server { down, was_up, refusal, .. } = server;
        // The next attempt may be late, and still be refused.
        if failure.is_refusal() && !was_up.load(Ordering::Relaxed) {
            *refusal.lock() = Some(failure.to_string());
        }
        down.store(true, Ordering::Relaxed);
        self.failed(server, failure);
    }

    /// Counts a failure, and logs it if none was logged for a while.
    pub(super) fn failed(&self, server: &Server, failure: impl fmt::Display) {
        self.failing.notify_one();
        if self.errors.add(clock::now()).is_some() {
            tracing::warn!(server = server.address, %failure, "{} does not answer", self.name);
        }
    }
}

/// Asks servers for statistics now and then: their clocks, because buckets are named by the clock and gateways should agree, and
/// their evictions, because counters may have been evicted.
pub(super) async fn watch(protocol: &dyn Protocol, health: &Health) {
    loop {
        for server in health.servers().iter().filter(|server| server.is_up()) {
            // Other code notices that a server does not answer, and one may refuse just these commands.
            if let Ok(Some(Statistics { time, evictions })) =
                timeout(TIMEOUT, protocol.statistics(&server.address)).await
            {
                health.said(server, skew(time, clock::now()), evictions);
            }
        }
        sleep(EVERY).await;
    }
}

/// How many seconds a clock that shows `time` is ahead of `now`, as far as that can be known.
fn skew(time: u64, now: Time) -> i64 {
    let ahead = i64::try_from(time).unwrap_or(i64::MAX).saturating_sub_unsigned(now.micros() / 1_000_000);
    match ahead {
        1.. => ahead,
        // What it shows is up to a tick old.
        behind => (behind + TICK).min(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_is_no_difference_is_none() {
        let now = Time::from_micros(1_000_999_999);
        let skews: Vec<i64> = [1000, 999, 998, 997, 940, 1001, 1060].map(|time| skew(time, now)).to_vec();
        assert_eq!(skews, [0, 0, 0, -1, -58, 1, 60]);
    }
}
