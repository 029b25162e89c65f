//! Counters on servers that any number of gateways share.
//!
//! All decisions of this process pass through one coordinator, in order. Those that wait together share one exchange; a
//! refusal is remembered until it might end; and while a server is away the counting goes on from what was known last.

pub mod protocol;
mod counters;
mod names;
mod targets;
mod versioned;
mod provisional;
mod cached_cell;
mod cells;
mod migration;
mod refusals;
mod health;
mod message;
mod decision_queue;
mod batch;
mod mailbox;
mod sweep;
mod coordinator;
mod link;
mod engine;
mod connection;
mod driver;
pub mod simulation;
pub mod memcached;

use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::plan::{AskPlan, AskTerms};
use super::{Answer, Ask, Away, Demand, KeyUsage, LimitChanges, Reply, Ticket};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::config::{self, OnError, Role};
use crate::limit::Limit;

use driver::Setup;
use mailbox::Mailboxes;
use message::{Inspection, Message, PendingDecision, Reload, Settlement, Task};
use protocol::Protocol;
use refusals::RefusalCache;

pub use health::{Health, Server};

/// Microseconds for which a refusal is remembered if counters shrink: others may give back what it rests on.
const BRIEFLY: u64 = 20_000;

/// The shared store.
pub struct Shared {
    common: Common,
    /// The driver, until the only worker runs it.
    setup: Mutex<Option<Setup>>,
    /// Closed when the driver has ended.
    done: watch::Receiver<()>,
    /// Ends the thread that asks servers for statistics.
    _probing: std::sync::mpsc::Sender<()>,
}

/// Runs the driver on this thread.
fn run(setup: Setup) {
    // Only name lookups block; a lookup that hangs must not delay those of other servers.
    let threads = 2 * setup.config.servers.len();
    let mut builder = Builder::new_current_thread();
    match builder.enable_all().max_blocking_threads(threads).build_local(LocalOptions::default()) {
        Ok(runtime) => {
            runtime.block_on(setup.run());
            // This does not wait for name lookups.
            runtime.shutdown_background();
        }
        Err(error) => tracing::error!(%error, "nothing talks to {}", setup.protocol.name()),
    }
}

#[derive(Clone, Debug)]
struct OwnedAsk {
    limit: Arc<Limit>,
    key: Fingerprint,
    need: u64,
    cost: u64,
    settles: bool,
    lapses: bool,
    held_above: Option<u32>,
    /// How full the limit was before the request was charged, once that is known and if it matters.
    level: u32,
    role: Role,
    overflow: Option<usize>,
    place: usize,
    /// The limit that was asked, if another one has replaced it and counts the key.
    requested: Option<Arc<Limit>>,
    /// What the request asks of the limit itself, if `need` and `cost` are what it is asked to stand in for others.
    own_demand: Option<Demand>,
    /// Whether it is known to have no room for this request: that is remembered, or others were faster.
    is_full: bool,
}

impl From<&Ask<'_>> for OwnedAsk {
    fn from(ask: &Ask<'_>) -> Self {
        let Ask { limit, key, need, cost, settles, lapses, held_above, role, overflow, place } = *ask;
        let (limit, level, requested, own_demand, is_full) = (limit.clone(), 0, None, None, false);
        Self {
            limit,
            key,
            need,
            cost,
            settles,
            lapses,
            held_above,
            level,
            role,
            overflow,
            place,
            requested,
            own_demand,
            is_full,
        }
    }
}

impl OwnedAsk {
    fn borrowed(&self) -> Ask<'_> {
        let Self { ref limit, key, settles, lapses, held_above, role, overflow, place, .. } = *self;
        let Demand { need, cost } = self.terms().demand;
        Ask { limit, key, need, cost, settles, lapses, held_above, role, overflow, place }
    }

    /// What is asked of the limit: in all, if it stands in for others.
    fn demand(&self) -> Demand {
        Demand { need: self.need, cost: self.cost }
    }

    fn terms(&self) -> AskTerms {
        let Self { role, place, overflow, .. } = *self;
        AskTerms { demand: self.own_demand.unwrap_or(self.demand()), role, place, overflow }
    }

    /// Asks for as much as the plan does.
    fn follow_plan(&mut self, part: &AskPlan) {
        let own_demand = self.terms().demand;
        (self.own_demand, Demand { need: self.need, cost: self.cost }) = match part.pooled {
            Some((demand, _)) => (Some(own_demand), demand),
            None => (None, own_demand),
        };
    }

    /// Whether it charges nothing and only asks whether the key is banned.
    fn looks_at_bans(&self) -> bool {
        self.borrowed().looks_at_bans()
    }

    /// What its cell is found by.
    fn cell(&self) -> Fingerprint {
        self.key.with(self.limit.shape())
    }
}

/// What the workers and the driver have in common.
#[derive(Clone)]
struct Common {
    mailboxes: Arc<Mailboxes>,
    health: Arc<Health>,
    refusals: Arc<RefusalCache>,
    /// Whether decisions are made without the server while it is away.
    is_local: bool,
}

