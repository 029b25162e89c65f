//! The state of a cell as bytes, for stores that keep it as one value. The first byte is the version. Numbers of variable
//! length (LEB128) follow:
//!
//! - for each fixed window, in the order of the rates, its start and its count;
//! - for each token bucket, in the same order, its moment and the higher and lower half of the units that are used;
//! - of bans, when the last one began, and how many have followed each other;
//! - for each entry of the log, the microseconds since the entry before, and its cost;
//! - for each group of operations that was appended: 0, 0, the number of its writer, its sequence number, the number of
//!   operations, and for each of these (`operations.rs`): 0, a moment, how many microseconds earlier the first part came, and
//!   a cost that is charged; or 1, the moment of a reservation in a window, that in a bucket, and a cost that is given back;
//!   or 2, a moment, the room that is needed, the cost, the number of such requests, and the capacity of each rate.
//!
//! Counters are not included. No entry of the log begins with two zeros, since its cost is never 0. Version 2 had other
//! operations, so its state is read without what was appended.
//!
//! A state has its own time: the fastest clock among the gateways that have written it. A reader whose clock is behind reads
//! the state as of its latest moment and remembers the difference; what it writes is as much ahead of its own clock. So a
//! state never goes back in time. Otherwise a reader with a faster clock would take counts of a moment ago for old, and admit
//! as much again. Gateways that write in turns would then age the state with every turn, and two seconds between their clocks
//! would make any limit ineffective.
//!
//! This works for any difference, so no maximum is configured. At its first read a gateway does not know the age of a state,
//! up to the difference. So it may refuse for that much longer, but at most for one window, after which the server has
//! dropped the state.

use super::super::cell::Cell;
use super::super::counting::{pull, push};
use super::super::log::AdmissionLog;
use super::super::rate::Rate;
use super::super::state::State;
use super::operations::{Appended, OperationGroup};
use crate::base::clock::Time;

/// How many groups are looked at before a group that may be there twice. A server is asked again within a second or so.
const MOST_BETWEEN: usize = 64;
/// Versions before 2 are not read.
pub(in super::super) const VERSION: u8 = 3;

/// What [`Cell::restore`] reads.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The cell, in the time of the reader's clock and as of its own last moment: it must be advanced. All counters are 0.
    pub cell: Cell,
    /// What was appended to the state, in that order.
    pub groups: Vec<OperationGroup>,
    /// By how many microseconds the state is ahead of the reader's clock.
    pub ahead: u64,
}

impl Cell {
    /// Encodes what is kept as a whole, for [`Cell::restore`]. The encoded state is `ahead` microseconds ahead of the clock
    /// by which the cell was charged.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::shared::{Operation, Writing};
    /// use gateway::limit::{Cell, Limit, Rate, Strategy};
    ///
    /// let bucket = Rate::new(5, Duration::from_secs(1))?.with_strategy(Strategy::TokenBucket { burst: 5 })?;
    /// let limit = Limit::new("a", &[bucket]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(limit.rates(), now);
    /// limit.charge(&mut cell, now, 3);
    ///
    /// let mut bytes = cell.save(0);
    /// let mut three = limit.attempt(now, 1, 1);
    /// three.times = 3;
    /// Cell::append(Writing { writer: 7, sequence: 1 }, [Operation::Attempt(three)].into_iter(), 0, &mut bytes);
    /// let restored = Cell::restore(limit.rates(), now, &bytes).ok_or("the bytes are of another version")?;
    /// assert_eq!(restored.groups[0].admitted[..], [2], "two of three fit");
    /// assert!(!limit.admits(&restored.cell, now, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, ahead: u64) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        self.states.iter().filter_map(State::whole).for_each(|state| state.encode(ahead, &mut bytes));
        let mut last = 0;
        for (time, cost) in self.log().into_iter().flat_map(AdmissionLog::iter).filter(|(_, cost)| *cost > 0) {
            let time = time.saturating_add(ahead);
            push(time - last, &mut bytes);
            push(cost, &mut bytes);
            last = time;
        }
        bytes
    }

    /// Decodes a state and what was appended to it, as of `now`. `None` if the bytes are no such state of these rates.
    pub fn restore(rates: &[Rate], now: Time, bytes: &[u8]) -> Option<Restored> {
        let (version, mut rest) = bytes.split_first()?;
        if !(2..=VERSION).contains(version) {
            return None;
        }
        let mut cell = Self::new(rates, now);
        for (rate, state) in cell.rated_mut(rates) {
            if let Some(state) = state.whole_mut() {
                state.decode(rate, &mut rest)?;
            }
        }
        let mut log = AdmissionLog::default();
        let mut time = 0u64;
        let mut appended = Vec::new();
        while !rest.is_empty() {
            match (pull(&mut rest)?, pull(&mut rest)?) {
                (0, 0) if *version < VERSION => break,
                (0, 0) => {
                    let group = Appended::decode(rates, &mut rest)?;
                    // It is there twice if a server was asked again after it had forgotten a script.
                    let mut newest = appended.iter().rev().take(MOST_BETWEEN);
                    if newest.all(|before: &Appended| before.writing != group.writing) {
                        appended.push(group);
                    }
                }
                (since, cost) => {
                    time = time.checked_add(since)?;
                    log.add(time, cost);
                }
            }
        }
        if log.newest().is_some() {
            cell.extension.get_or_insert_default().log = log;
        }
        let latest = appended.iter().map(Appended::latest).chain([cell.latest()]).max().unwrap_or(0);
        let ahead = latest.saturating_sub(now.micros());
        let read = Time::from_micros(latest.max(now.micros()));
        let mut given_back = 0;
        let groups = appended.into_iter().map(|group| group.fold(rates, &mut cell, read, &mut given_back)).collect();
        if ahead > 0 {
            cell.set_back(ahead);
        }
        for (rate, state) in cell.rated_mut(rates).filter(|(rate, _)| rate.uses_counters()) {
            *state = State::new(rate, now);
        }
        Some(Restored { cell, groups, ahead })
    }
}
