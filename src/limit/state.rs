//! The state of one rate for one key: one variant for each strategy.
//!
//! A state does not contain its rate. Every method takes the rate for which the state was created, or one with another
//! quota or burst: a changed quota then applies at once to what has been counted.

use super::calendar_window::CalendarWindow;
use super::fixed_window::{self, FixedWindow};
use super::rate::{Rate, Strategy};
use super::sliding_log::{self, Log};
use super::sliding_window::{self, SlidingWindow};
use super::token_bucket::{self, TokenBucket};
use crate::clock::Time;

/// What a rate has counted for one key. The size matters, because there are millions of them: two fit into a [`Cell`]
/// without an allocation.
///
/// [`Cell`]: super::Cell
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    /// All rates of a cell that use a log share one, so the cell holds it.
    SlidingLog,
    TokenBucket(TokenBucket),
    Calendar(CalendarWindow),
}

const _: () = assert!(size_of::<State>() == 32, "a state takes more memory than documented");

/// What the passing of time has changed in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Advanced {
    /// Requests are now counted in another counter than before.
    pub(super) has_new_counter: bool,
    /// The clock was set back, and the state has moved back with it.
    pub(super) is_set_back: bool,
}

impl State {
    /// A state in which nothing has been counted at `now`.
    pub(super) fn new(rate: &Rate, now: Time) -> Self {
        match rate.strategy() {
            Strategy::SlidingWindow { precision, .. } => Self::SlidingWindow(SlidingWindow::new(rate, *precision, now)),
            Strategy::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Strategy::SlidingLog => Self::SlidingLog,
            Strategy::TokenBucket { .. } => Self::TokenBucket(TokenBucket::new(now)),
            Strategy::Calendar(calendar) => Self::Calendar(CalendarWindow::new(calendar, now)),
        }
    }

    /// Moves the state on to `now`.
    pub(super) fn advance(&mut self, rate: &Rate, now: Time) -> Advanced {
        let (mut has_new_counter, mut is_set_back) = (false, false);
        match self {
            Self::SlidingWindow(window) => has_new_counter = window.advance(rate, now),
            Self::FixedWindow(window) => window.advance(rate, now),
            Self::SlidingLog => {}
            Self::TokenBucket(bucket) => is_set_back = bucket.advance(rate, now),
            Self::Calendar(window) => has_new_counter = window.advance(rate, now),
        }
        Advanced { has_new_counter, is_set_back }
    }

