//! The trace that a request belongs to (W3C Trace Context, level 1: <https://www.w3.org/TR/trace-context-1/>): the client's
//! if `traceparent` is valid, or else a new one that is not sampled.
//!
//! The gateway records no spans, so it passes a valid `traceparent` on as it is, and `tracestate` only beside it.

use std::fmt::{self, Display};

use http::{HeaderName, HeaderValue};

use crate::hex;
use crate::random::Random;

/// The name of the header that has the trace.
pub const TRACEPARENT: &str = "traceparent";
/// The same name.
pub const TRACEPARENT_HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);
/// The name of the header that has more about it.
pub const TRACESTATE: &str = "tracestate";

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub struct TraceContext {
    id: TraceId,
    /// The parent of the spans of the upstream, in a new trace.
    new_parent: Option<u64>,
}

/// The name of a trace: 128 bits, of which at least one is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId {
    high: u64,
    low: u64,
}

impl TraceContext {
    /// The trace of a request with this single line of [`TRACEPARENT`].
    pub fn of(line: Option<&HeaderValue>, random: &Random) -> Self {
        if let Some(id) = line.and_then(|line| trace_id(line.as_bytes())) {
            return Self { id, new_parent: None };
        }
        // Zero is not valid.
        let id = TraceId { high: random.bits() | 1, low: random.bits() };
        Self { id, new_parent: Some(random.bits() | 1) }
    }

    /// The name of the trace.
    pub fn id(&self) -> TraceId {
        self.id
    }

    /// The value of `traceparent` for the upstream; `None` if the client's is valid.
    pub fn new_parent(&self) -> Option<[u8; 55]> {
        let new_parent = self.new_parent?;
        let mut text = *b"00-................................-................-00";
        for (at, bits) in [(3, self.id.high), (19, self.id.low), (36, new_parent)] {
            text[at..at + 16].copy_from_slice(&hex::digits(bits));
        }
        Some(text)
    }
}

impl Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
    }
}

/// The trace id in the value of `traceparent`, if that is valid (section 3.2).
fn trace_id(value: &[u8]) -> Option<TraceId> {
    let (known, rest) = value.split_at_checked(55)?;
    let &[v0, v1, b'-', ref ids @ .., b'-', f0, f1] = known else { return None };
    let (trace, behind) = ids.split_first_chunk::<32>()?;
    let (high, low, parent) =
        (trace.first_chunk::<16>()?, trace.last_chunk::<16>()?, behind.strip_prefix(b"-")?.first_chunk::<16>()?);
    // Later versions may have more behind another dash.
    let has_form = match [v0, v1] {
        [b'f', b'f'] => false,
        [b'0', b'0'] => rest.is_empty(),
        _ => matches!(rest.first(), None | Some(b'-')),
    };
    let (id, parent) = (TraceId { high: hex::bits(high)?, low: hex::bits(low)? }, hex::bits(parent)?);
    let is_valid =
        has_form && hex::bits(&[v0, v1, f0, f1]).is_some() && id != TraceId { high: 0, low: 0 } && parent != 0;
    is_valid.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn of(line: Option<&str>) -> TraceContext {
        let line = line.map(|line| HeaderValue::from_str(line).unwrap());
        TraceContext::of(line.as_ref(), &Random::seeded().unwrap())
    }

    #[test]
    fn a_valid_one_is_kept() {
        for value in [
            VALID,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later",
        ] {
            let context = of(Some(value));
            assert_eq!((context.id().to_string().as_str(), context.new_parent()), (TRACE, None), "{value}");
        }
    }

    #[test]
    fn anything_else_is_replaced() {
        let wrong = [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0A",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ];
        for line in wrong.into_iter().map(Some).chain([None]) {
            let context = of(line);
            let made = context.new_parent().unwrap();
            let id = context.id().to_string();
            assert_ne!(id, TRACE, "{line:?}");
            assert_eq!(trace_id(&made), Some(context.id()), "{line:?}");
            assert_eq!(made[3..35], *id.as_bytes(), "{line:?}");
            assert!(made.ends_with(b"-00"), "it is not sampled");
        }
    }
}
