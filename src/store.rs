//! The store of counters. A decision asks about all its counters at once and gets one answer.
//!
//! The memory store answers immediately, a shared one later. A store outlives a reload that names the same place; counters in
//! memory can outlive the process.

mod ticket;
mod plan;
mod watch;
mod reloads;
pub mod shared;
pub mod memory;

use std::io;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::base::clock::{self, Time, Timeline};
use crate::base::fingerprint::Fingerprint;
use crate::config::{self, Role};
use crate::limit::{Cell, Limit, RateUsage, Verdict};

use memory::Memory;
pub use plan::{Demand, Pooled, RefusedAsk};
use shared::Shared;
pub use ticket::{Reserved, Ticket};
pub use watch::{ReachedRate, ReachedRates, Watch, Watcher};

/// One limit of a decision, asked for one key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub limit: &'a Arc<Limit>,
    /// The client's key, in the domain of the limit.
    pub key: Fingerprint,
    /// How much room the request needs to be admitted.
    pub need: u64,
    /// What the request is charged when it is admitted.
    pub cost: u64,
    /// Whether `cost` is only reserved until [`Store::settle`] is called with what the request really costs.
    pub settles: bool,
    pub if_abandoned: IfAbandoned,
    /// The request may be held before it is served if the limit's level ([`Verdict::level`]) is above this; `None` if it is
    /// never held. Then its other limits, too, only reserve what they charge, because the client may go away meanwhile.
    pub held_above: Option<u32>,
    /// A limit that only stands in for others reports, and is asked for nothing.
    pub role: Role,
    /// The place of the pool that stands in for the limit if it has no room; `None` if there is none.
    pub overflow: Option<usize>,
    /// Whether the limit is charged later, in steps: as a pool, too, it only needs room for what the request asks.
    pub in_steps: bool,
    /// The index of the limit on its route, which is returned with the verdict.
    pub place: usize,
}

/// What becomes of an ask if the asker is gone before the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfAbandoned {
    /// It is not decided any more. Once it is, its charge stays, because the request was let through by then.
    #[default]
    Ends,
    /// The same, but its charge is given back.
    Lapses,
    /// It is decided and charged all the same: a proxy that asked may let the request through without the answer.
    Stays,
}

impl<'a> Ask<'a> {
    /// Needs and is charged `cost`. The caller sets what only a route knows.
    pub fn new(limit: &'a Arc<Limit>, key: Fingerprint, cost: u64) -> Self {
        let (settles, if_abandoned) = (false, IfAbandoned::default());
        let (held_above, role, overflow, in_steps) = (None, Role::Refuses, None, false);
        Self { limit, key, need: cost, cost, settles, if_abandoned, held_above, role, overflow, in_steps, place: 0 }
    }

    /// Whether the ask charges nothing and only checks whether the key is banned.
    fn looks_at_bans(&self) -> bool {
        self.cost == 0 && self.limit.counts_bans()
    }
}

/// Whether `ban` lasts longer than any other limit of the request could refuse it.
fn outlasts(ban: &Verdict, asks: &[Ask<'_>]) -> bool {
    let mut others = asks.iter().filter(|ask| !ask.looks_at_bans());
    others.all(|ask| !ask.settles && ask.limit.rates().iter().all(|rate| Some(rate.memory()) <= ban.wait))
}

/// In the order of the route's limits.
pub type Asks<'a> = SmallVec<[Ask<'a>; 2]>;

/// The verdict of each limit with the place of its ask, in the order of the asks. If the request passes, the limits that
/// admit it are charged, and pools instead of full limits. Otherwise none is charged, and verdicts may be missing, because
/// the store may stop at a refusal. A limit that only stands in for others has no verdict.
pub type Verdicts = SmallVec<[(usize, Verdict); 2]>;

