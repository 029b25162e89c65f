//! Counts the requests that arrive for one upstream, and holds its level of shedding.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::metrics::{Counter, PerWorker};
use crate::config::HIGHEST_PRIORITY;
use crate::upstream::overload::{GROUPS, Level, RANKS};

#[derive(Debug)]
pub struct Meter {
    /// The name of the upstream; empty for routes without one.
    pub name: String,
    level: AtomicU32,
    workers: PerWorker<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// By rank.
    arrived: Box<[Counter]>,
    /// By priority.
    shed: [Counter; HIGHEST_PRIORITY as usize + 1],
}

impl Default for Counts {
    fn default() -> Self {
        Self { arrived: (0..RANKS).map(|_| Counter::default()).collect(), shed: Default::default() }
    }
}

impl Meter {
    pub fn new(name: String, workers: usize) -> Self {
        Self { name, level: AtomicU32::new(0), workers: PerWorker::new(workers) }
    }

    /// Counts a request of this rank. Returns whether it passes.
    pub fn admits(&self, rank: usize, worker: usize) -> bool {
        let counts = self.workers.of(worker);
        if let Some(arrived) = counts.arrived.get(rank) {
            arrived.one();
        }
        let level = self.level();
        if level == Level::NONE || level.admits(rank, || fastrand::u8(..)) {
            return true;
        }
        if let Some(shed) = counts.shed.get(rank / GROUPS) {
            shed.one();
        }
        false
    }

    pub fn level(&self) -> Level {
        Level::from_bits(self.level.load(Ordering::Relaxed))
    }

    pub fn shed(&self) -> [u64; HIGHEST_PRIORITY as usize + 1] {
        std::array::from_fn(|priority| {
            self.workers.iter().filter_map(|counts| counts.shed.get(priority)).map(Counter::get).sum()
        })
    }

    pub(super) fn set_level(&self, level: Level) {
        self.level.store(level.bits(), Ordering::Relaxed);
    }

    pub(super) fn arrived(&self) -> Vec<u64> {
        let of_rank = |rank: usize| self.workers.iter().filter_map(move |counts| counts.arrived.get(rank));
        (0..RANKS).map(|rank| of_rank(rank).map(Counter::get).sum()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shed_has_arrived() {
        let meter = Meter::new("a".to_owned(), 2);
        assert!(meter.admits(5 * GROUPS, 0) && meter.admits(5 * GROUPS, 1));
        meter.set_level(Level::for_share(&vec![1.0; RANKS], 1.0));
        assert!(!meter.admits(0, 1) && meter.admits(RANKS - 1, 1));
        assert_eq!(meter.shed(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let arrived = meter.arrived();
        assert_eq!((arrived[0], arrived[5 * GROUPS], arrived[RANKS - 1]), (1, 2, 1));
        assert_eq!(arrived.iter().sum::<u64>(), 4);
    }
}
