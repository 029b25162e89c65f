//! Carries finished traces from the workers to the exporter in a bounded queue. Traces that do not fit are dropped and
//! counted.
//!
//! The first trace of a batch wakes the exporter, not each trace.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use super::Trace;
use crate::base::metrics::SharedCounter;

/// In traces of at most [`MOST_SPANS`](super::MOST_SPANS).
pub const ROOM: usize = 1024;
/// From this many waiting traces on, they are exported at once.
const MANY: usize = ROOM / 4;

/// Spans by their fate.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// A collector has accepted them.
    pub exported: SharedCounter,
    /// Dropped because the queue was full.
    pub no_room: SharedCounter,
    /// Dropped because a collector refused them.
    pub refused: SharedCounter,
    /// Dropped because no collector could be reached, or none answered.
    pub failed: SharedCounter,
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
    pub traces: mpsc::Receiver<Trace>,
    /// Notified when so many traces wait that they must be exported at once.
    pub many: Arc<Notify>,
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
            self.counts.no_room.add(returned.into_inner().spans.len() as u64);
        } else if self.traces.max_capacity() - self.traces.capacity() >= MANY {
            self.many.notify_one();
        }
    }
}