#[derive(Debug, Default)]
pub struct Reply {
    pub verdicts: Verdicts,
    /// What the pools say that were asked to stand in for limits without room.
    pub pooled: Vec<Pooled>,
    /// The moment of the decision, if that is later than the moment that the caller gave.
    pub as_of: Option<Time>,
    /// One for each ask that settles and was charged; one for each charged ask if the request may be held.
    pub reserved: Vec<Reserved>,
    /// Of watched limits that refuse the request, or that charge it what it costs.
    pub reached: ReachedRates,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// The limit that counts the key: another one than was asked for if a reload has replaced that.
    pub limit: Arc<Limit>,
    /// In the order of the limit's rates.
    pub rates: Vec<RateUsage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away;

/// What a reload or an override changes about limits. A limit here is one set of rates: its own, a tier's or an override's.
#[derive(Clone, Debug, Default)]
pub struct LimitChanges {
    pub in_use: Vec<Arc<Limit>>,
    /// The names of limits whose keys may get any rates at any time, from a source of quotas.
    pub with_quotas: Vec<String>,
    pub replaced: Vec<Replaced>,
}

impl LimitChanges {
    /// Of the limits in use that have rates; some come several times.
    fn names(&self) -> impl Iterator<Item = &str> {
        let with_rates = self.in_use.iter().filter(|limit| !limit.rates().is_empty());
        with_rates.map(|limit| limit.name()).chain(self.with_quotas.iter().map(String::as_str))
    }
}

#[derive(Clone, Debug)]
pub struct Replaced {
    /// The only key concerned, because an override of it was set or has ended; `None` if all keys are.
    pub key: Option<Fingerprint>,
    pub from: Arc<Limit>,
    pub to: Arc<Limit>,
}

pub enum Answer {
    Now(Reply),
    /// A dropped sender means that the store is unavailable.
    Later(oneshot::Receiver<Reply>),
    Away,
}

pub struct Store {
    pub counters: Counters,
    /// Says as of which moment to decide; `None` if callers are believed, as in a simulation.
    timeline: Option<Timeline>,
}

pub enum Counters {
    Memory(Memory),
    /// On servers that other gateways use as well.
    Shared(Shared),
}

/// Replaces a caller's `now` by the store's timeline, so a request that has waited since is decided as of the present.
impl Store {
    /// Does not wait for a connection.
    ///
    /// # Errors
    /// If the thread for the servers cannot be started.
    pub fn open(config: &config::Store, workers: usize) -> io::Result<Self> {
        let counters = match config {
            config::Store::Memory { max_keys, max_memory, .. } => Counters::Memory(Memory::new(*max_keys, *max_memory)),
            config::Store::Shared(config) => Counters::Shared(Shared::start(config, workers)?),
        };
        Ok(Self::new(counters))
    }

    /// A store that decides as of whatever moments it is given.
    #[must_use]
    pub fn simulated(self) -> Self {
        Self { timeline: None, ..self }
    }

    fn new(counters: Counters) -> Self {
        Self { counters, timeline: Some(Timeline::new(clock::now)) }
    }

    /// What runs on its servers, in lower case; `"memory"` without servers.
    pub fn name(&self) -> &'static str {
        self.shared().map_or("memory", |shared| shared.health().name)
    }

    /// The moment as of which to decide, if the caller read the clock at `read`.
    fn moment(&self, read: Time) -> Time {
        self.timeline.as_ref().map_or(read, |timeline| timeline.moment(read))
    }

