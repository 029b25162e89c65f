//! Counters in Memcached, shared by any number of gateways.
//!
//! All decisions of this process pass through one ledger on a thread of its own, in order. Those that wait together
//! share one exchange; a refusal is remembered until it might end; and while a server is away the counting goes on from
//! what was known last.

mod wire;
mod keys;
mod debts;
mod whole;
mod known;
mod cells;
mod refused;
mod health;
mod jobs;
mod ledger;
mod link;
mod book;

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use super::{Answer, Ask};
use crate::clock::Time;
use crate::config::{self, OnError};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;

use jobs::Job;
use refused::Refused;

pub use health::{Health, Server};

/// An answer that is later than `timeout` by this does not come: it should have, with or without Memcached.
pub const LATE: Duration = Duration::from_millis(4);

/// The Memcached store.
pub struct Memcached {
    jobs: Option<mpsc::UnboundedSender<Box<Job>>>,
    health: Arc<Health>,
    refused: Arc<Refused>,
    /// Whether decisions are made without Memcached while it is away.
    is_local: bool,
    thread: Option<thread::JoinHandle<()>>,
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

impl Memcached {
    /// Starts the thread that talks to Memcached, apart from those that serve requests.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(config: &config::Memcached) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::unbounded_channel();
        let health = Arc::new(Health::new(&config.servers));
        let refused = Arc::new(Refused::default());
        let is_local = config.on_error == OnError::Local;
        let (config, told, noted) = (config.clone(), health.clone(), refused.clone());
        // Looking up names is all that blocks; a name that hangs is not to hold up the others.
        let threads = 2 * config.servers.len();
        let runtime = move || {
            Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(threads)
                .build_local(LocalOptions::default())
        };
        let work = move || match runtime() {
            Ok(runtime) => runtime.block_on(book::run(config, waiting, told, noted)),
            Err(error) => tracing::error!(%error, "nothing talks to memcached"),
        };
        let thread = thread::Builder::new().name("memcached".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), health, refused, is_local, thread: Some(thread) })
    }

    /// Sends the decision off, unless a refusal still holds or Memcached is known to be away.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time) -> Answer {
        if let Some(verdicts) = self.refused.find(asks, now) {
            self.health.remembered.one();
            return Answer::Now(verdicts);
        }
        let (reply, verdicts) = oneshot::channel();
        if self.send(asks, now, Some(reply)) { Answer::Later(verdicts) } else { Answer::Away }
    }

    /// Sends a charge off, unless Memcached is known to be away.
    pub fn charge(&self, ask: &Ask<'_>, now: Time) {
        self.send(std::slice::from_ref(ask), now, None);
    }

    fn send(&self, asks: &[Ask<'_>], now: Time, reply: Option<oneshot::Sender<super::Verdicts>>) -> bool {
        if !self.is_local && self.health.is_away() {
            return false;
        }
        let job = Box::new(Job { asks: asks.iter().map(Wish::from).collect(), now, reply });
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// How the exchanges go.
    pub fn health(&self) -> &Health {
        &self.health
    }
}

/// Waits until Memcached knows all that was admitted, or as long as a request would.
impl Drop for Memcached {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, it has said so.
            let _ = thread.join();
        }
    }
}
