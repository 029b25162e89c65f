//! The way of finished traces from the workers to who exports them: bounded, and never waited for. What does not fit is
//! dropped and counted.
//!
//! Whoever exports them is woken by the first trace of a batch, not by each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc};

use super::Trace;

/// The most traces that wait. A trace has at most [`MOST_SPANS`](super::MOST_SPANS).
pub const ROOM: usize = 1024;
/// When so many traces wait, they are exported at once.
const MANY: usize = ROOM / 4;

/// What became of spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// A collector has accepted them.
    pub exported: SpanCount,
    /// They were dropped, because there was no room for more to wait.
    pub no_room: SpanCount,
    /// They were dropped because a collector has refused them.
    pub refused: SpanCount,
    /// They were dropped because no collector could be reached, or none answered.
    pub failed: SpanCount,
}

/// A number of spans. Any thread may add to it, because that is rare.
#[derive(Debug, Default)]
pub struct SpanCount(AtomicU64);

impl SpanCount {
    /// Adds `more`.
    pub fn add(&self, more: usize) {
        self.0.fetch_add(u64::try_from(more).unwrap_or(0), Ordering::Relaxed);
    }

    /// The number so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where finished traces go. Clones send to the same receiver.
#[derive(Clone, Debug)]
pub struct TraceSender {
    traces: mpsc::Sender<Trace>,
    many: Arc<Notify>,
    counts: Arc<SpanCounts>,
}

/// Where finished traces come from.
#[derive(Debug)]
pub struct TraceReceiver {
    traces: mpsc::Receiver<Trace>,
    many: Arc<Notify>,
}

/// A sender and its receiver. What does not fit is counted in `counts`.
pub fn trace_channel(counts: Arc<SpanCounts>) -> (TraceSender, TraceReceiver) {
    let (sender, receiver) = mpsc::channel(ROOM);
    let many = Arc::new(Notify::new());
    (TraceSender { traces: sender, many: many.clone(), counts }, TraceReceiver { traces: receiver, many })
}

impl TraceSender {
    /// Sends a trace, or drops it if there is no room.
    pub(super) fn send(&self, trace: Trace) {
        if let Err(returned) = self.traces.try_send(trace) {
            self.counts.no_room.add(returned.into_inner().spans.len());
        } else if self.traces.max_capacity() - self.traces.capacity() >= MANY {
            self.many.notify_one();
        }
    }
}

impl TraceReceiver {
    /// The next trace, as soon as there is one; `None` after the last one of all senders.
    pub async fn next(&mut self) -> Option<Trace> {
        self.traces.recv().await
    }

    /// The next trace, if there is one already.
    pub fn waiting(&mut self) -> Option<Trace> {
        self.traces.try_recv().ok()
    }

    /// Waits until so many traces wait that they have to be exported at once.
    pub async fn many(&self) {
        self.many.notified().await;
    }

    /// Whether no trace will come any more.
    pub fn is_closed(&self) -> bool {
        self.traces.is_closed()
    }

    /// Accepts no more traces. Those that wait can still be received.
    pub fn close(&mut self) {
        self.traces.close();
    }
}
