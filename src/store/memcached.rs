//! Counters in Memcached, shared by any number of gateways.
//!
//! All decisions of this process pass through one ledger, in order. Those that wait together share one exchange; a
//! refusal is remembered until it might end; and while a server is away the counting goes on from what was known last.

mod wire;
mod ready;
mod keys;
mod debts;
mod shares;
mod whole;
mod known;
mod claims;
mod settled;
mod cells;
mod refused;
mod health;
mod message;
mod waiting;
mod servers;
mod desk;
mod ledger;
mod link;
mod book;
mod removed;
mod watch;

use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

use super::{Answer, Ask, LimitChanges, Reply, Reserved};
use crate::clock::Time;
use crate::config::{self, OnError};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;

use book::{Closing, Work};
use desk::Desks;
use message::{Decision, Message, Settlement};
use refused::Refused;
use removed::InUse;

pub use health::{Health, Server};

/// Microseconds for which a refusal is remembered if counters shrink: others may give back what it rests on.
const BRIEFLY: u64 = 20_000;

/// The Memcached store.
pub struct Memcached {
    desks: Arc<Desks>,
    health: Arc<Health>,
    refused: Arc<Refused>,
    in_use: Arc<InUse>,
    /// Whether decisions are made without Memcached while it is away.
    is_local: bool,
    hand: Mutex<Hand>,
    /// Ends the watch when it goes.
    _watch: std::sync::mpsc::Sender<()>,
}

/// Who talks to Memcached.
enum Hand {
    /// A thread of its own.
    Thread(thread::JoinHandle<()>),
    /// The only worker, when it takes this up.
    Awaited(Box<Work>),
    /// A task of the only worker.
    Worker(JoinHandle<()>),
    /// Nobody any more.
    Nobody,
}

/// Does the work on a thread of its own.
fn apart(work: Work) {
    // Looking up names is all that blocks; a name that hangs is not to hold up the others.
    let threads = 2 * work.config.servers.len();
    let mut builder = Builder::new_current_thread();
    match builder.enable_all().max_blocking_threads(threads).build_local(LocalOptions::default()) {
        Ok(runtime) => {
            runtime.block_on(book::run(work));
            // Without waiting for a name that is being looked up.
            runtime.shutdown_background();
        }
        Err(error) => tracing::error!(%error, "nothing talks to memcached"),
    }
}

/// An ask that owns what it asks for.
#[derive(Clone, Debug)]
struct Wish {
    limit: Arc<Limit>,
    key: Fingerprint,
    need: u64,
    cost: u64,
    settles: bool,
    advisory: bool,
    place: usize,
}

impl From<&Ask<'_>> for Wish {
    fn from(ask: &Ask<'_>) -> Self {
        let Ask { limit, key, need, cost, settles, advisory, place } = *ask;
        Self { limit: limit.clone(), key, need, cost, settles, advisory, place }
    }
}

impl Wish {
    /// What its cell is found by.
    fn cell(&self) -> Fingerprint {
        self.key.with(self.limit.shape())
    }
}

impl Memcached {
    /// Prepares for so many `workers`, each of which runs [`Self::carry`]. A thread of its own talks to Memcached, apart
    /// from those that serve requests; a single worker does it itself, since every change of threads would be between
    /// those two.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(config: &config::Memcached, workers: usize) -> io::Result<Self> {
        let (desks, posts) = Desks::new(workers);
        let desks = Arc::new(desks);
        let health = Arc::new(Health::new(&config.servers, workers));
        let refused = Arc::new(Refused::new(if config.strict { BRIEFLY } else { u64::MAX }));
        let is_local = config.on_error == OnError::Local;
        let in_use = Arc::new(InUse::default());
        let (told, noted, known) = (health.clone(), refused.clone(), in_use.clone());
        let closing = Closing(desks.clone());
        let work = Work { config: config.clone(), closing, posts, health: told, refused: noted, in_use: known };
        let hand = match workers {
            1 => Hand::Awaited(Box::new(work)),
            _ => Hand::Thread(thread::Builder::new().name("memcached".to_owned()).spawn(|| apart(work))?),
        };
        let (watch, end) = std::sync::mpsc::channel();
        let watched = health.clone();
        thread::Builder::new().name("memcached-watch".to_owned()).spawn(move || watch::run(&watched, &end))?;
        Ok(Self { _watch: watch, desks, health, refused, in_use, is_local, hand: Mutex::new(hand) })
    }

    /// Sends the decision off, unless a refusal still holds or Memcached is known to be away.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        if let Some(verdicts) = self.refused.find(asks, now) {
            self.health.remembered.of(worker).one();
            return Answer::Now(Reply { verdicts, reserved: Vec::new() });
        }
        if self.is_lost() {
            return Answer::Away;
        }
        let (reply, verdicts) = oneshot::channel();
        let asks = asks.iter().map(Wish::from).collect();
        let decision = Decision::new(asks, (now, Instant::now()), Some(reply), worker);
        self.desks.put(Message::Decide(decision), worker);
        Answer::Later(verdicts)
    }

    /// Applies a reload that takes effect at `now`: the cells of removed limits are dropped. All remembered refusals are
    /// forgotten, because each of them is by a limit from before the reload.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        self.refused.clear();
        self.in_use.change(changes, now);
    }

    /// Sends off what settles a reservation: what is given back, or what is charged in addition.
    pub fn settle(&self, ask: &Ask<'_>, reserved: Reserved, cost: u64, (now, worker): (Time, usize)) {
        let wish = Wish::from(ask);
        // Whoever asks from now on is decided after this, and there may be room then.
        self.refused.forget(wish.cell());
        let (before, reservation) = (reserved.cost(), reserved.reservation);
        let (given, more) = (before.saturating_sub(cost), cost.saturating_sub(before));
        let (asked, cell) = (Instant::now(), reserved.cell);
        let settlement = Settlement { wish, now, asked, reservation, cell, given, more };
        self.desks.put(Message::Settle(Box::new(settlement)), worker);
    }

    /// Carries the decisions of a worker to where Memcached is talked to, and the answers back: a task of the worker, for
    /// as long as it runs. It has to be in a local runtime.
    pub async fn carry(&self, worker: usize) {
        self.take_up();
        self.desks.carry(worker).await;
    }

    fn take_up(&self) {
        let mut hand = self.hand.lock();
        *hand = match mem::replace(&mut *hand, Hand::Nobody) {
            Hand::Awaited(work) => Hand::Worker(spawn_local(book::run(*work))),
            other => other,
        };
    }

    /// Waits until Memcached knows all that was admitted, or as long as a request would, where a worker sees to that:
    /// the last that it does.
    pub async fn finish(&self) {
        if let Some(task) = self.last_task() {
            self.desks.close();
            // It does not panic; if it did, it has said so.
            let _ = task.await;
        }
    }

    fn last_task(&self) -> Option<JoinHandle<()>> {
        let mut hand = self.hand.lock();
        match mem::replace(&mut *hand, Hand::Nobody) {
            Hand::Worker(task) => Some(task),
            other => {
                *hand = other;
                None
            }
        }
    }

    /// Whether nobody could answer.
    fn is_lost(&self) -> bool {
        !self.is_local && self.health.is_away()
    }

    /// How the exchanges go.
    pub fn health(&self) -> &Health {
        &self.health
    }
}

/// Waits until Memcached knows all that was admitted, or as long as a request would, where a thread sees to that.
impl Drop for Memcached {
    fn drop(&mut self) {
        self.desks.close();
        if let Hand::Thread(thread) = mem::replace(self.hand.get_mut(), Hand::Nobody) {
            // It does not panic; if it did, it has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
