//! The exact log of admitted requests, to which all strategies are compared.

use std::collections::VecDeque;

/// What was admitted within the last window.
pub(crate) struct Exact {
    window: u64,
    times: VecDeque<u64>,
}

impl Exact {
    pub(crate) fn new(window: u64) -> Self {
        Self { window, times: VecDeque::new() }
    }

    /// How many were admitted in the window that ends at `now`.
    pub(crate) fn count(&mut self, now: u64) -> u64 {
        while self.times.front().is_some_and(|time| time + self.window <= now) {
            self.times.pop_front();
        }
        self.times.len() as u64
    }

    /// Notes one more; how many there are in its window with it.
    pub(crate) fn add(&mut self, now: u64) -> u64 {
        self.times.push_back(now);
        self.count(now)
    }
}
