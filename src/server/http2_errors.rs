//! Counts the errors that HTTP/2 clients are told: of whole connections (GOAWAY) and of streams (RST_STREAM).

use h2::Reason;

use crate::base::metrics::SharedCounter;

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
    pub connections: CodeCounts,
    pub streams: CodeCounts,
    /// Requests that the HTTP library has refused, and that have no other record.
    pub refused_requests: SharedCounter,
}

#[derive(Debug, Default)]
pub struct CodeCounts([SharedCounter; NAMES.len()]);

impl CodeCounts {
    pub(super) fn count(&self, code: Reason) {
        if let Some(counter) = usize::try_from(u32::from(code)).ok().and_then(|code| self.0.get(code)) {
            counter.one();
        }
    }

    /// By the error, without `no_error`.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(SharedCounter::get)).skip(1)
    }
}
