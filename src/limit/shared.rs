//! What only a store needs that several gateways share.
//!
//! A store of one gateway has the only copy of every cell. Of a shared store each gateway has a copy, and other gateways
//! count the same keys at the same time. How gateways exchange counts depends on the kind of state:
//!
//! - Sliding windows and windows of the calendar are counters. Gateways add to the same ones, and need not know what others
//!   add: [`Cell::counts_mut`], [`Cell::fill`] and [`Cell::correct`]. A store has one counter for each bucket of a rate, named
//!   by the index of the rate and a number: for a sliding window the index of the bucket since 1970, for a calendar the start
//!   of its window in seconds since 1970.
//! - Every other state is more than a sum, so it is read and replaced as a whole ([`Cell::save`], [`Cell::restore`]), or
//!   an [`Operation`] is appended to it. The functions with `whole` in their names change nothing else.
//!
//! A charge may have to be counted again in a state that another gateway has written, or taken back from it, so a
//! [`Reservation`] tells where it was counted. After a reload several gateways may migrate the same counts, so
//! [`Limit::raise`] adds only what is missing.
//!
//! Counters in a file have the same encoding.
//!
//! [`Reservation`]: super::Reservation

mod operations;
mod encoding;

use smallvec::SmallVec;

use super::Limit;
use super::cell::Cell;
use super::counting::{Buckets, MAX_COUNT};
use super::rate::Rate;
use super::state::State;
use crate::base::clock::Time;

pub use encoding::Restored;
pub use operations::{Attempt, Operation, OperationGroup, Writing, set_back};

#[cfg(test)]
pub(super) use {encoding::VERSION, operations::MOST_GIVEN_BACK};

impl Limit {
    /// Whether a rate of the limit keeps its state as a whole, so that counters are not enough.
    pub fn is_whole(&self) -> bool {
        !self.rates.iter().all(Rate::uses_counters)
    }

    /// Counts `cost`, whose first part came at `since`, again in a state that was read anew and does not contain it.
    pub fn charge_whole(&self, cell: &mut Cell, now: Time, cost: u64, since: Time) {
        cell.charge(&self.rates, now, cost, Some(since));
    }
}

impl Cell {
    /// Whether nothing of the state that is kept as a whole can matter at `now` or later.
    pub fn is_whole_spent(&self, rates: &[Rate], now: Time) -> bool {
        self.are_spent(rates, now, |rate| !rate.uses_counters())
    }

    /// Microseconds until an encoded state no longer matters, if nothing is appended to it. Token buckets count as used up,
    /// since others may charge them.
    pub fn memory(&self, rates: &[Rate]) -> u64 {
        let full = rates.iter().filter(|rate| !rate.uses_counters()).map(Rate::memory);
        // They may have been charged more than they hold.
        let excess = self.rated(rates).filter_map(|(rate, state)| match state {
            State::TokenBucket(bucket) => Some(bucket.excess_memory(rate)),
            _ => None,
        });
        full.chain(excess).max().unwrap_or(0)
    }

    /// By how many microseconds the state that is kept as a whole is ahead of a clock that was set back. 0 for less than a
    /// second, since threads read the clock at different moments.
    pub fn lead(&self, now: Time) -> u64 {
        let latest = Time::from_micros(self.latest());
        if now.is_set_back_from(latest) { latest.micros_since(now) } else { 0 }
    }

    /// Moves all of the state that is kept as a whole back in time by so many microseconds.
    pub fn set_back(&mut self, by: u64) {
        self.states.iter_mut().filter_map(State::whole_mut).for_each(|state| state.set_back(by));
        if let Some(extension) = self.extension.as_deref_mut() {
            extension.log.set_back(by);
            extension.low_water.clear();
        }
    }

