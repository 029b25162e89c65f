//! The sliding log: the exact log of what was admitted. One log serves all rates of a limit that use this strategy.
//!
//! A request counts from the moment it was admitted until exactly one window later.

use std::collections::VecDeque;

use super::bounds::JITTER;
use super::counting::{Advanced, Charge, Counting};
use super::rate::{Rate, Strategy};
use crate::clock::Time;

/// The most entries of a log. If there are more, the oldest is counted together with the next one, at the later moment.
const MAX_ENTRIES: usize = 20_000;

/// When how much was admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// By time, oldest first.
    entries: VecDeque<Entry>,
    /// The total before the first entry.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Microseconds since 1970.
    time: u64,
    /// Everything charged up to and with this entry.
    total: u64,
}

impl Log {
    /// The size of the allocation that holds the entries, in bytes.
    pub(super) fn allocation(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// The moment of the newest entry.
    pub(super) fn newest(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.time)
    }

    /// Adds `cost` at `now`, or at the newest entry's moment if that is later.
    pub(super) fn add(&mut self, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let total = self.total().saturating_add(cost);
        match self.entries.back_mut() {
            Some(last) if last.time >= now => last.total = total,
            _ => self.entries.push_back(Entry { time: now, total }),
        }
        if self.entries.len() > MAX_ENTRIES {
            // Its share now counts as the next one's.
            self.entries.pop_front();
        }
    }

    /// Takes back `cost`, beginning with what was added last.
    pub(super) fn take_back(&mut self, cost: u64) {
        let total = self.total().saturating_sub(cost).max(self.before);
        while let Some(last) = self.entries.back_mut()
            && last.total > total
        {
            last.total = total;
            let before = self.entries.len().checked_sub(2).map_or(self.before, |before| self.entries[before].total);
            if before < total {
                break;
            }
            self.entries.pop_back();
        }
    }

    /// Gives back `cost` of what was added at `since`: the oldest entries of that moment or later. If it was counted together
    /// with a later entry, or was added again to a log that another gateway wrote, another entry is reduced in its place, and
    /// that one leaves the window sooner. By the clock of that gateway the entry may also be a little earlier. Returns how
    /// much was not found.
    pub(super) fn give_back(&mut self, since: u64, cost: u64) -> u64 {
        let left = cost - self.take_from(since, cost);
        if left == 0 { 0 } else { left - self.take_from(since.saturating_sub(JITTER), left) }
    }

    /// Takes up to `cost` of what was added at `since` or later, the oldest first. Returns how much that is.
    fn take_from(&mut self, since: u64, cost: u64) -> u64 {
        let first = self.entries.partition_point(|entry| entry.time < since);
        let mut before = first.checked_sub(1).map_or(self.before, |last| self.entries[last].total);
        let (mut taken, mut emptied) = (0, 0);
        for entry in self.entries.range_mut(first..) {
            let share = entry.total - before;
            before = entry.total;
            let part = share.min(cost - taken);
            taken += part;
            entry.total -= taken;
            emptied += usize::from(part == share);
        }
        self.entries.drain(first..first + emptied);
        taken
    }

    /// Forgets what came at `until` or before.
    pub(super) fn forget(&mut self, until: u64) {
        while let Some(first) = self.entries.front()
            && first.time <= until
        {
            self.before = first.total;
            self.entries.pop_front();
        }
        // Memory that a burst needed is freed when the burst is over.
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Moves every entry back in time by `by` microseconds.
    pub(super) fn shift(&mut self, by: u64) {
        self.entries.iter_mut().for_each(|entry| entry.time = entry.time.saturating_sub(by));
    }

    /// Times and costs, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let befores = std::iter::once(self.before).chain(self.entries.iter().map(|entry| entry.total));
        self.entries.iter().zip(befores).map(|(entry, before)| (entry.time, entry.total - before))
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.before, |entry| entry.total)
    }
}

/// The state of a rate that uses the log. All such rates of a cell share one log, so the cell holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InLog;

impl Counting for InLog {
    fn advance(&mut self, _rate: &Rate, _now: Time) -> Advanced {
        Advanced::default()
    }

    fn is_spent(&self, _rate: &Rate, _now: Time) -> bool {
        true
    }

    fn charge(&mut self, _rate: &Rate, _charge: Charge<'_>) {}

    /// The log may count it at the moment of a later entry, but never at an earlier one.
    fn mark(&self, now: Time) -> u64 {
        now.micros()
    }

    fn certain_at(&self, rate: &Rate, cost: u64, mark: u64, at: Time) -> u64 {
        if mark.saturating_add(rate.span()) > at.micros() { cost } else { 0 }
    }

    fn begin(&mut self, _rate: &Rate, _sum: u64, _at: Time) {}
}

/// The longest window among the rates that use a log. Entries that are older than that matter to none of them.
pub(super) fn longest(rates: &[Rate]) -> Option<u64> {
    let logged = rates.iter().filter(|rate| *rate.strategy() == Strategy::SlidingLog);
    logged.map(Rate::span).max()
}

/// What counts of the log for one rate, seen from a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage<'a> {
    rate: &'a Rate,
    log: Option<&'a Log>,
    now: u64,
}

impl<'a> Usage<'a> {
    pub(super) fn new(rate: &'a Rate, log: Option<&'a Log>, now: Time) -> Self {
        Self { rate, log, now: now.micros() }
    }

    /// The requests that count now.
    pub(super) fn count(&self) -> u64 {
        let Some(log) = self.log else { return 0 };
        let gone = log.entries.partition_point(|entry| entry.time.saturating_add(self.rate.span()) <= self.now);
        let before = gone.checked_sub(1).and_then(|last| log.entries.get(last)).map_or(log.before, |last| last.total);
        log.total() - before
    }

    pub(super) fn remaining(&self) -> u64 {
        self.room_in(self.rate.quota())
    }

    pub(super) fn room_in(&self, capacity: u64) -> u64 {
        capacity.saturating_sub(self.count())
    }

    /// Microseconds until enough of the log has left the window for `need` more.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        if need > self.rate.quota() {
            return None;
        }
        let Some(log) = self.log.filter(|_| need > self.remaining()) else { return Some(0) };
        let must_go = log.total().saturating_sub(self.rate.quota() - need);
        let last = log.entries.get(log.entries.partition_point(|entry| entry.total < must_go))?;
        Some(last.time.saturating_add(self.rate.span()).saturating_sub(self.now))
    }
}
