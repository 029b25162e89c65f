//! What all workers share about an upstream: how many requests it got, and which wait for a server.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::resend::RetryBudget;
use crate::base::clock::Monotonic;

#[derive(Debug, Default)]
pub(super) struct UpstreamState {
    requests: AtomicU64,
    budget: Mutex<RetryBudget>,
    retries: AtomicU64,
    refused_retries: AtomicU64,
    /// For how many requests no server had room.
    pub(super) full: AtomicU64,
    waiting: AtomicUsize,
    /// For each configuration with waiting requests, tells the request that is sent next that an endpoint may have room.
    room: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryCounts {
    pub sent: u64,
    /// Requests that were not sent again, because the budget was used up.
    pub refused: u64,
}

impl UpstreamState {
    pub(super) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Records how many requests there were. Must be called every second, or a little more often.
    pub(super) fn observe(&self, now: Monotonic) {
        self.budget.lock().observe(now.seconds(), self.requests.load(Ordering::Relaxed));
    }

    /// Whether one more request may be sent again. At most `share` of all may be, in thousandths.
    pub(super) fn take_retry(&self, share: u32, now: Monotonic) -> bool {
        let is_allowed = self.budget.lock().take(now.seconds(), self.requests.load(Ordering::Relaxed), share);
        let counter = if is_allowed { &self.retries } else { &self.refused_retries };
        counter.fetch_add(1, Ordering::Relaxed);
        is_allowed
    }

    pub(super) fn retries(&self) -> RetryCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RetryCounts { sent: get(&self.retries), refused: get(&self.refused_retries) }
    }

    /// At most `most` requests may wait.
    pub(super) fn wait(&self, most: usize) -> Option<WaitingRequest<'_>> {
        let waiting = WaitingRequest(self);
        // If there are too many, the drop of `waiting` corrects the number.
        (self.waiting.fetch_add(1, Ordering::SeqCst) < most).then_some(waiting)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// An endpoint may have room for another request. Waiting requests look again.
    pub(super) fn has_room(&self) {
        if self.waiting() > 0 {
            self.room.notify_waiters();
        }
    }
}

/// Until this is dropped, a request waits.
#[derive(Debug)]
pub(super) struct WaitingRequest<'a>(&'a UpstreamState);

impl WaitingRequest<'_> {
    /// Ready when an endpoint may have got room since this was called.
    pub(super) fn room(&self) -> Notified<'_> {
        self.0.room.notified()
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