    /// Cells, leases and requests of keys whose limits are not replaced stay as they are.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => memory.reload(changes, now),
            Counters::Shared(shared) => shared.reload(changes, now),
        }
    }

    /// Settles a reservation once the request is known to cost `cost`. If that is less, the rest is given back where it was
    /// counted; if it is more, the difference is charged even if there is no room. Corrects `verdict` accordingly, and
    /// returns its moment if that has changed.
    pub fn settle(
        &self,
        reserved: Reserved,
        cost: u64,
        verdict: Option<&mut Verdict>,
        now: Time,
        worker: usize,
    ) -> Option<Time> {
        if cost == reserved.cost() && !reserved.ticket.limit.follows() && reserved.watch.is_nobody() {
            return None;
        }
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => {
                let settled = memory.settle(&reserved, cost, now);
                verdict.map(|verdict| *verdict = settled)?;
                Some(now)
            }
            Counters::Shared(shared) => {
                verdict.into_iter().for_each(|verdict| *verdict = reserved.settled_verdict(cost, *verdict));
                shared.settle(reserved.ticket, cost, reserved.watch, now, worker);
                None
            }
        }
    }

    /// Charges the request to every limit that was asked, or to none.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => Answer::Now(memory.decide(asks, now)),
            Counters::Shared(shared) => shared.decide(asks, now, worker),
        }
    }

    /// The reply if the counters are in memory. Otherwise nothing is asked.
    pub fn decide_at_once(&self, asks: &[Ask<'_>], now: Time) -> Option<Reply> {
        let Counters::Memory(memory) = &self.counters else { return None };
        Some(memory.decide(asks, self.moment(now)))
    }

    /// The verdict about one ask that neither settles nor may be held, of a limit that nobody watches. `None` unless it is
    /// known at once; then nothing is charged.
    pub fn decide_one(&self, ask: &Ask<'_>, now: Time) -> Option<Verdict> {
        let Counters::Memory(memory) = &self.counters else { return None };
        memory.decide_one(ask, self.moment(now))
    }

    /// A refusal that is known without asking a server. Charges nothing. `None` does not mean that the request passes.
    pub fn known_refusal(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Option<Reply> {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => memory.refusal(asks, now),
            Counters::Shared(shared) => shared.known_refusal(asks, now, worker),
        }
    }

    /// What has been counted for a key. Charges nothing.
    ///
    /// # Errors
    /// If the server does not answer. Counts that this gateway remembers are not shown, because they may be old.
    pub async fn peek(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<KeyUsage, Away> {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => Ok(memory.peek(limit, key, now)),
            Counters::Shared(shared) => shared.peek(limit, key, now).await,
        }
    }

    /// Forgets what has been counted for a key, here and at all gateways that share the store. Earlier reservations are not
    /// taken from what is counted afterwards.
    ///
    /// # Errors
    /// If the server does not answer. If it was away before, nothing is reset; if the connection broke meanwhile, the outcome
    /// is unknown.
    pub async fn reset(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<(), Away> {
        match &self.counters {
            Counters::Memory(memory) => {
                memory.reset(limit, key);
                Ok(())
            }
            Counters::Shared(shared) => shared.reset(limit, key, self.moment(now)).await,
        }
    }

    /// Runs the store's background work on this worker until the store is closed; `None` if there is none.
    pub fn carry(&self, worker: usize) -> Option<impl Future<Output = ()> + use<>> {
        self.shared().map(|shared| shared.carry(worker))
    }

    /// To be called after the last request. Dropping the store does the same.
    pub fn close(&self) {
        self.shared().into_iter().for_each(Shared::close);
    }

    /// Completes when the store is closed and all admissions are counted where other gateways see them, or cannot be in time;
    /// `None` for the memory store.
    pub fn ended(&self) -> Option<impl Future<Output = ()> + use<>> {
        self.shared().map(Shared::ended)
    }

    fn shared(&self) -> Option<&Shared> {
        if let Counters::Shared(shared) = &self.counters { Some(shared) } else { None }
    }
}

impl From<Memory> for Store {
    fn from(memory: Memory) -> Self {
        Self::new(Counters::Memory(memory))
    }
}

impl Ask<'_> {
    fn demand(&self) -> Demand {
        Demand { need: self.need, cost: self.cost }
    }

    /// Whether the request asks nothing of the limit itself.
    fn is_idle(&self) -> bool {
        self.role == Role::Reports && self.demand() == Demand::default()
    }

    /// How full the limit is before the request is charged; 0 if it is never held. The cell must be advanced to `now`.
    fn level(&self, cell: &Cell, now: Time) -> u32 {
        self.held_above.map_or(0, |_| self.limit.level(cell, now, 0))
    }

    fn may_be_held(&self, level: u32) -> bool {
        self.held_above.is_some_and(|from| level > from)
    }
}

impl LimitChanges {
    /// Whether a key of the limit `name` counts differently afterwards.
    fn replace(&self, name: &str, key: Fingerprint) -> bool {
        let is_about = |one: &Replaced| one.key.is_none_or(|of| of == key) && one.from.name() == name;
        self.replaced.iter().any(is_about)
    }
}

impl KeyUsage {
    /// The cell must be advanced to `now`.
    fn of(limit: Arc<Limit>, cell: &Cell, now: Time) -> Self {
        let rates = limit.usages(cell, now).collect();
        Self { limit, rates }
    }
}

#[cfg(test)]
mod tests;
