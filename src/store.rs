//! Where counters live. A decision hands over all its counters at once and gets one answer.
//!
//! The memory store answers on the spot; Memcached answers later. Both outlive a reload.

pub mod memcached;
pub mod memory;

use std::io;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::clock::Time;
use crate::config;
use crate::fingerprint::Fingerprint;
use crate::limit::{Limit, Reservation, Verdict};

use memcached::Memcached;
use memory::Memory;

/// One limit of a decision, asked for one key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The limit.
    pub limit: &'a Arc<Limit>,
    /// The client's key, in the domain of the limit.
    pub key: Fingerprint,
    /// The room that the request needs to be admitted.
    pub need: u64,
    /// What it is charged when it is.
    pub cost: u64,
    /// Whether that is only reserved, and settled with [`Store::settle`] when it is known what the request costs.
    pub settles: bool,
    /// Whether the limit only says what it would do: it is charged like the others, but stops nobody.
    pub advisory: bool,
    /// The caller's own number for it, handed back with the verdict.
    pub place: usize,
}

/// All that one request asks, in the order of the route's limits.
pub type Asks<'a> = SmallVec<[Ask<'a>; 2]>;

/// The verdict of each limit under the place of its ask. If all that are not advisory admit, those that admit were
/// charged; else none was.
pub type Verdicts = SmallVec<[(usize, Verdict); 2]>;

/// What the store says of a decision.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// By each limit that was asked.
    pub verdicts: Verdicts,
    /// What was reserved, for every ask that settles and was charged.
    pub reserved: Vec<Reserved>,
}

/// What an ask is charged until it is settled.
#[derive(Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The place of the ask.
    pub place: usize,
    reservation: Reservation,
    /// Which cell of this process it was charged to. One that was begun anew for the same key knows nothing of it.
    cell: u32,
    /// What is said of the limit if all is given back, where the store cannot look on the spot.
    spared: Option<Verdict>,
    /// The limit that has counted it, if that is not the one that was asked.
    by: Option<Arc<Limit>>,
}

/// What a reload changes about limits. A limit here is one set of rates: that of its own, of a tier, or of an override.
#[derive(Clone, Debug, Default)]
pub struct LimitChanges {
    /// All that there are now.
    pub in_use: Vec<Arc<Limit>>,
    /// Those that are counted in another way than before, the old one first, for keys that have changed from the one to the
    /// other by the reload.
    pub replaced: Vec<(Arc<Limit>, Arc<Limit>)>,
}

/// A store's answer.
#[derive(Debug)]
pub enum Answer {
    /// Here it is.
    Now(Reply),
    /// It comes, or the sender goes away: then the store is not to be had.
    Later(oneshot::Receiver<Reply>),
    /// The store is known to be away.
    Away,
}

/// A store of counters, shared by all threads.
pub enum Store {
    /// In this process.
    Memory(Memory),
    /// In Memcached.
    Memcached(Memcached),
}

impl Store {
    /// Opens the store that the configuration names, for so many `workers`. Nothing is connected yet.
    ///
    /// # Errors
    /// When there is no thread to be had for Memcached's exchanges.
    pub fn open(config: &config::Store, workers: usize) -> io::Result<Self> {
        match config {
            config::Store::Memory { max_keys, max_memory } => Ok(Self::Memory(Memory::new(*max_keys, *max_memory))),
            config::Store::Memcached(config) => Memcached::start(config, workers).map(Self::Memcached),
        }
    }

    /// A reload has changed the limits, and takes over at `now`.
    pub fn reload(&self, changes: &LimitChanges, now: Time) {
        match self {
            Self::Memory(memory) => memory.reload(changes, now),
            Self::Memcached(memcached) => memcached.reload(changes),
        }
    }

    /// Settles what was `reserved` for this ask of a request of this worker, which turns out to cost `cost`: the rest is
    /// given back where it was counted; what it costs more is charged, whether there is room for it or not. What the limit
    /// has `told` of the request is corrected by that.
    pub fn settle(
        &self,
        ask: &Ask<'_>,
        reserved: Reserved,
        cost: u64,
        told: Option<&mut Verdict>,
        (now, worker): (Time, usize),
    ) {
        if cost == reserved.cost() && !ask.limit.follows() {
            return;
        }
        let verdict = match self {
            Self::Memory(memory) => Some(memory.settle(ask, &reserved, cost, now)),
            Self::Memcached(memcached) => {
                let verdict = told.as_deref().map(|told| reserved.told(cost, *told));
                memcached.settle(ask, reserved, cost, (now, worker));
                verdict
            }
        };
        if let (Some(told), Some(verdict)) = (told, verdict) {
            *told = verdict;
        }
    }

    /// Decides for a request of this worker: charged to every limit asked, or to none.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        match self {
            Self::Memory(memory) => Answer::Now(memory.decide(asks, now)),
            Self::Memcached(memcached) => memcached.decide(asks, now, worker),
        }
    }

    /// What a worker does for its decisions beside its requests, for as long as it runs.
    pub async fn carry(&self, worker: usize) {
        match self {
            Self::Memory(_) => {}
            Self::Memcached(memcached) => memcached.carry(worker).await,
        }
    }

    /// What a worker does when it has served its last request.
    pub async fn finish(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Memcached(memcached) => memcached.finish().await,
        }
    }
}

impl Reserved {
    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.reservation.cost()
    }

    /// What a limit that said so of the request, before others came, says of one of this cost.
    fn told(&self, cost: u64, told: Verdict) -> Verdict {
        let remaining = told.remaining.saturating_add(self.cost()).saturating_sub(cost);
        match self.spared {
            _ if cost == self.cost() => told,
            Some(spared) if cost == 0 && spared.remaining <= remaining => spared,
            _ => Verdict { remaining, wait: None, ..told },
        }
    }
}

#[cfg(test)]
mod tests;