    /// What counts at `now`, to which the state has been advanced.
    pub(super) fn usage<'a>(&'a self, rate: &'a Rate, log: Option<&'a Log>, now: Time) -> Usage<'a> {
        match self {
            Self::SlidingWindow(window) => Usage::SlidingWindow(window.usage(rate, now)),
            Self::FixedWindow(window) => Usage::FixedWindow(window.usage(rate, now)),
            Self::SlidingLog => Usage::SlidingLog(sliding_log::Usage::new(rate, log, now)),
            Self::TokenBucket(bucket) => Usage::TokenBucket(bucket.usage(rate)),
            Self::Calendar(window) => Usage::FixedWindow(window.usage(rate, now)),
        }
    }

    /// Whether nothing in it can matter at `now` or later. The log is not part of it.
    pub(super) fn is_spent(&self, rate: &Rate, now: Time) -> bool {
        match self {
            Self::SlidingWindow(window) => window.is_spent(rate, now),
            Self::FixedWindow(window) => window.is_spent(rate, now),
            Self::SlidingLog => true,
            Self::TokenBucket(bucket) => bucket.is_spent(rate, now),
            Self::Calendar(window) => window.is_spent(now),
        }
    }

    /// The counter that names `bucket`, if the state still has it.
    pub(super) fn counter(&self, bucket: u64) -> Option<u64> {
        match self {
            Self::SlidingWindow(window) => window.counter(bucket),
            Self::Calendar(window) => (window.bucket() == bucket).then(|| window.count()),
            Self::FixedWindow(_) | Self::SlidingLog | Self::TokenBucket(_) => None,
        }
    }

    /// The same counter, to be changed.
    pub(super) fn counter_mut(&mut self, bucket: u64) -> Option<&mut u64> {
        match self {
            Self::SlidingWindow(window) => window.counter_mut(bucket),
            Self::Calendar(window) => (window.bucket() == bucket).then(|| window.count_mut()),
            Self::FixedWindow(_) | Self::SlidingLog | Self::TokenBucket(_) => None,
        }
    }

    /// The name of the newest counter and all counters, the newest first. Each older one has the name before.
    pub(super) fn counters_mut(&mut self) -> (u64, &mut [u64]) {
        match self {
            Self::SlidingWindow(window) => window.counters_mut(),
            Self::Calendar(window) => (window.bucket(), std::slice::from_mut(window.count_mut())),
            Self::FixedWindow(_) | Self::SlidingLog | Self::TokenBucket(_) => (0, &mut []),
        }
    }

    /// The name of the counter to which requests are added now, if the state consists of counters.
    pub(super) fn newest(&self) -> Option<u64> {
        match self {
            Self::SlidingWindow(window) => Some(window.newest()),
            Self::Calendar(window) => Some(window.bucket()),
            Self::FixedWindow(_) | Self::SlidingLog | Self::TokenBucket(_) => None,
        }
    }

    /// The moment, in microseconds since 1970, to which a state belongs that is stored as one value.
    pub(super) fn moment(&self) -> Option<u64> {
        match self {
            Self::FixedWindow(window) => Some(window.start()),
            Self::TokenBucket(bucket) => Some(bucket.moment()),
            Self::SlidingWindow(_) | Self::SlidingLog | Self::Calendar(_) => None,
        }
    }

    /// Moves a state that is stored as one value back in time by so many microseconds.
    pub(super) fn set_back(&mut self, by: u64) {
        match self {
            Self::FixedWindow(window) => window.set_back(by),
            Self::TokenBucket(bucket) => bucket.set_back(by),
            Self::SlidingWindow(_) | Self::SlidingLog | Self::Calendar(_) => {}
        }
    }

    /// The size of its own allocation in bytes, or 0.
    pub(super) fn allocation(&self) -> usize {
        match self {
            Self::SlidingWindow(window) => window.allocation(),
            Self::FixedWindow(_) | Self::SlidingLog | Self::TokenBucket(_) | Self::Calendar(_) => 0,
        }
    }
}

/// What counts of a state at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Usage<'a> {
    SlidingWindow(sliding_window::Usage<'a>),
    /// The windows of the calendar as well.
    FixedWindow(fixed_window::Usage<'a>),
    SlidingLog(sliding_log::Usage<'a>),
    TokenBucket(token_bucket::Usage<'a>),
}

impl Usage<'_> {
    /// How much counts now. For a token bucket, the tokens that are missing in full or in part.
    pub(super) fn used(&self) -> u64 {
        match self {
            Self::SlidingWindow(usage) => usage.estimate(),
            Self::FixedWindow(usage) => usage.count(),
            Self::SlidingLog(usage) => usage.count(),
            Self::TokenBucket(usage) => usage.missing(),
        }
    }

    /// How much more fits now.
    pub(super) fn remaining(&self) -> u64 {
        match self {
            Self::SlidingWindow(usage) => usage.remaining(),
            Self::FixedWindow(usage) => usage.remaining(),
            Self::SlidingLog(usage) => usage.remaining(),
            Self::TokenBucket(usage) => usage.remaining(),
        }
    }

    /// Microseconds until `need` more fit if nothing else comes; 0 if they do now, `None` if they never will.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        match self {
            Self::SlidingWindow(usage) => usage.wait(need),
            Self::FixedWindow(usage) => usage.wait(need),
            Self::SlidingLog(usage) => usage.wait(need),
            Self::TokenBucket(usage) => usage.wait(need),
        }
    }
}
