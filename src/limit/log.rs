//! A log of the exact moments of admissions.

use std::collections::VecDeque;

use crate::base::clock::JITTER;

/// The most entries of a log. Beyond that, the oldest entry is merged into the next one, at the later moment.
const MAX_ENTRIES: usize = 20_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdmissionLog {
    /// The oldest first.
    entries: VecDeque<LogEntry>,
    /// The total before the first entry.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    /// In microseconds since 1970.
    time: u64,
    /// The sum of all charges up to and including this entry.
    total: u64,
}

impl AdmissionLog {
    pub(super) fn allocation(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>()
    }

    pub(super) fn newest(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.time)
    }

    /// Adds `cost` at `now`, or at the moment of the newest entry if that is later.
    pub(super) fn add(&mut self, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let total = self.total().saturating_add(cost);
        match self.entries.back_mut() {
            Some(last) if last.time >= now => last.total = total,
            _ => self.entries.push_back(LogEntry { time: now, total }),
        }
        if self.entries.len() > MAX_ENTRIES {
            // The next entry's total includes it.
            self.entries.pop_front();
        }
    }

    /// The moment may be earlier than other entries.
    pub(super) fn insert(&mut self, moment: u64, cost: u64) {
        let mut entries: Vec<_> = self.iter().chain([(moment, cost)]).collect();
        entries.sort_by_key(|(time, _)| *time);
        *self = Self::default();
        entries.into_iter().for_each(|(time, cost)| self.add(time, cost));
    }

    /// Gives back `cost` of what was added at `since`, from the oldest entries of that moment or later. If the charge was
    /// merged into a later entry, or added again to a log that another gateway wrote, another entry shrinks instead, and this
    /// one leaves the window sooner. That gateway's clock may also have dated the entry a little earlier.
    pub(super) fn give_back(&mut self, since: u64, cost: u64) {
        let left = cost - self.take_from(since, cost);
        if left > 0 {
            self.take_from(since.saturating_sub(JITTER), left);
        }
    }

    /// Takes up to `cost` from the entries at `since` or later, the oldest first. Returns how much it took.
    fn take_from(&mut self, since: u64, cost: u64) -> u64 {
        let first = self.entries.partition_point(|entry| entry.time < since);
        let mut before = self.total_before(first);
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

    /// Forgets the entries at `until` or before.
    pub(super) fn forget(&mut self, until: u64) {
        while let Some(first) = self.entries.front()
            && first.time <= until
        {
            self.before = first.total;
            self.entries.pop_front();
        }
        // Frees the memory of a burst once it is over.
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// `by` is in microseconds.
    pub(super) fn set_back(&mut self, by: u64) {
        self.entries.iter_mut().for_each(|entry| entry.time = entry.time.saturating_sub(by));
    }

    /// Times and costs, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let befores = std::iter::once(self.before).chain(self.entries.iter().map(|entry| entry.total));
        self.entries.iter().zip(befores).map(|(entry, before)| (entry.time, entry.total - before))
    }

    /// How much came less than `span` microseconds before `now`.
    pub(super) fn count(&self, span: u64, now: u64) -> u64 {
        let gone = self.entries.partition_point(|entry| entry.time.saturating_add(span) <= now);
        self.total() - self.total_before(gone)
    }

    /// The time of the last entry that must be forgotten so that at most `rest` is left.
    pub(super) fn last_before(&self, rest: u64) -> Option<u64> {
        let forgotten = self.total().saturating_sub(rest);
        let last = self.entries.partition_point(|entry| entry.total < forgotten);
        self.entries.get(last).map(|entry| entry.time)
    }

    fn total(&self) -> u64 {
        self.total_before(self.entries.len())
    }

    fn total_before(&self, place: usize) -> u64 {
        place.checked_sub(1).map_or(self.before, |last| self.entries[last].total)
    }
}
