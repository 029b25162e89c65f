//! What all connections of one worker share: the time, and whether one of them has to make room for another.

use std::cell::Cell;
use std::sync::Arc;

use super::connection_limits::ConnectionLimits;
use super::date_header::DateHeader;

/// Milliseconds since the worker began to check its connections, as of the last check.
pub(super) type Coarse = u64;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct WorkerState {
    now: Cell<Coarse>,
    /// Whether a connection may have become idle since the last call of [`WorkerState::take_has_idle`].
    has_idle: Cell<bool>,
    date: DateHeader,
    limits: Arc<ConnectionLimits>,
}

impl WorkerState {
    /// For a worker whose connections have these limits.
    pub(super) fn new(limits: Arc<ConnectionLimits>) -> Self {
        Self { now: Cell::new(0), has_idle: Cell::new(false), date: DateHeader::default(), limits }
    }

    pub(super) fn limits(&self) -> &Arc<ConnectionLimits> {
        &self.limits
    }

    /// The Date of responses.
    pub(super) fn date(&self) -> &DateHeader {
        &self.date
    }

    /// The time.
    pub(super) fn now(&self) -> Coarse {
        self.now.get()
    }

    /// Sets the time.
    pub(super) fn set_now(&self, now: Coarse) {
        self.now.set(now);
    }

    /// Records that there is an idle connection.
    pub(super) fn add_idle(&self) {
        self.has_idle.set(true);
    }

    /// Whether there may be idle connections that were not there at the last call.
    pub(super) fn take_has_idle(&self) -> bool {
        self.has_idle.replace(false)
    }

    /// Records that a connection has become idle. Returns whether it has to end because another one needs its place.
    pub(super) fn is_place_needed(&self) -> bool {
        self.add_idle();
        self.limits.claim()
    }
}
