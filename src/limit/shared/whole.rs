//! State that is kept as a whole: that of the rates that do not use counters.

use super::super::Limit;
use super::super::cell::Cell;
use super::super::rate::Rate;
use super::super::state::State;
use crate::base::clock::Time;

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
}
