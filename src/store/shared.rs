//! Counters on servers that any number of gateways share.
//!
//! All decisions of this process pass through one coordinator, in order. Decisions that wait together share one exchange, and
//! a refusal is remembered until it might end. While a server is away, counting continues from its last known counts.

mod failure;
mod slots;
pub mod protocol;
mod counters;
mod names;
mod targets;
mod versioned;
mod cached_cell;
mod cells;
mod migration;
mod refusals;
mod health;
mod batch;
mod mailbox;
mod coordinator;
mod link;
mod engine;
mod connection;
mod notes;
mod driver;
pub mod simulation;
pub mod memcached;
pub mod valkey;

use std::sync::Arc;
use std::{io, thread};

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::plan::AskPlan;
use super::{Answer, Ask, Away, Demand, IfAbandoned, KeyUsage, LimitChanges, Reply, Ticket, Watch};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::config::{self, OnError, Role, Software};
use crate::limit::Limit;

use driver::Setup;
use mailbox::{Inspection, Mailboxes, Message, PendingDecision, Reload, Settlement, Task};
use memcached::Memcached;
use protocol::Protocol;
use refusals::RefusalCache;
use valkey::Valkey;

pub use health::{Health, Server};
pub use notes::Notes;

/// Microseconds for which a refusal is remembered if counters shrink: other gateways may give back the charges behind it.
const BRIEFLY: u64 = 20_000;

pub struct Shared {
    common: Common,
    /// The driver's parts, until the only worker runs it.
    setup: Mutex<Option<Setup>>,
    /// Closed when the driver has ended.
    done: watch::Receiver<()>,
}

/// What the servers of this store understand.
fn protocol_of(config: &config::SharedStore) -> Arc<dyn Protocol> {
    match config.software {
        Software::Memcached => Arc::new(Memcached),
        Software::Valkey => Arc::new(Valkey::new(config.login.clone(), &config.prefix)),
    }
}

fn run(setup: Setup) {
    // Only name lookups and statistics of Memcached block; one that hangs must not delay those of other servers.
    let threads = 2 * (setup.config.servers.len() + setup.config.login.sentinels.len());
    let mut builder = Builder::new_current_thread();
    match builder.enable_all().max_blocking_threads(threads).build_local(LocalOptions::default()) {
        Ok(runtime) => {
            runtime.block_on(setup.run());
            // Unlike a drop, does not wait for name lookups.
            runtime.shutdown_background();
        }
        Err(error) => tracing::error!(%error, "nothing talks to {}", setup.config.software.word()),
    }
}

#[derive(Clone, Debug)]
struct OwnedAsk {
    limit: Arc<Limit>,
    key: Fingerprint,
    need: u64,
    cost: u64,
    settles: bool,
    if_abandoned: IfAbandoned,
    held_above: Option<u32>,
    /// How full the limit was before the request was charged; 0 if that is not known yet, or does not matter.
    level: u32,
    role: Role,
    overflow: Option<usize>,
    in_steps: bool,
    place: usize,
    /// The limit that was asked, if another one has replaced it and counts the key.
    requested: Option<Arc<Limit>>,
    /// What the request asks of the limit itself, if `need` and `cost` include what it is asked as a pool.
    own_demand: Option<Demand>,
    /// Whether it is known to have no room for this request: by a remembered refusal, or because others were faster.
    is_full: bool,
}

impl From<&Ask<'_>> for OwnedAsk {
    fn from(ask: &Ask<'_>) -> Self {
        let Ask { limit, key, need, cost, settles, if_abandoned, held_above, role, overflow, in_steps, place } = *ask;
        let (limit, level, requested, own_demand, is_full) = (limit.clone(), 0, None, None, false);
        Self {
            limit,
            key,
            need,
            cost,
            settles,
            if_abandoned,
            held_above,
            level,
            role,
            overflow,
            in_steps,
            place,
            requested,
            own_demand,
            is_full,
        }
    }
}

impl OwnedAsk {
    /// What the request asks of the limit itself.
    fn borrowed(&self) -> Ask<'_> {
        let Self { ref limit, key, settles, if_abandoned, held_above, role, overflow, in_steps, place, .. } = *self;
        let Demand { need, cost } = self.own_demand.unwrap_or(self.demand());
        Ask { limit, key, need, cost, settles, if_abandoned, held_above, role, overflow, in_steps, place }
    }

    /// All that the limit is asked, also as a pool.
    fn demand(&self) -> Demand {
        Demand { need: self.need, cost: self.cost }
    }

    /// Sets `need` and `cost` to what the plan asks of the limit.
    fn follow_plan(&mut self, part: &AskPlan) {
        let own_demand = self.borrowed().demand();
        (self.own_demand, Demand { need: self.need, cost: self.cost }) = match part.pooled {
            Some((demand, _)) => (Some(own_demand), demand),
            None => (None, own_demand),
        };
    }

    fn looks_at_bans(&self) -> bool {
        self.borrowed().looks_at_bans()
    }

    fn cell(&self) -> Fingerprint {
        self.key.with(self.limit.shape())
    }
}

#[derive(Clone)]
struct Common {
    mailboxes: Arc<Mailboxes>,
    health: Arc<Health>,
    refusals: Arc<RefusalCache>,
    /// Whether decisions are made without the server while it is away.
    is_local: bool,
}

