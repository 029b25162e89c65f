//! The time that a client gives a whole call, from its request to the end of its response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// When one call has to end, and the timer that says so.
#[derive(Debug)]
pub(super) struct CallDeadline {
    timer: Pin<Box<Sleep>>,
    limit: Duration,
}

impl CallDeadline {
    /// It begins now, in a runtime with timers.
    pub(super) fn new(limit: Duration) -> Self {
        Self { timer: Box::pin(sleep(limit)), limit }
    }

    /// Ready with the limit once it is reached.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        self.timer.as_mut().poll(cx).map(|()| self.limit)
    }

    /// When it is reached.
    pub(super) fn at(&self) -> Instant {
        self.timer.deadline()
    }
}
