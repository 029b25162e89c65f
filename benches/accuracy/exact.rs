//! The exact log of admissions, which all strategies are compared with.

use std::collections::VecDeque;

pub(crate) struct Exact {
    window: u64,
    times: VecDeque<u64>,
}

impl Exact {
    pub(crate) fn new(window: u64) -> Self {
        Self { window, times: VecDeque::new() }
    }

    /// Admissions in the window that ends at `now`.
    pub(crate) fn count(&mut self, now: u64) -> u64 {
        while self.times.front().is_some_and(|time| time + self.window <= now) {
            self.times.pop_front();
        }
        self.times.len() as u64
    }

    pub(crate) fn add(&mut self, now: u64) -> u64 {
        self.times.push_back(now);
        self.count(now)
    }
}
