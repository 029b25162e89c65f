//! Counters in Memcached, shared by any number of gateways.
//!
//! All decisions of this process pass through one task, in order: those that wait together share one multi-get,
//! and what they were admitted travels as increments ahead of the next one. A decision therefore sees every
//! admission before it, and a burst for one key gets exactly its limit.

mod keys;
mod refused;
mod link;
mod owed;
mod wanted;
mod batch;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::{Answer, Ask, Verdicts};
use crate::clock::Time;
use crate::config;
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::tally::{Counter, Histogram};

use refused::Refused;

/// The Memcached store.
pub struct Memcached {
    jobs: mpsc::UnboundedSender<Job>,
    health: Arc<Health>,
    refused: Arc<Refused>,
}

/// One decision on its way to Memcached, or without a reply a charge that nobody waits for.
#[derive(Debug)]
struct Job {
    asks: Vec<Wish>,
    now: Time,
    reply: Option<oneshot::Sender<Verdicts>>,
}

/// An ask that owns what it asks for.
#[derive(Clone, Debug)]
struct Wish {
    limit: Arc<Limit>,
    key: Fingerprint,
    need: u64,
    cost: u64,
    advisory: bool,
    place: usize,
}

impl From<&Ask<'_>> for Wish {
    fn from(ask: &Ask<'_>) -> Self {
        let Ask { limit, key, need, cost, advisory, place } = *ask;
        Self { limit: limit.clone(), key, need, cost, advisory, place }
    }
}

impl Wish {
    /// What its cell is found by.
    fn cell(&self) -> Fingerprint {
        self.key.with(self.limit.shape())
    }
}

/// How the exchanges with Memcached go.
#[derive(Debug, Default)]
pub struct Health {
    /// Exchanges begun.
    pub round_trips: Counter,
    /// Exchanges that failed in whole or in part.
    pub errors: Counter,
    /// Decisions that needed no exchange, because a refusal still held.
    pub remembered: Counter,
    /// How long exchanges took.
    pub latency: Histogram,
    /// No server is asked before this moment, in microseconds since 1970; 0 while one answers.
    away_until: AtomicU64,
}

impl Memcached {
    /// Starts the thread that talks to Memcached, apart from those that serve requests.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(config: &config::Memcached) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::unbounded_channel();
        let health = Arc::new(Health::default());
        let refused = Arc::new(Refused::default());
        let work = batch::run(config.clone(), waiting, health.clone(), refused.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("memcached".to_owned()).spawn(move || runtime.block_on(work))?;
        Ok(Self { jobs, health, refused })
    }

    /// Sends the decision off, unless a refusal still holds or Memcached is known to be away.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time) -> Answer {
        if let Some(verdicts) = self.refused.find(asks, now) {
            self.health.remembered.one();
            return Answer::Now(verdicts);
        }
        if self.is_away(now) {
            return Answer::Away;
        }
        let (reply, verdicts) = oneshot::channel();
        match self.jobs.send(Job { asks: asks.iter().map(Wish::from).collect(), now, reply: Some(reply) }) {
            Ok(()) => Answer::Later(verdicts),
            Err(_) => Answer::Away,
        }
    }

    /// Sends a charge off, unless Memcached is known to be away.
    pub fn charge(&self, ask: &Ask<'_>, now: Time) {
        if !self.is_away(now) {
            // With the other end gone the process is about to end.
            let _ = self.jobs.send(Job { asks: vec![Wish::from(ask)], now, reply: None });
        }
    }

    fn is_away(&self, now: Time) -> bool {
        now.micros() < self.health.away_until.load(Ordering::Relaxed)
    }

    /// How the exchanges go.
    pub fn health(&self) -> &Health {
        &self.health
    }
}
