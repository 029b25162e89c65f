//! How it goes with the servers: what the metrics tell, and the log.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::protocol::{Protocol, Statistics};
use crate::base::clock::{self, Time};
use crate::base::metrics::{Counter, Histogram, PerWorker};
use crate::base::repeated_event::RepeatedEvent;

/// How often servers are asked.
const EVERY: Duration = Duration::from_secs(10);
/// A server tells whole seconds, and counts them itself once a second.
const TICK: i64 = 2;

/// How the exchanges with the servers go.
#[derive(Debug)]
pub struct Health {
    /// Exchanges begun.
    pub round_trips: Counter,
    /// Exchanges that failed in whole or in part, and attempts to connect that failed.
    pub errors: RepeatedEvent,
    /// Decisions that were asked for.
    pub decisions: PerWorker<Counter>,
    /// Decisions that needed no exchange, because a refusal still held.
    pub remembered: PerWorker<Counter>,
    /// Decisions made from the last known counts, because a server did not answer.
    pub local: Counter,
    /// Counters that were known and that a server had lost: evicted, or gone with a restart.
    pub lost: Counter,
    /// Keys that had to make room before a server knew what they had been admitted.
    pub forgotten: Counter,
    /// How long exchanges took.
    pub latency: Histogram,
    /// The keys that the coordinator knows.
    keys: AtomicUsize,
    /// The servers, in the order of the configuration.
    pub servers: Box<[Server]>,
    /// What the servers are called in messages.
    name: &'static str,
}

/// How it goes with one server.
#[derive(Debug)]
pub struct Server {
    /// As configured.
    pub address: String,
    /// Whether it answers. One that was never asked is taken for one that does.
    up: AtomicBool,
    /// How many seconds its clock is ahead of ours (behind if below 0), and what it has evicted, as it said last.
    skew: AtomicI64,
    evictions: AtomicU64,
}

impl Server {
    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// How many seconds its clock was ahead of ours when it was asked last.
    #[expect(clippy::cast_precision_loss, reason = "seconds that matter are few")]
    pub fn skew(&self) -> f64 {
        self.skew.load(Ordering::Relaxed) as f64
    }

    /// How many items it had evicted when it was asked last.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }
}

impl Health {
    pub(super) fn new(servers: &[String], workers: usize, name: &'static str) -> Self {
        let server = |address: &String| Server {
            address: address.clone(),
            up: AtomicBool::new(true),
            skew: AtomicI64::new(0),
            evictions: AtomicU64::new(0),
        };
        Self {
            round_trips: Counter::default(),
            errors: RepeatedEvent::default(),
            decisions: PerWorker::new(workers),
            remembered: PerWorker::new(workers),
            local: Counter::default(),
            lost: Counter::default(),
            forgotten: Counter::default(),
            latency: Histogram::default(),
            keys: AtomicUsize::new(0),
            servers: servers.iter().map(server).collect(),
            name,
        }
    }

    /// How many keys this process knows the counters of.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// So many keys are known now.
    pub(super) fn know(&self, keys: usize) {
        self.keys.store(keys, Ordering::Relaxed);
    }

    /// Whether no server answers.
    pub(super) fn is_away(&self) -> bool {
        self.servers.iter().all(|server| !server.is_up())
    }

    /// Notes what a server says of itself.
    pub(super) fn said(&self, server: usize, skew: i64, evictions: u64) {
        let Server { address, skew: before, evictions: evicted, .. } = &self.servers[server];
        evicted.store(evictions, Ordering::Relaxed);
        if before.swap(skew, Ordering::Relaxed) != skew && skew != 0 {
            tracing::warn!(server = address, seconds = skew, "{}'s clock is ahead of or behind this one", self.name);
        }
    }

    pub(super) fn up(&self, server: usize) {
        let Server { address, up, .. } = &self.servers[server];
        if !up.swap(true, Ordering::Relaxed) {
            tracing::info!(server = address, "{} is back", self.name);
        }
    }

    pub(super) fn down(&self, server: usize, failure: impl fmt::Display) {
        self.servers[server].up.store(false, Ordering::Relaxed);
        self.failed(server, failure);
    }

    /// Counts a failure, and says so if nothing was said for a while.
    pub(super) fn failed(&self, server: usize, failure: impl fmt::Display) {
        if self.errors.add(clock::now()).is_some() {
            tracing::warn!(server = self.servers[server].address, %failure, "{} does not answer", self.name);
        }
    }
}

/// Asks servers what they say of themselves, now and then, until the other end of `end` is gone: how late it is, because buckets
/// are named by the clock and gateways that share them should agree, and what was evicted, because it may have been counted.
pub(super) fn watch(protocol: &dyn Protocol, health: &Arc<Health>, end: &Receiver<()>) {
    loop {
        for (place, server) in health.servers.iter().enumerate().filter(|(_, server)| server.is_up()) {
            if let Some(Statistics { time, evictions }) = protocol.statistics(&server.address) {
                health.said(place, time.map_or(0, |time| skew(time, clock::now())), evictions);
            }
        }
        if end.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// How many seconds a clock that shows `time` is ahead of `now`, as far as can be told.
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
