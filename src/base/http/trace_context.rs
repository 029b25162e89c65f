//! The trace of a request (W3C Trace Context, level 1: <https://www.w3.org/TR/trace-context-1/>): the client's trace if
//! `traceparent` is valid, else a new one if requests are traced.
//!
//! If no span is recorded, a valid `traceparent` passes unchanged, unless its flags would make the upstream record what the
//! gateway decided not to record. `tracestate` passes only beside a valid `traceparent`.
//!
//! The gateway believes flags only from trusted proxies: a flag costs a client nothing, and makes every system behind it
//! record and export.
//!
//! A trace is looked for only if the request is forwarded or logged.

use std::fmt::{self, Display};

use http::{HeaderName, HeaderValue};

use crate::base::hex;
use crate::base::random::Random;

pub const TRACEPARENT: &str = "traceparent";
pub const TRACEPARENT_HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);
pub const TRACESTATE: &str = "tracestate";

/// The spans of the trace are recorded (section 3.2.2.5.1).
const SAMPLED: u8 = 1;

#[derive(Clone, Copy, Debug)]
pub struct TraceContext {
    pub id: TraceId,
    /// The span of the client, if the trace is the client's.
    pub client: Option<SpanId>,
    /// The parent of the upstream's spans if no span is recorded here; `None` if this is the client's span.
    new_parent: Option<SpanId>,
    pub is_sampled: bool,
}

/// 128 bits, at least one of them set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId {
    high: u64,
    low: u64,
}

/// 64 bits, at least one of them set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// For the requests about which the gateway decides.
    pub share: SampleShare,
    /// Whether the flags of the client's trace decide.
    pub follows_parent: bool,
}

/// A share of all traces. The lower 56 bits of their ids choose it, because they are random: so all systems with the same
/// share sample the same traces (OpenTelemetry, "TraceState: Probability Sampling").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleShare {
    /// Samples a trace if its random bits are at least this.
    rejected_below: u64,
}

impl SampleShare {
    /// The random bits of a trace id.
    const BITS: u32 = 56;

    /// From 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the product is a number from 0 to 2^56, and a float has 53 bits"
    )]
    pub fn new(share: f64) -> Self {
        let all = 1u64 << Self::BITS;
        Self { rejected_below: ((1.0 - share.clamp(0.0, 1.0)) * all as f64) as u64 }
    }

    fn has(self, random: u64) -> bool {
        random & ((1 << Self::BITS) - 1) >= self.rejected_below
    }
}

impl TraceContext {
    /// `line` is the single line of [`TRACEPARENT`] in the request. Without `sampling` no trace begins here, and none is
    /// sampled.
    pub fn of(line: Option<&HeaderValue>, random: &Random, sampling: Option<Sampling>) -> Option<Self> {
        let Some(Parent { trace, span, flags }) = line.and_then(|line| parent(line.as_bytes())) else {
            let sampling = sampling?;
            // Zero is not valid.
            let id = TraceId { high: random.bits() | 1, low: random.bits() };
            let (new_parent, is_sampled) = (Some(SpanId::new(random)), sampling.share.has(id.low));
            return Some(Self { id, client: None, new_parent, is_sampled });
        };
        let is_flagged = flags & SAMPLED != 0;
        let is_sampled = match sampling {
            None => false,
            Some(Sampling { follows_parent: true, .. }) => is_flagged,
            // Clients choose the ids of their traces, so these ids are not random.
            Some(Sampling { share, .. }) => share.has(random.bits()),
        };
        let is_unflagged = sampling.is_some() && is_flagged && !is_sampled;
        let new_parent = is_unflagged.then(|| SpanId::new(random));
        Some(Self { id: trace, client: Some(span), new_parent, is_sampled })
    }

    /// The value of `traceparent` for an upstream whose spans have the parent `span`, if a span is recorded. `None` if the
    /// client's value passes unchanged.
    pub fn sent(&self, span: Option<SpanId>) -> Option<[u8; 55]> {
        let SpanId(parent) = span.or(self.new_parent)?;
        let mut text = *b"00-................................-................-0.";
        for (at, bits) in [(3, self.id.high), (19, self.id.low), (36, parent)] {
            text[at..at + 16].copy_from_slice(&hex::digits(bits));
        }
        text[54] = if span.is_some() { b'1' } else { b'0' };
        Some(text)
    }
}

impl TraceId {
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.high) << 64 | u128::from(self.low)).to_be_bytes()
    }
}

impl SpanId {
    pub fn new(random: &Random) -> Self {
        Self(random.bits() | 1)
    }

    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
    }
}

struct Parent {
    trace: TraceId,
    span: SpanId,
    flags: u8,
}

