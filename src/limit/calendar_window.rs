//! The state of a rate per day or month: the current window of the calendar, and its count.

use std::slice::{from_mut, from_ref};

use super::calendar::Calendar;
use super::counting::{Buckets, Charge, Context, Counting, GivenBack, StateView, add};
use super::rate::{Rate, Strategy};
use crate::base::clock::Time;

/// One window of the calendar. It begins and ends when the calendar says so, whether requests come or not.
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

    /// Names the window among all of its calendar: its start in seconds since 1970.
    fn bucket(&self) -> u64 {
        self.start / 1_000_000
    }

    /// Raises the count to that of `least`. If `least` is a moment ahead and already in a later window, copies it.
    pub(super) fn raise(&mut self, least: &Self) {
        if self.start < least.start && least.count > 0 {
            self.clone_from(least);
        } else if self.start == least.start {
            self.count = self.count.max(least.count);
        }
    }
}

impl Counting for CalendarWindow {
    /// If the clock was set back to an earlier window, the count goes along, since otherwise the quota could be used twice.
    fn advance(&mut self, Context { rate, .. }: &mut Context<'_>, now: Time) -> bool {
        if now.micros() >= self.end {
            self.count = 0;
        } else if !now.is_set_back_from(Time::from_micros(self.start)) {
            return false;
        }
        if let Strategy::Calendar(calendar) = rate.strategy() {
            (self.start, self.end) = calendar.window(now);
        }
        true
    }

    fn is_spent(&self, StateView { now, .. }: StateView<'_>) -> bool {
        self.count == 0 || now.micros() >= self.end
    }

    fn charge(&mut self, _context: &mut Context<'_>, Charge { cost, .. }: Charge) {
        add(&mut self.count, cost);
    }

    fn used(&self, _view: StateView<'_>) -> u64 {
        self.count
    }

    fn wait(&self, StateView { now, .. }: StateView<'_>, _need: u64) -> u64 {
        self.end.saturating_sub(now.micros())
    }

    fn mark(&self, _now: Time) -> u64 {
        self.bucket()
    }

    fn give_back(&mut self, _context: &mut Context<'_>, GivenBack { mark, cost, .. }: GivenBack) {
        self.give_back_to(mark, cost);
    }

    fn certain_at(&self, _rate: &Rate, cost: u64, mark: u64, _at: Time) -> u64 {
        if self.bucket() == mark { cost } else { 0 }
    }

    fn begin(&mut self, _rate: &Rate, sum: u64, _at: Time) {
        add(&mut self.count, sum);
    }
}

impl Buckets for CalendarWindow {
    fn counters(&self) -> (u64, &[u64]) {
        (self.bucket(), from_ref(&self.count))
    }

    fn counters_mut(&mut self) -> (u64, &mut [u64]) {
        (self.bucket(), from_mut(&mut self.count))
    }
}
