//! The state of one rate for one key: one variant for each strategy. Each strategy says in its own file what it does with
//! its state ([`Counting`]); here it is only found.

use std::ops::{Deref, DerefMut};

use super::calendar_window::CalendarWindow;
use super::counting::{Advanced, Charge, Counting};
use super::fixed_window::{self, FixedWindow};
use super::rate::{Rate, Strategy};
use super::sliding_log::{self, InLog, Log};
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
    SlidingLog(InLog),
    TokenBucket(TokenBucket),
    Calendar(CalendarWindow),
}

const _: () = assert!(size_of::<State>() == 32, "a state takes more memory than documented");

impl State {
    /// A state in which nothing has been counted at `now`.
    pub(super) fn new(rate: &Rate, now: Time) -> Self {
        match rate.strategy() {
            Strategy::SlidingWindow { precision, .. } => Self::SlidingWindow(SlidingWindow::new(rate, *precision, now)),
            Strategy::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Strategy::SlidingLog => Self::SlidingLog(InLog),
            Strategy::TokenBucket { .. } => Self::TokenBucket(TokenBucket::new(now)),
            Strategy::Calendar(calendar) => Self::Calendar(CalendarWindow::new(calendar, now)),
        }
    }

    /// What counts at `now`, to which the state has been advanced.
    pub(super) fn usage<'a>(&'a self, rate: &'a Rate, log: Option<&'a Log>, now: Time) -> Usage<'a> {
        match self {
            Self::SlidingWindow(window) => Usage::SlidingWindow(window.usage(rate, now)),
            Self::FixedWindow(window) => Usage::FixedWindow(window.usage(rate, now)),
            Self::SlidingLog(_) => Usage::SlidingLog(sliding_log::Usage::new(rate, log, now)),
            Self::TokenBucket(bucket) => Usage::TokenBucket(bucket.usage(rate)),
            Self::Calendar(window) => Usage::FixedWindow(window.usage(rate, now)),
        }
    }

    /// Moves the state on to `now`, without a virtual call, since each decision does this.
    pub(super) fn advance(&mut self, rate: &Rate, now: Time) -> Advanced {
        match self {
            Self::SlidingWindow(window) => window.advance(rate, now),
            Self::FixedWindow(window) => window.advance(rate, now),
            Self::SlidingLog(log) => log.advance(rate, now),
            Self::TokenBucket(bucket) => bucket.advance(rate, now),
            Self::Calendar(window) => window.advance(rate, now),
        }
    }

    /// Counts what is charged, without a virtual call.
    pub(super) fn charge(&mut self, rate: &Rate, charge: Charge<'_>) {
        match self {
            Self::SlidingWindow(window) => window.charge(rate, charge),
            Self::FixedWindow(window) => window.charge(rate, charge),
            Self::SlidingLog(log) => log.charge(rate, charge),
            Self::TokenBucket(bucket) => bucket.charge(rate, charge),
            Self::Calendar(window) => window.charge(rate, charge),
        }
    }

    /// Raises what counts at `now` to what counts in another state of the same rate. The cell raises the log.
    pub(super) fn raise(&mut self, rate: &Rate, least: &Self, now: Time) {
        match (self, least) {
            (Self::SlidingWindow(window), Self::SlidingWindow(least)) => window.raise(rate, least, now),
            (Self::FixedWindow(window), Self::FixedWindow(least)) => window.raise(least),
            (Self::TokenBucket(bucket), Self::TokenBucket(least)) => bucket.raise(least),
            (Self::Calendar(window), Self::Calendar(least)) => window.raise(least),
            _ => {}
        }
    }
}

impl Deref for State {
    type Target = dyn Counting;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::SlidingWindow(window) => window,
            Self::FixedWindow(window) => window,
            Self::SlidingLog(log) => log,
            Self::TokenBucket(bucket) => bucket,
            Self::Calendar(window) => window,
        }
    }
}

impl DerefMut for State {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::SlidingWindow(window) => window,
            Self::FixedWindow(window) => window,
            Self::SlidingLog(log) => log,
            Self::TokenBucket(bucket) => bucket,
            Self::Calendar(window) => window,
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

    /// How much more fits now if the rate has this capacity, of a state that is kept as a whole.
    pub(super) fn room_in(&self, capacity: u64) -> u64 {
        match self {
            Self::SlidingWindow(usage) => usage.remaining(),
            Self::FixedWindow(usage) => usage.room_in(capacity),
            Self::SlidingLog(usage) => usage.room_in(capacity),
            Self::TokenBucket(usage) => usage.room_in(capacity),
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