/// Reads a valid `traceparent` (section 3.2).
fn parent(value: &[u8]) -> Option<Parent> {
    let (known, rest) = value.split_at_checked(55)?;
    let &[v0, v1, b'-', ref ids @ .., b'-', f0, f1] = known else { return None };
    let (trace, behind) = ids.split_first_chunk::<32>()?;
    let (high, low, span) =
        (trace.first_chunk::<16>()?, trace.last_chunk::<16>()?, behind.strip_prefix(b"-")?.first_chunk::<16>()?);
    // Later versions may have more after another dash.
    let has_form = match [v0, v1] {
        [b'f', b'f'] => false,
        [b'0', b'0'] => rest.is_empty(),
        _ => matches!(rest.first(), None | Some(b'-')),
    };
    let (trace, span) = (TraceId { high: hex::bits(high)?, low: hex::bits(low)? }, hex::bits(span)?);
    let flags = u8::try_from(hex::bits(&[v0, v1, f0, f1])? & 0xff).ok()?;
    let is_valid = has_form && trace != TraceId { high: 0, low: 0 } && span != 0;
    is_valid.then_some(Parent { trace, span: SpanId(span), flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn sampled(line: Option<&str>, sampling: impl Into<Option<Sampling>>) -> TraceContext {
        let line = line.map(|line| HeaderValue::from_str(line).unwrap());
        TraceContext::of(line.as_ref(), &Random::seeded().unwrap(), sampling.into()).unwrap()
    }

    fn sampling(share: f64, follows_parent: bool) -> Sampling {
        Sampling { share: SampleShare::new(share), follows_parent }
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
            let context = sampled(Some(value), None);
            assert_eq!((context.id.to_string().as_str(), context.sent(None)), (TRACE, None), "{value}");
        }
    }

    #[test]
    fn anything_else_is_replaced_if_requests_are_traced() {
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
            let value = line.map(|line| HeaderValue::from_str(line).unwrap());
            assert!(TraceContext::of(value.as_ref(), &Random::seeded().unwrap(), None).is_none(), "{line:?}");
            let context = sampled(line, sampling(0.0, true));
            let made = context.sent(None).unwrap();
            let id = context.id.to_string();
            assert_ne!(id, TRACE, "{line:?}");
            assert_eq!(parent(&made).map(|parent| parent.trace), Some(context.id), "{line:?}");
            assert!(context.client.is_none() && !context.is_sampled);
            assert_eq!(made[3..35], *id.as_bytes(), "{line:?}");
            assert!(made.ends_with(b"-00"), "it is not sampled");
        }
    }

    #[test]
    fn the_flag_of_a_parent_that_is_followed_decides() {
        for (share, flags, is_sampled) in [(0.0, "01", true), (0.0, "03", true), (1.0, "00", false), (1.0, "02", false)]
        {
            let line = VALID.replace("-01", &format!("-{flags}"));
            let context = sampled(Some(&line), sampling(share, true));
            assert_eq!((context.is_sampled, context.sent(None)), (is_sampled, None), "{line}");
            assert_eq!(context.client.map(SpanId::to_bytes), Some([0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]));
        }
    }

    #[test]
    fn the_flag_of_another_parent_is_not_believed() {
        let unflagged = VALID.replace("-01", "-00");
        for line in [VALID, &unflagged] {
            assert!(sampled(Some(line), sampling(1.0, false)).is_sampled, "{line}");
        }
        // The upstream must not believe the flag either.
        let refused = sampled(Some(VALID), sampling(0.0, false));
        let sent = String::from_utf8(refused.sent(None).unwrap().to_vec()).unwrap();
        assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-00"), "{sent}");
        assert!(!refused.is_sampled && !sent.contains("00f067aa0ba902b7"), "{sent}");
        assert_eq!(sampled(Some(&unflagged), sampling(0.0, false)).sent(None), None);
    }

    #[test]
    fn a_span_that_is_recorded_is_the_parent_of_the_upstream() {
        for line in [None, Some(VALID)] {
            let context = sampled(line, sampling(1.0, false));
            let sent = context.sent(Some(SpanId(0xabc))).unwrap();
            let expected = format!("00-{}-0000000000000abc-01", context.id);
            assert_eq!(String::from_utf8_lossy(&sent), expected);
            assert_eq!(format!("{:032x}", u128::from_be_bytes(context.id.to_bytes())), context.id.to_string());
        }
    }

    #[test]
    fn a_share_of_new_traces_is_sampled() {
        let random = Random::seeded().unwrap();
        for (share, fewest, most) in [(0.0, 0, 0), (0.1, 800, 1200), (0.5, 4700, 5300), (1.0, 10_000, 10_000)] {
            let begun = (0..10_000).filter_map(|_| TraceContext::of(None, &random, Some(sampling(share, true))));
            let sampled = begun.filter(|context| context.is_sampled).count();
            assert!((fewest..=most).contains(&sampled), "{share}: {sampled}");
        }
        let half = SampleShare::new(0.5);
        assert!([0, (1 << 55) - 1, 0xff << 56].iter().all(|bits| !half.has(*bits)));
        assert!([1 << 55, (1 << 56) - 1].iter().all(|bits| half.has(*bits)));
    }
}
