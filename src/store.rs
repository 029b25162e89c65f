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
use crate::limit::{Limit, Verdict};

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

/// A store's answer.
#[derive(Debug)]
pub enum Answer {
    /// Here it is.
    Now(Verdicts),
    /// It comes, or the sender goes away: then the store is not to be had.
    Later(oneshot::Receiver<Verdicts>),
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

    /// Charges what became known only after the decision, whether there is room for it or not. The verdict after it
    /// is there if the store knows it on the spot.
    pub fn charge(&self, ask: &Ask<'_>, now: Time) -> Option<Verdict> {
        match self {
            Self::Memory(memory) => Some(memory.charge(ask, now)),
            Self::Memcached(memcached) => {
                memcached.charge(ask, now);
                None
            }
        }
    }

    /// Decides for a request of this worker: charged to every limit asked, or to none.
    pub fn decide(&self, asks: &[Ask<'_>], now: Time, worker: usize) -> Answer {
        match self {
            Self::Memory(memory) => Answer::Now(memory.decide(asks, now)),
            Self::Memcached(memcached) => memcached.decide(asks, now, worker),
        }
    }

    /// What [`Self::decide`] would say on the spot of a request that it would refuse; charges nothing. Who answers by it
    /// says so with [`Self::refused`].
    pub fn refuses(&self, asks: &[Ask<'_>], now: Time) -> Option<Verdicts> {
        match self {
            Self::Memory(memory) => memory.refuses(asks, now),
            Self::Memcached(memcached) => memcached.refuses(asks, now),
        }
    }

    /// A request of this worker was refused by what [`Self::refuses`] said.
    pub fn refused(&self, worker: usize) {
        match self {
            Self::Memory(_) => {}
            Self::Memcached(memcached) => memcached.refused(worker),
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

#[cfg(test)]
mod tests;
