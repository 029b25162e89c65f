//! The store of counters. A decision asks about all its counters at once and gets one answer.
//!
//! The memory store answers immediately; Memcached answers later. A store outlives a reload that names the same
//! place; counters in memory can outlive the process.

mod ticket;
mod plan;
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
use plan::AskTerms;
pub use plan::{Demand, Pooled, RefusedAsk};
use shared::Shared;
use shared::memcached::Memcached;
pub use ticket::{Reserved, Ticket};

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
    /// Whether it is given back if whoever asks has gone before the answer. Otherwise the request was let through then, and it
    /// stays charged.
    pub lapses: bool,
    /// Above which level ([`Verdict::level`]) of the limit the request may be held before it is served; `None` if it never is.
    /// Then all that it is charged is only reserved, by its other limits too, because its client may go away meanwhile.
    pub held_above: Option<u32>,
    /// Whether the limit refuses requests. One that only stands in for others reports, and is asked for nothing.
    pub role: Role,
    /// The place of the pool that stands in for the limit if it has no room; `None` if there is none.
    pub overflow: Option<usize>,
    /// The index of the limit on its route, which is returned with the verdict.
    pub place: usize,
}

impl<'a> Ask<'a> {
    /// Asks for room for `cost`, and to be charged that. What a route adds to it is left out.
    pub fn new(limit: &'a Arc<Limit>, key: Fingerprint, cost: u64) -> Self {
        let (settles, lapses, held_above, role, overflow) = (false, false, None, Role::Refuses, None);
        Self { limit, key, need: cost, cost, settles, lapses, held_above, role, overflow, place: 0 }
    }

    /// Whether it charges nothing and only asks whether the key is banned.
    fn looks_at_bans(&self) -> bool {
        self.cost == 0 && self.limit.counts_bans()
    }
}

/// Whether a ban refuses a request for longer than anything else that is asked about it could.
fn outlasts(ban: &Verdict, asks: &[Ask<'_>]) -> bool {
    let mut others = asks.iter().filter(|ask| !ask.looks_at_bans());
    others.all(|ask| !ask.settles && ask.limit.rates().iter().all(|rate| Some(rate.memory()) <= ban.wait))
}

/// All that one request asks, in the order of the route's limits.
pub type Asks<'a> = SmallVec<[Ask<'a>; 2]>;

/// The verdict of each limit with the place of its ask, in the order of the asks. If the request passes, the limits that admit
/// it were charged, and pools instead of others; otherwise none was, and verdicts of limits may be missing that were not
/// looked at because another one refuses. Of a limit that only stands in for others there is none.
pub type Verdicts = SmallVec<[(usize, Verdict); 2]>;

/// The store's decision about one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// What is known of the limits that were asked.
    pub verdicts: Verdicts,
    /// What pools say that were to stand in for limits without room.
    pub pooled: Vec<Pooled>,
    /// As of when it is decided, if that is later than the moment for which the store was asked.
    pub as_of: Option<Time>,
    /// One reservation for each ask that settles and was charged, and for all that were if the request may be held.
    pub reserved: Vec<Reserved>,
}

/// What has been counted for a key, as of a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// The limit that counts the key. It is another one than was asked for if a reload has replaced that meanwhile.
    pub limit: Arc<Limit>,
    /// One for each rate of that limit, in their order.
    pub rates: Vec<RateUsage>,
}

/// The store cannot be asked, because it is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away;

/// What a reload, or an override that is set or ends, changes about limits. Here a limit is one set of rates: its own, that
/// of a tier, or that of an override.
#[derive(Clone, Debug, Default)]
pub struct LimitChanges {
    /// All limits after the reload.
    pub in_use: Vec<Arc<Limit>>,
    /// The names of those whose keys may get any rates at any time, from a source of quotas.
    pub with_quotas: Vec<String>,
    /// Limits that count differently afterwards.
    pub replaced: Vec<Replaced>,
}

/// A limit whose keys are counted differently by another limit after a reload.
#[derive(Clone, Debug)]
pub struct Replaced {
    /// The one key to which that happens, because an override of it was set or has ended; `None` if it happens to all.
    pub key: Option<Fingerprint>,
    /// The old limit.
    pub from: Arc<Limit>,
    /// The new one.
    pub to: Arc<Limit>,
}

/// A store's answer.
#[derive(Debug)]
pub enum Answer {
    /// The answer is known.
    Now(Reply),
    /// The answer is sent later. If the sender is dropped, the store is not available.
    Later(oneshot::Receiver<Reply>),
    /// The store is known to be unavailable.
    Away,
}

/// A store of counters, shared by all threads.
pub struct Store {
    counters: Counters,
    /// As of when it decides; `None` if every moment is believed.
    timeline: Option<Timeline>,
}

/// Where the counters are.
pub enum Counters {
    /// In this process.
    Memory(Memory),
    /// On servers that other gateways use as well.
    Shared(Shared),
}

