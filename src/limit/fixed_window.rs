//! The fixed window: it begins with a key's first request and lasts its whole length.
//!
//! Requests at the end of one window and at the beginning of the next can together be twice the quota.

use super::counting::{Charge, Context, Counting, GivenBack, MAX_COUNT, StateView, Whole, add, pull, push};
use super::rate::Rate;
use crate::base::clock::Time;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FixedWindow {
    /// In microseconds since 1970. Meaningless while the count is 0, because no window has begun then.
    start: u64,
    count: u64,
}

impl FixedWindow {
    /// `start` is in microseconds since 1970; the count is cut to [`MAX_COUNT`].
    fn begun(start: u64, count: u64) -> Self {
        Self { start, count: count.min(MAX_COUNT) }
    }

    /// Raises the count to that of another window. The window then ends at the later end of both.
    pub(super) fn raise(&mut self, least: &Self) {
        if self.count < least.count {
            self.start = if self.count == 0 { least.start } else { self.start.max(least.start) };
            self.count = least.count;
        }
    }
}

impl Counting for FixedWindow {
    fn advance(&mut self, Context { rate, .. }: &mut Context<'_>, now: Time) -> bool {
        if now.is_set_back_from(Time::from_micros(self.start)) {
            self.start = now.micros();
        } else if now.micros().saturating_sub(self.start) >= rate.span() {
            self.count = 0;
        }
        false
    }

    fn is_spent(&self, StateView { rate, now, .. }: StateView<'_>) -> bool {
        self.count == 0 || now.micros().saturating_sub(self.start) >= rate.span()
    }

    fn charge(&mut self, Context { rate, .. }: &mut Context<'_>, Charge { now, cost, since }: Charge) {
        let now = now.micros();
        if self.count == 0 {
            self.start = now;
        }
        // The first request begins the window, whichever gateway it came to.
        if let Some(since) = since.map(Time::micros).filter(|since| now.saturating_sub(*since) < rate.span()) {
            self.start = since.min(self.start);
        }
        add(&mut self.count, cost);
    }

    fn used(&self, _view: StateView<'_>) -> u64 {
        self.count
    }

    fn wait(&self, StateView { rate, now, .. }: StateView<'_>, _need: u64) -> u64 {
        self.start.saturating_add(rate.span()).saturating_sub(now.micros().max(self.start))
    }

    fn mark(&self, now: Time) -> u64 {
        now.micros().max(self.start)
    }

    /// If this window began after the charge, the charge was in an earlier one, and nothing of it is left.
    fn give_back(&mut self, _context: &mut Context<'_>, GivenBack { mark, cost, .. }: GivenBack) {
        if self.start <= mark {
            self.count = self.count.saturating_sub(cost);
        }
    }

    fn begin(&mut self, _rate: &Rate, sum: u64, at: Time) {
        *self = Self::begun(at.micros(), sum);
    }
}

impl Whole for FixedWindow {
    fn moment(&self) -> u64 {
        self.start
    }

    fn set_back(&mut self, by: u64) {
        self.start = self.start.saturating_sub(by);
    }

    fn encode(&self, ahead: u64, bytes: &mut Vec<u8>) {
        push(self.start.saturating_add(ahead), bytes);
        push(self.count, bytes);
    }

    fn decode(&mut self, _rate: &Rate, rest: &mut &[u8]) -> Option<()> {
        *self = Self::begun(pull(rest)?, pull(rest)?);
        Some(())
    }
}