impl Common {
    fn new(config: &config::SharedStore, protocol: &dyn Protocol, workers: usize) -> Self {
        Self {
            mailboxes: Arc::new(Mailboxes::new(workers)),
            health: Arc::new(Health::new(&config.servers, workers, protocol.name())),
            refusals: Arc::new(RefusalCache::new(if config.strict { BRIEFLY } else { u64::MAX })),
            is_local: config.on_error == OnError::Local,
        }
    }

    /// Whether the server cannot be asked, and nothing is decided without it.
    fn is_lost(&self) -> bool {
        !self.is_local && self.health.is_away()
    }

    /// Answers from remembered refusals, or sends the decision off, unless nobody could answer.
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
    /// Prepares for so many `workers`, each of which runs [`Self::carry`]. A thread of its own talks to the server,
    /// apart from those that serve requests. A single worker does that itself: two threads would only take turns, and
    /// each switch costs more than the work.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(config: &config::SharedStore, protocol: &'static dyn Protocol, workers: usize) -> io::Result<Self> {
        let common = Common::new(config, protocol, workers);
        let (done, is_done) = watch::channel(());
        let setup = Setup { config: config.clone(), protocol, common: common.clone(), _done: done };
        let setup = if workers == 1 {
            Some(setup)
        } else {
            thread::Builder::new().name(protocol.name().to_owned()).spawn(|| run(setup))?;
            None
        };
        let (probing, end) = std::sync::mpsc::channel();
        let probed = common.health.clone();
        let name = format!("{}-watch", protocol.name());
        thread::Builder::new().name(name).spawn(move || health::watch(protocol, &probed, &end))?;
        Ok(Self { common, setup: Mutex::new(setup), done: is_done, _probing: probing })
    }

    /// Sends the decision off, unless a refusal still holds or the server is known to be away.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        self.common.decide(asks, now, worker, Instant::now)
    }

    /// The reply to a request that a remembered refusal refuses.
    pub fn known_refusal(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Option<Reply> {
        let Common { health, refusals, .. } = &self.common;
        let reply = refusals.find(asks, now, self.common.is_lost())?;
        health.decisions.of(worker).one();
        health.remembered.of(worker).one();
        Some(reply)
    }

    /// Applies a reload, or a change of overrides, that takes effect at `now`: the cells of removed limits are dropped. What is
    /// remembered of refusals by limits from before the reload is of no use to other limits.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        let reload = Reload { changes: changes.clone(), now, asked: Instant::now() };
        self.common.mailboxes.send(Message::Reload(Box::new(reload)), usize::MAX);
    }

    /// Sends off what settles a reservation: what is given back, or what is charged in addition.
    pub fn settle(&self, ticket: Ticket, cost: u64, now: Time, worker: usize) {
        // A request that asks from now on is decided after this, and there may be room then.
        self.common.refusals.forget(ticket.key.with(ticket.limit.shape()));
        let settlement = Settlement { ticket, now, asked: Instant::now(), cost };
        self.common.mailboxes.send(Message::Settle(Box::new(settlement)), worker);
    }

    /// What is counted for a key, as all gateways have told the server so far.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn peek(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<KeyUsage, Away> {
        let (reply, usage) = oneshot::channel();
        self.inspect(limit, key, now, Task::Peek(reply));
        usage.await.map_err(|_| Away)
    }

    /// Lets a key begin anew, at all gateways.
    ///
    /// # Errors
    /// If the server does not answer. If it was away before, nothing is reset; if the connection broke meanwhile, that
    /// is unknown.
    pub async fn reset(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<(), Away> {
        let (reply, done) = oneshot::channel();
        self.inspect(limit, key, now, Task::Reset(reply));
        done.await.map_err(|_| Away)
    }

    fn inspect(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time, task: Task) {
        let inspection = Inspection { limit: limit.clone(), key, now, asked: Instant::now(), task };
        // It comes from none of the workers.
        self.common.mailboxes.send(Message::Inspect(Box::new(inspection)), usize::MAX);
    }

    /// Carries the messages of a worker to the driver, and its replies back, until the store is closed. It has to be in a
    /// local runtime. The only worker runs the driver as well.
    pub fn carry(&self, worker: usize) -> impl Future<Output = ()> + use<> {
        let (setup, mailboxes) = (self.setup.lock().take(), self.common.mailboxes.clone());
        async move {
            match setup {
                Some(setup) => _ = tokio::join!(mailboxes.carry(worker), setup.run()),
                None => mailboxes.carry(worker).await,
            }
        }
    }

    /// Decides nothing more.
    pub fn close(&self) {
        self.common.mailboxes.close();
        // If the driver was never run, it is not needed any more.
        drop(self.setup.lock().take());
    }

    /// Completes when the store is closed and the server has all that was admitted, or after as long as a request would
    /// wait for it.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut done = self.done.clone();
        // It fails once the driver has ended, which is what is waited for.
        async move { _ = done.changed().await }
    }

    /// How the exchanges go.
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