/// A moment at which the clock was read is replaced by the one of the store's timeline, so a request that has waited since is
/// decided as of now.
impl Store {
    /// Opens the store that the configuration names, for so many `workers`. Nothing is connected yet.
    ///
    /// # Errors
    /// If the thread for Memcached cannot be started.
    pub fn open(config: &config::Store, workers: usize) -> io::Result<Self> {
        let counters = match config {
            config::Store::Memory { max_keys, max_memory, .. } => Counters::Memory(Memory::new(*max_keys, *max_memory)),
            config::Store::Memcached(config) => Counters::Shared(Shared::start(config, &Memcached, workers)?),
        };
        Ok(Self::new(counters))
    }

    /// The same store in a time of its own: it decides as of whatever moments it is told.
    #[must_use]
    pub fn simulated(self) -> Self {
        Self { timeline: None, ..self }
    }

    fn new(counters: Counters) -> Self {
        Self { counters, timeline: Some(Timeline::new(clock::now)) }
    }

    /// Where its counters are.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The moment as of which something is decided for which the clock was read at `read`.
    fn moment(&self, read: Time) -> Time {
        self.timeline.as_ref().map_or(read, |timeline| timeline.moment(read))
    }

    /// Applies a reload, or a change of overrides, that takes effect at `now`. It concerns no cell, no lease and no request of
    /// keys whose limits are not replaced.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => memory.reload(changes, now),
            Counters::Shared(shared) => shared.reload(changes, now),
        }
    }

    /// Settles what was `reserved`, now that the request is known to cost `cost`. If that is less, the rest is given back where
    /// it was counted; if it is more, the difference is charged even if there is no room for it. The `verdict` on the request
    /// is corrected accordingly. Returns as of when it is, if that has changed.
    pub fn settle(
        &self,
        reserved: Reserved,
        cost: u64,
        verdict: Option<&mut Verdict>,
        now: Time,
        worker: usize,
    ) -> Option<Time> {
        if cost == reserved.cost() && !reserved.ticket.limit.follows() {
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
                shared.settle(reserved.ticket, cost, now, worker);
                None
            }
        }
    }

    /// Decides about a request of this worker. It is charged to every limit that was asked or to none.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => Answer::Now(memory.decide(asks, now)),
            Counters::Shared(shared) => shared.decide(asks, now, worker),
        }
    }

    /// The reply to a request that is refused, if that is known without asking anybody. Nothing is charged. A request of
    /// which it is not known may be refused all the same.
    pub fn known_refusal(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Option<Reply> {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => memory.refusal(asks, now),
            Counters::Shared(shared) => shared.known_refusal(asks, now, worker),
        }
    }

    /// What has been counted for a key, as of `now`. Nothing is charged.
    ///
    /// # Errors
    /// If Memcached does not answer. Counts that this gateway knows from before are not shown, because they may be old.
    pub async fn peek(&self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> Result<KeyUsage, Away> {
        let now = self.moment(now);
        match &self.counters {
            Counters::Memory(memory) => Ok(memory.peek(limit, key, now)),
            Counters::Shared(shared) => shared.peek(limit, key, now).await,
        }
    }

    /// Forgets what has been counted for a key, so that it begins anew: here, and at all gateways that share the store.
    /// What was reserved before is not taken from what is counted afterwards.
    ///
    /// # Errors
    /// If Memcached does not answer. If it was away before, nothing is reset; if the connection broke meanwhile, that is
    /// unknown.
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
        match &self.counters {
            Counters::Memory(_) => None,
            Counters::Shared(shared) => Some(shared.carry(worker)),
        }
    }

    /// Closes the store when the last request is served; so does dropping it.
    pub fn close(&self) {
        match &self.counters {
            Counters::Memory(_) => {}
            Counters::Shared(shared) => shared.close(),
        }
    }

    /// Completes when the store is closed and all that was admitted is counted where other gateways see it, or cannot be
    /// in time; `None` if there are no others.
    pub fn ended(&self) -> Option<impl Future<Output = ()> + use<>> {
        match &self.counters {
            Counters::Memory(_) => None,
            Counters::Shared(shared) => Some(shared.ended()),
        }
    }
}

impl From<Memory> for Store {
    fn from(memory: Memory) -> Self {
        Self::new(Counters::Memory(memory))
    }
}

impl Ask<'_> {
    fn terms(&self) -> AskTerms {
        let Self { need, cost, role, overflow, place, .. } = *self;
        AskTerms { demand: Demand { need, cost }, role, place, overflow }
    }

    /// How full the limit is before the request is charged, if that matters. The cell has been advanced to `now`.
    fn level(&self, cell: &Cell, now: Time) -> u32 {
        self.held_above.map_or(0, |_| self.limit.level(cell, now, 0))
    }

    /// Whether the request may be held, if the limit is so full.
    fn may_be_held(&self, level: u32) -> bool {
        self.held_above.is_some_and(|from| level > from)
    }
}

impl LimitChanges {
    /// Whether a key of the limit of this name is counted differently afterwards.
    fn replace(&self, name: &str, key: Fingerprint) -> bool {
        let is_about = |one: &Replaced| one.key.is_none_or(|of| of == key) && one.from.name() == name;
        self.replaced.iter().any(is_about)
    }
}

impl KeyUsage {
    /// What `limit` has counted in this cell, which has been advanced to `now`.
    fn of(limit: Arc<Limit>, cell: &Cell, now: Time) -> Self {
        let rates = limit.usages(cell, now).collect();
        Self { limit, rates }
    }
}

#[cfg(test)]
mod tests;
