//! The state of one rate for one key: one variant for each strategy, which implements [`Counting`] in its own file.

use super::ban::LastBan;
use super::calendar_window::CalendarWindow;
use super::counting::{Buckets, Context, Counting, StateView, Whole};
use super::fixed_window::FixedWindow;
use super::log::AdmissionLog;
use super::rate::{Rate, Strategy};
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;
use crate::base::clock::Time;

/// What a rate has counted for one key. Its size matters, because there are millions of states: two fit into a [`Cell`]
/// without an allocation.
///
/// [`Cell`]: super::Cell
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    Calendar(CalendarWindow),
    Ban(LastBan),
}

const _: () = assert!(size_of::<State>() == 32, "a state takes more memory than documented");

/// The state, if it is of one of these strategies.
macro_rules! any_of {
    ($state:ident, $($strategy:ident),+) => {
        match $state {
            $(Self::$strategy(state) => Some(state),)+
            _ => None,
        }
    };
}

/// Calls a function with the state, whichever it is.
macro_rules! for_each_strategy {
    ($state:ident, $call:ident) => {
        match $state {
            Self::SlidingWindow(state) => $call(state),
            Self::FixedWindow(state) => $call(state),
            Self::SlidingLog(state) => $call(state),
            Self::TokenBucket(state) => $call(state),
            Self::Calendar(state) => $call(state),
            Self::Ban(state) => $call(state),
        }
    };
}

impl State {
    pub(super) fn new(rate: &Rate, now: Time) -> Self {
        match rate.strategy() {
            Strategy::SlidingWindow { precision, .. } => Self::SlidingWindow(SlidingWindow::new(rate, *precision, now)),
            Strategy::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Strategy::SlidingLog => Self::SlidingLog(SlidingLog),
            Strategy::TokenBucket { .. } => Self::TokenBucket(TokenBucket::new(now)),
            Strategy::Calendar(calendar) => Self::Calendar(CalendarWindow::new(calendar, now)),
            Strategy::Ban { .. } => Self::Ban(LastBan::default()),
        }
    }

    /// `read` is compiled once for each strategy, so its calls are not virtual.
    pub(super) fn read<'a, T>(&'a self, read: impl FnOnce(&'a dyn Counting) -> T) -> T {
        for_each_strategy!(self, read)
    }

    pub(super) fn change<'a, T>(&'a mut self, change: impl FnOnce(&'a mut dyn Counting) -> T) -> T {
        for_each_strategy!(self, change)
    }

    pub(super) fn buckets(&self) -> Option<&dyn Buckets> {
        any_of!(self, SlidingWindow, Calendar)
    }

    pub(super) fn buckets_mut(&mut self) -> Option<&mut dyn Buckets> {
        any_of!(self, SlidingWindow, Calendar)
    }

    /// A state that is kept as a whole; `None` for the log, which belongs to the cell.
    pub(super) fn whole(&self) -> Option<&dyn Whole> {
        any_of!(self, FixedWindow, TokenBucket, Ban)
    }

    pub(super) fn whole_mut(&mut self) -> Option<&mut dyn Whole> {
        any_of!(self, FixedWindow, TokenBucket, Ban)
    }

    /// In bytes, without the state itself.
    pub(super) fn allocation(&self) -> usize {
        match self {
            Self::SlidingWindow(window) => window.allocation(),
            _ => 0,
        }
    }

    /// Raises what counts at `now` to what counts in another state of the same rate, whose cell has this log.
    pub(super) fn raise(&mut self, context: &mut Context<'_>, least: &Self, log: Option<&AdmissionLog>, now: Time) {
        match (self, least) {
            (Self::SlidingWindow(window), Self::SlidingWindow(least)) => window.raise(context.rate, least, now),
            (Self::FixedWindow(window), Self::FixedWindow(least)) => window.raise(least),
            (Self::SlidingLog(_), _) => SlidingLog::raise(context, log, now),
            (Self::TokenBucket(bucket), Self::TokenBucket(least)) => bucket.raise(least),
            (Self::Calendar(window), Self::Calendar(least)) => window.raise(least),
            _ => {}
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct StateUsage<'a> {
    state: &'a State,
    view: StateView<'a>,
    pub(super) used: u64,
}

impl<'a> StateUsage<'a> {
    #[expect(clippy::inline_always, reason = "every decision does this, and a call would copy the result")]
    #[inline(always)]
    pub(super) fn new(state: &'a State, view: StateView<'a>) -> Self {
        Self { state, view, used: state.read(|state| state.used(view)) }
    }

    pub(super) fn remaining(&self) -> u64 {
        self.view.rate.capacity().saturating_sub(self.used)
    }

    /// Microseconds until `need` more fit if nothing else comes; 0 if they do now, `None` if they never will.
    pub(super) fn wait(&self, need: u64) -> Option<u64> {
        match need {
            need if need <= self.remaining() => Some(0),
            need if need > self.view.rate.capacity() => None,
            need => Some(self.state.read(|state| state.wait(self.view, need))),
        }
    }
}
