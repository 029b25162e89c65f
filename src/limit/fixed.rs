//! Fixed windows: those that begin with a key's first request, and those of the calendar.
//!
//! What comes at the end of one and at the beginning of the next is up to twice the quota at once.

use super::rate::Rate;

/// What one rate has counted in its window, seen from a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a> {
    rate: &'a Rate,
    count: u64,
    /// Microseconds until the window ends; 0 while none has begun.
    left: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(rate: &'a Rate, count: u64, left: u64) -> Self {
        Self { rate, count, left }
    }

    /// The requests that count now.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn remaining(&self) -> u64 {
        self.rate.quota().saturating_sub(self.count)
    }

    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        match need {
            need if need > self.rate.quota() => None,
            need if need <= self.remaining() => Some(0),
            _ => Some(self.left),
        }
    }
}