    /// The index of the rate, the name of the bucket, and the count of each counter. The newest of each rate, to which
    /// requests are added, comes first.
    pub fn counts_mut(&mut self) -> impl Iterator<Item = (usize, u64, &mut u64)> {
        self.states.iter_mut().enumerate().flat_map(|(place, state)| {
            let (newest, counts) = state.buckets_mut().map_or((0, &mut [] as &mut [u64]), Buckets::counters_mut);
            (0..).zip(counts).map(move |(age, count)| (place, newest.saturating_sub(age), count))
        })
    }

    /// The newest counter of each rate that uses counters: the index of the rate, and the name of the bucket.
    pub fn newest(&self) -> impl Iterator<Item = (usize, u64)> {
        self.states.iter().enumerate().filter_map(|(place, state)| Some((place, state.buckets()?.counters().0)))
    }

    /// The counter of one bucket of the rate at index `place`, if it still matters.
    pub fn count(&self, place: usize, bucket: u64) -> Option<u64> {
        let (newest, counts) = self.states.get(place)?.buckets()?.counters();
        counts.get(usize::try_from(newest.checked_sub(bucket)?).ok()?).copied()
    }

    /// Corrects the counter of one bucket of the rate at index `place`, if it still matters.
    pub fn correct(&mut self, place: usize, bucket: u64, correct: impl FnOnce(u64) -> u64) {
        let state = self.states.get_mut(place).and_then(State::buckets_mut);
        if let Some(count) = state.and_then(|state| state.counter_mut(bucket)) {
            *count = correct(*count).min(MAX_COUNT);
        }
    }

    /// Replaces all counters by `read(index of the rate, bucket)`, for instance by what a shared store has counted.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gateway::base::clock::Time;
    /// use gateway::limit::{Cell, Limit, Rate};
    ///
    /// let limit = Limit::new("a", &[Rate::new(5, Duration::from_secs(60))?]);
    /// let now = Time::from_micros(1_800_000_000_000_000);
    /// let mut cell = Cell::new(limit.rates(), now);
    /// let minute = now.seconds() / 60;
    /// cell.fill(|_, bucket| if bucket == minute { 4 } else { 0 });
    /// assert_eq!(limit.judge(&cell, now, 1, true).remaining, 1);
    /// # Ok::<(), gateway::limit::RateError>(())
    /// ```
    pub fn fill(&mut self, mut read: impl FnMut(usize, u64) -> u64) {
        for (place, bucket, count) in self.counts_mut() {
            *count = read(place, bucket).min(MAX_COUNT);
        }
    }
}

impl Limit {
    /// Whether the rates that use counters admit a request of cost `need` now.
    pub fn admits_by_counters(&self, cell: &Cell, now: Time, need: u64) -> bool {
        let mut counted = cell.usages(&self.rates, now).zip(&self.rates).filter(|(_, rate)| rate.uses_counters());
        counted.all(|(usage, _)| usage.remaining() >= need)
    }

    /// Whether a rate that uses counters counts more now than its capacity.
    pub fn exceeds_by_counters(&self, cell: &Cell, now: Time) -> bool {
        self.beyond(cell, now).any(|beyond| beyond > 0)
    }

    /// Lowers the newest counter of each rate by what the rate counts now beyond its capacity.
    pub fn trim_counters(&self, cell: &mut Cell, now: Time) {
        let beyond: SmallVec<[u64; 2]> = self.beyond(cell, now).collect();
        for ((_, state), beyond) in cell.rated_mut(&self.rates).zip(beyond) {
            let newest = state.buckets_mut().and_then(|state| state.counters_mut().1.first_mut());
            newest.into_iter().for_each(|count| *count = count.saturating_sub(beyond));
        }
    }

    /// 0 for rates that do not use counters.
    fn beyond<'a>(&'a self, cell: &'a Cell, now: Time) -> impl Iterator<Item = u64> + 'a {
        cell.usages(&self.rates, now).zip(&self.rates).map(|(usage, rate)| match rate.uses_counters() {
            true => usage.used.saturating_sub(rate.capacity()),
            false => 0,
        })
    }
}
