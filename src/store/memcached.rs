//! Counters in Memcached, shared by any number of gateways.
//!
//! All decisions of this process pass through one task, in order: those that wait together share one multi-get,
//! and what they were admitted travels as increments ahead of the next one. A decision therefore sees every
//! admission before it, and a burst for one key gets exactly its limit.

mod batch;
mod keys;

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

/// The Memcached store.
#[derive(Debug)]
pub struct Memcached {
    jobs: mpsc::UnboundedSender<Job>,
    health: Arc<Health>,
}

/// One decision on its way to Memcached.
#[derive(Debug)]
struct Job {
    asks: Vec<Wish>,
    now: Time,
    reply: oneshot::Sender<Verdicts>,
}

/// An ask that owns what it asks for.
#[derive(Clone, Debug)]
struct Wish {
    limit: Arc<Limit>,
    key: Fingerprint,
    cost: u64,
    place: usize,
}

/// How the exchanges with Memcached go.
#[derive(Debug, Default)]
pub struct Health {
    /// Exchanges begun.
    pub round_trips: Counter,
    /// Exchanges that failed in whole or in part.
    pub errors: Counter,
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
        let work = batch::run(config.clone(), waiting, health.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("memcached".to_owned()).spawn(move || runtime.block_on(work))?;
        Ok(Self { jobs, health })
    }

    /// Sends the decision off, unless Memcached is known to be away.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time) -> Answer {
        if now.micros() < self.health.away_until.load(Ordering::Relaxed) {
            return Answer::Away;
        }
        let (reply, verdicts) = oneshot::channel();
        let wish = |ask: &Ask<'_>| Wish { limit: ask.limit.clone(), key: ask.key, cost: ask.cost, place: ask.place };
        match self.jobs.send(Job { asks: asks.iter().map(wish).collect(), now, reply }) {
            Ok(()) => Answer::Later(verdicts),
            Err(_) => Answer::Away,
        }
    }

    /// How the exchanges go.
    pub fn health(&self) -> &Health {
        &self.health
    }
}