impl Common {
    fn new(config: &config::SharedStore, workers: usize) -> Self {
        Self {
            mailboxes: Arc::new(Mailboxes::new(workers)),
            health: Arc::new(Health::new(&config.servers, workers, config.software.word())),
            refusals: Arc::new(RefusalCache::new(if config.strict { BRIEFLY } else { u64::MAX })),
            is_local: config.on_error == OnError::Local,
        }
    }

    /// Whether the server is away, and nothing is decided without it.
    fn is_lost(&self) -> bool {
        !self.is_local && self.health.is_away()
    }

    /// Answers from remembered refusals, or else sends the decision to the driver, unless the server is lost.
    fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize, asked: impl FnOnce() -> Instant) -> Answer {
        let is_lost = self.is_lost();
        self.health.decisions.of(worker).one();
        if let Some(reply) = self.refusals.find(asks, now, is_lost) {
            self.health.remembered.of(worker).one();
            return Answer::Now(reply);
        }
        if is_lost {
            return Answer::Away;
        }
        let (sender, reply) = oneshot::channel();
        let asks = asks.iter().map(OwnedAsk::from).collect();
        let decision = PendingDecision::new(asks, now, asked(), Some(sender), worker);
        self.mailboxes.send(Message::Decide(decision), worker);
        Answer::Later(reply)
    }
}

impl Shared {
    /// Each of the `workers` must run [`Self::carry`]. A separate thread talks to the server. A single worker does that itself:
    /// two threads would only take turns, and each switch costs more than the work. Fails if a thread cannot be started.
    pub fn start(config: &config::SharedStore, workers: usize) -> io::Result<Self> {
        let common = Common::new(config, workers);
        let (done, is_done) = watch::channel(());
        let (protocol, name) = (protocol_of(config), config.software.word());
        let setup = Setup { config: config.clone(), protocol, common: common.clone(), _done: done };
        let setup = if workers == 1 {
            Some(setup)
        } else {
            thread::Builder::new().name(name.to_owned()).spawn(|| run(setup))?;
            None
        };
        Ok(Self { common, setup: Mutex::new(setup), done: is_done })
    }

    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        self.common.decide(asks, now, worker, Instant::now)
    }

    pub fn known_refusal(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Option<Reply> {
        let Common { health, refusals, .. } = &self.common;
        let reply = refusals.find(asks, now, self.common.is_lost())?;
        health.decisions.of(worker).one();
        health.remembered.of(worker).one();
        Some(reply)
    }

    /// Cells of removed limits are dropped. Refusals that were remembered before do not apply to other limits.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        let reload = Reload { changes: changes.clone(), now, asked: Instant::now() };
        self.common.mailboxes.send(Message::Reload(Box::new(reload)), usize::MAX);
    }

    pub fn settle(&self, ticket: Ticket, cost: u64, watch: Watch, now: Time, worker: usize) {
        // A later request is decided after this settlement, and there may be room then.
        self.common.refusals.forget(ticket.key.with(ticket.limit.shape()));
        let settlement = Settlement { ticket, now, asked: Instant::now(), cost, watch };
        self.common.mailboxes.send(Message::Settle(Box::new(settlement)), worker);
    }

    /// What is counted for a key, as far as gateways have told the server. Fails if the server does not answer.
    pub async fn peek(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<KeyUsage, Away> {
        let (reply, usage) = oneshot::channel();
        self.inspect(limit, key, now, Task::Peek(reply));
        usage.await.map_err(|_| Away)
    }

    /// Forgets the counts of a key at all gateways. Fails if the server does not answer. If it was away before, nothing is
    /// reset; if the connection broke meanwhile, the outcome is unknown.
    pub async fn reset(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<(), Away> {
        let (reply, done) = oneshot::channel();
        self.inspect(limit, key, now, Task::Reset(reply));
        done.await.map_err(|_| Away)
    }

    fn inspect(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time, task: Task) {
        let inspection = Inspection { limit: limit.clone(), key, now, asked: Instant::now(), task };
        // Belongs to no worker.
        self.common.mailboxes.send(Message::Inspect(Box::new(inspection)), usize::MAX);
    }

    /// Carries a worker's messages and replies until the store is closed, in a local runtime. A single worker runs the driver.
    pub fn carry(&self, worker: usize) -> impl Future<Output = ()> + use<> {
        let (setup, mailboxes) = (self.setup.lock().take(), self.common.mailboxes.clone());
        async move {
            match setup {
                Some(setup) => _ = tokio::join!(mailboxes.carry(worker), setup.run()),
                None => mailboxes.carry(worker).await,
            }
        }
    }

    pub fn close(&self) {
        self.common.mailboxes.close();
        // A driver that never ran is not needed any more.
        drop(self.setup.lock().take());
    }

    /// Completes when the store is closed and the server has all admissions, at the latest after the timeout of requests.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut done = self.done.clone();
        // An error means that the driver has ended, as expected.
        async move { _ = done.changed().await }
    }

    pub fn health(&self) -> &Health {
        &self.common.health
    }
}

/// The driver still sends what was admitted.
impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
