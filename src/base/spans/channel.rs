//! Carries finished traces from the workers to the exporter in a bounded queue. Traces that do not fit are dropped and
//! counted.
//!
//! The first trace of a batch wakes the exporter, not each trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc};

use super::Trace;

/// In traces of at most [`MOST_SPANS`](super::MOST_SPANS).
pub const ROOM: usize = 1024;
/// From this many waiting traces on, they are exported at once.
const MANY: usize = ROOM / 4;

/// Spans by their fate.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// A collector has accepted them.
    pub exported: SpanCount,
    /// Dropped because the queue was full.
    pub no_room: SpanCount,
    /// Dropped because a collector refused them.
    pub refused: SpanCount,
    /// Dropped because no collector could be reached, or none answered.
    pub failed: SpanCount,
}

/// Any thread may add to a number, because this is rare.
#[derive(Debug, Default)]
pub struct SpanCount(AtomicU64);

impl SpanCount {
    pub fn add(&self, more: usize) {
        self.0.fetch_add(u64::try_from(more).unwrap_or(0), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Clones send to the same receiver.
#[derive(Clone, Debug)]
pub struct TraceSender {
    traces: mpsc::Sender<Trace>,
    many: Arc<Notify>,
    counts: Arc<SpanCounts>,
}

#[derive(Debug)]
pub struct TraceReceiver {
    traces: mpsc::Receiver<Trace>,
    many: Arc<Notify>,
}

/// `counts` gets the spans that do not fit.
pub fn trace_channel(counts: Arc<SpanCounts>) -> (TraceSender, TraceReceiver) {
    let (sender, receiver) = mpsc::channel(ROOM);
    let many = Arc::new(Notify::new());
    (TraceSender { traces: sender, many: many.clone(), counts }, TraceReceiver { traces: receiver, many })
}

impl TraceSender {
    /// Drops the trace if there is no room.
    pub(super) fn send(&self, trace: Trace) {
        if let Err(returned) = self.traces.try_send(trace) {
            self.counts.no_room.add(returned.into_inner().spans.len());
        } else if self.traces.max_capacity() - self.traces.capacity() >= MANY {
            self.many.notify_one();
        }
    }
}

impl TraceReceiver {
    /// Waits for the next trace; `None` after the last one of all senders.
    pub async fn next(&mut self) -> Option<Trace> {
        self.traces.recv().await
    }

    /// The next trace, if there is one already.
    pub fn waiting(&mut self) -> Option<Trace> {
        self.traces.try_recv().ok()
    }

    /// Waits until so many traces wait that they must be exported at once.
    pub async fn many(&self) {
        self.many.notified().await;
    }

    pub fn is_closed(&self) -> bool {
        self.traces.is_closed()
    }

    /// Accepts no more traces. Waiting traces can still be received.
    pub fn close(&mut self) {
        self.traces.close();
    }
}
