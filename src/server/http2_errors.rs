//! Counts the errors that HTTP/2 clients are told: of whole connections (GOAWAY) and of streams (RST_STREAM).

use std::sync::atomic::{AtomicU64, Ordering};

use h2::Reason;

/// The names of the error codes, in their order (RFC 9113, section 7), up to the last one that is ever sent.
const NAMES: [&str; 12] = [
    "no_error",
    "protocol_error",
    "internal_error",
    "flow_control_error",
    "settings_timeout",
    "stream_closed",
    "frame_size_error",
    "refused_stream",
    "cancel",
    "compression_error",
    "connect_error",
    "enhance_your_calm",
];

#[derive(Debug, Default)]
pub struct Http2Errors {
    connections: [AtomicU64; NAMES.len()],
    streams: [AtomicU64; NAMES.len()],
    refused: AtomicU64,
}

impl Http2Errors {
    pub(super) fn connection(&self, code: Reason) {
        count(&self.connections, code);
    }

    pub(super) fn stream(&self, code: Reason) {
        count(&self.streams, code);
    }

    pub(super) fn refused(&self, requests: u64) {
        self.refused.fetch_add(requests, Ordering::Relaxed);
    }

    /// Requests that the HTTP library has refused, and that have no other record.
    pub fn refused_requests(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// By the error.
    pub fn connections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        counted(&self.connections)
    }

    /// By the error.
    pub fn streams(&self) -> impl Iterator<Item = (&'static str, u64)> {
        counted(&self.streams)
    }
}

fn count(counters: &[AtomicU64], code: Reason) {
    if let Some(counter) = usize::try_from(u32::from(code)).ok().and_then(|code| counters.get(code)) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Without `no_error`.
fn counted(counters: &[AtomicU64]) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = counters.iter().map(|counter| counter.load(Ordering::Relaxed));
    NAMES.into_iter().zip(counts).skip(1)
}
