//! The state of a rate per day or month: the current window of the calendar, and its count.

use super::bounds::{add, is_ahead};
use super::calendar::Calendar;
use super::fixed_window::Usage;
use super::rate::{Rate, Strategy};
use crate::clock::Time;

/// One window of the calendar. It has begun and ends when the calendar says so, whether requests come or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CalendarWindow {
    /// In microseconds since 1970.
    start: u64,
    /// In microseconds since 1970.
    end: u64,
    count: u64,
}

impl CalendarWindow {
    pub(super) fn new(calendar: &Calendar, now: Time) -> Self {
        let (start, end) = calendar.window(now);
        Self { start, end, count: 0 }
    }

    /// What names the window among all of its calendar: its start in seconds since 1970.
    pub(super) fn bucket(&self) -> u64 {
        self.start / 1_000_000
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn count_mut(&mut self) -> &mut u64 {
        &mut self.count
    }

    pub(super) fn add(&mut self, cost: u64) {
        add(&mut self.count, cost);
    }

    /// Raises the count to that of another state, if that belongs to the same window.
    pub(super) fn raise(&mut self, least: &Self) {
        if self.start == least.start {
            self.count = self.count.max(least.count);
        }
    }

    /// Whether another window is the current one at `now`. If the clock was set back to an earlier window, the count goes
    /// with it, since otherwise the quota could be used twice.
    pub(super) fn advance(&mut self, rate: &Rate, now: Time) -> bool {
        if now.micros() >= self.end {
            self.count = 0;
        } else if !is_ahead(self.start, now) {
            return false;
        }
        if let Strategy::Calendar(calendar) = rate.strategy() {
            (self.start, self.end) = calendar.window(now);
        }
        true
    }

    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.count == 0 || now.micros() >= self.end
    }

    pub(super) fn usage<'a>(&self, rate: &'a Rate, now: Time) -> Usage<'a> {
        Usage::new(rate, self.count, self.end.saturating_sub(now.micros()))
    }
}
