//! The sweep after a reload drops the cells of removed limits, some at a time. Pending charges to them are written first; on
//! the server their counters expire.

use std::time::Duration;

use tokio::time::Instant;

use super::cells::Cells;
use crate::base::clock::Time;

/// The number of cells per step: some tens of microseconds.
const STEP: usize = 1024;
/// When to examine needed cells again, for example while a server is away that has yet to get their charges.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Sweep {
    next: usize,
    needed: usize,
    pub(super) at: Instant,
}

impl Sweep {
    pub(super) fn new(at: Instant) -> Self {
        Self { next: 0, needed: 0, at }
    }

    pub(super) fn step(mut self, cells: &mut Cells, at: Instant, now: Time) -> Option<Self> {
        if self.next == 0 {
            // Cells of replaced limits stay until their counts no longer matter.
            cells.expire_migrations(now);
        }
        match cells.forget(self.next..self.next + STEP, now) {
            Some(needed) => {
                self.next += STEP;
                self.needed += needed;
                self.at = at;
            }
            None => {
                let again = if self.needed > 0 { Some(AGAIN) } else { cells.expire_migrations(now) };
                self = Self::new(at + again?);
            }
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::fingerprint::Fingerprint;
    use crate::base::metrics::Counter;
    use crate::limit::Limit;
    use crate::store::shared::cached_cell::ExchangeStage;
    use crate::store::shared::tests::ask;
    use crate::store::{LimitChanges, Replaced};

    fn of_limit(cells: &mut Cells, name: &str) -> usize {
        let places = 0..u32::try_from(cells.len()).unwrap();
        places.filter(|place| cells.at(*place).names.limit.name() == name).count()
    }

    #[test]
    fn all_cells_of_removed_limits_go_once_they_are_not_needed() {
        let now = (Instant::now(), Time::from_micros(1_800_000_000_000_000));
        let mut cells = Cells::new("gw", &["a:1".to_owned()]);
        let [stays, goes] = ["stays", "goes"].map(|name| Arc::new(Limit::new(name, &["9/d".parse().unwrap()])));
        let mut cell = |limit: &Arc<Limit>, key: usize| {
            let key = Fingerprint::of(&key.to_be_bytes());
            cells.of(limit, key, now.1, &Counter::default()).0
        };
        let needed = cell(&goes, 0);
        cell(&stays, usize::MAX);
        for key in 1..=2 * STEP {
            cell(&goes, key);
        }
        cells.at(needed).stage = ExchangeStage::InFlight;
        cells.reload(
            &LimitChanges { in_use: vec![stays.clone()], replaced: Vec::new(), ..LimitChanges::default() },
            now.1,
        );
        let mut sweep = Sweep::new(now.0);
        let mut steps = 0;
        while sweep.at == now.0 {
            sweep = sweep.step(&mut cells, now.0, now.1).unwrap();
            steps += 1;
        }
        assert_eq!((steps, sweep.at), (4, now.0 + AGAIN), "one cell is still needed");
        assert_eq!(of_limit(&mut cells, "goes"), 1);
        cells.at(needed).stage = ExchangeStage::Idle;
        let later = (sweep.at, now.1);
        let mut sweep = Some(sweep);
        while let Some(next) = sweep {
            assert_eq!(next.at, later.0);
            sweep = next.step(&mut cells, later.0, later.1);
        }
        assert_eq!((of_limit(&mut cells, "goes"), of_limit(&mut cells, "stays")), (0, 1));
    }

    #[test]
    fn cells_of_replaced_limits_go_when_their_counts_matter_no_more() {
        let (instant, now) = (Instant::now(), Time::from_micros(1_800_000_000_000_000));
        let mut cells = Cells::new("gw", &["a:1".to_owned()]);
        let limit = |rate: &str| Arc::new(Limit::new("l", &[rate.parse().unwrap()]));
        let [old, new] = ["9/m", "9/m burst 9"].map(limit);
        let key = Fingerprint::of(b"k");
        let ask = ask(&old, key);
        cells.of(&ask.limit, ask.key, now, &Counter::default());
        cells.reload(
            &LimitChanges {
                in_use: vec![new.clone()],
                replaced: vec![Replaced { key: None, from: old, to: new }],
                ..LimitChanges::default()
            },
            now,
        );
        let sweep = Sweep::new(instant).step(&mut cells, instant, now).unwrap();
        let sweep = sweep.step(&mut cells, instant, now).unwrap();
        assert_eq!((of_limit(&mut cells, "l"), sweep.at), (1, instant + Duration::from_secs(60)));
        let (instant, now) = (sweep.at, now.after(Duration::from_secs(60)));
        let sweep = sweep.step(&mut cells, instant, now).unwrap();
        assert_eq!(of_limit(&mut cells, "l"), 0);
        assert!(sweep.step(&mut cells, instant, now).is_none());
    }
}
