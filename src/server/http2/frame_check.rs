//! Follows the frames that an HTTP/2 client sends, and ends connections that h2 would go on with: floods of frames that carry
//! nothing, a beginning without SETTINGS, and pseudo-fields in trailers. Pure.
//!
//! h2 itself ends a connection for too many CONTINUATION frames, refused or invalid streams, resets of unread
//! streams, and fields that grow too much. A connection that has to end gets a GOAWAY from the gateway.

use super::frames::{FrameHead, Frames, Piece, flag, kind};
use super::received_bodies::is_small;
use crate::server::worker_state::Coarse;

/// How many streams a client may reset, and how many frames that carry nothing it may send, at once and in each second. A
/// browser that leaves a page resets some hundred streams at once.
const AT_ONCE: u64 = 1000;
const PER_SECOND: u64 = 100;
/// How many more frames that carry nothing a client may send for each frame of a response. Some clients answer a DATA frame
/// of 16 KiB with a WINDOW_UPDATE for each 4 KiB, for the stream and for the connection, and with a PING, perhaps much
/// later. So this adds up.
const PER_FRAME: u64 = 16;
/// The entries of the static table that are pseudo-fields (RFC 7541, appendix A).
const PSEUDO: std::ops::RangeInclusive<u8> = 1..=14;
/// The first seven bits of a name that begins with a colon in the Huffman code (RFC 7541, appendix B).
const CODED_COLON: u8 = 0b1011_1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// RFC 9113, section 3.4.
    NoSettings,
    /// RFC 9113, section 8.1.
    PseudoTrailer,
    /// RFC 9113, section 10.5.
    Flood,
}

impl Violation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoSettings => "the first frame is not SETTINGS",
            Self::PseudoTrailer => "a pseudo-field in trailers",
            Self::Flood => "too many frames that carry nothing",
        }
    }
}

pub(super) struct FrameCheck {
    frames: Frames,
    has_settings: bool,
    /// The highest stream that the client has opened, and how many it has opened.
    pub(super) last_stream: u32,
    pub(super) opened: u64,
    /// Whether the last frame has fields of a request or trailers, and whether more frames with them must follow.
    has_fields: bool,
    has_more_fields: bool,
    trailers: Option<TrailerCheck>,
    resets: Budget,
    others: Budget,
    /// The stream that the current frame resets, and those that were reset since the last [`Self::take_reset`].
    resetting: Option<u32>,
    reset: Vec<u32>,
    /// How many small DATA frames have begun since this was set to 0.
    pub(super) small_data: usize,
}

impl FrameCheck {
    /// `speaks_for` is the number of clients behind this one: a proxy resets what its clients have left.
    pub(super) fn new(now: Coarse, speaks_for: u64) -> Self {
        Self {
            frames: Frames::of_client(),
            has_settings: false,
            last_stream: 0,
            opened: 0,
            has_fields: false,
            has_more_fields: false,
            trailers: None,
            resets: Budget::new(now, speaks_for),
            others: Budget::new(now, speaks_for),
            resetting: None,
            reset: Vec::new(),
            small_data: 0,
        }
    }

    pub(super) fn take_reset(&mut self) -> impl Iterator<Item = u32> {
        self.reset.drain(..)
    }

    /// Whether the fields of a request, or trailers, have begun and are incomplete.
    pub(super) fn is_in_head(&self) -> bool {
        self.has_more_fields || self.has_fields && !self.frames.is_between()
    }

    pub(super) fn sent(&mut self, kind: u8) {
        match kind {
            // For each response that has begun, the client may reset a stream.
            kind::HEADERS => {
                self.resets.left += 1;
                self.others.left += PER_FRAME;
            }
            kind::DATA => self.others.left += PER_FRAME,
            _ => {}
        }
    }

    /// Fails when the connection has to end.
    pub(super) fn follow(&mut self, mut bytes: &[u8], now: Coarse) -> Result<(), Violation> {
        while let Some(piece) = self.frames.next(&mut bytes) {
            match piece {
                Piece::Head(head) => self.begin(head, now)?,
                Piece::Payload(payload) => {
                    if self.trailers.as_mut().is_some_and(|trailers| trailers.follow(payload)) {
                        return Err(Violation::PseudoTrailer);
                    }
                    if self.frames.is_between() {
                        self.reset.extend(self.resetting.take());
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, head: FrameHead, now: Coarse) -> Result<(), Violation> {
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(Violation::NoSettings);
        }
        self.has_settings = true;
        self.resetting = (head.kind == kind::RST_STREAM).then_some(head.stream);
        self.small_data += usize::from(is_small(head));
        self.has_fields = matches!(head.kind, kind::HEADERS | kind::CONTINUATION);
        self.has_more_fields = self.has_fields && !head.has(flag::END_HEADERS);
        match head.kind {
            kind::HEADERS if head.stream > self.last_stream => {
                self.trailers = None;
                self.last_stream = head.stream;
                self.opened += 1;
            }
            kind::HEADERS => self.trailers = Some(TrailerCheck::new(head)),
            kind::CONTINUATION => {}
            _ => self.trailers = None,
        }
        let is_within_budget = match head.kind {
            kind::HEADERS | kind::CONTINUATION | kind::DATA => true,
            kind::RST_STREAM => self.resets.take(now),
            _ => self.others.take(now),
        };
        if is_within_budget { Ok(()) } else { Err(Violation::Flood) }
    }
}

struct Budget {
    left: u64,
    /// How many times as large as that of one client.
    factor: u64,
    /// The time up to this moment has been counted.
    since: Coarse,
}

impl Budget {
    fn new(now: Coarse, factor: u64) -> Self {
        Self { left: AT_ONCE * factor, factor, since: now }
    }

    /// Returns whether one was left.
    fn take(&mut self, now: Coarse) -> bool {
        let (at_once, per_second) = (AT_ONCE * self.factor, PER_SECOND * self.factor);
        let more = now.saturating_sub(self.since) * per_second / 1000;
        self.since += more * 1000 / per_second;
        // Time alone refills no further than this.
        self.left = self.left.max((self.left + more).min(at_once));
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }
}

/// However the bytes are cut, the result is the same.
#[cfg(any(test, fuzzing))]
pub(crate) fn check(bytes: &[u8]) {
    let follow = |step: usize| {
        let mut check = FrameCheck::new(0, 1);
        bytes.chunks(step).try_for_each(|piece| check.follow(piece, 0))?;
        Ok::<_, Violation>((check.is_in_head(), check.last_stream, check.opened))
    };
    let whole = follow(usize::MAX);
    for step in [1, 2, 7, 64] {
        assert_eq!(follow(step), whole, "by {step}");
    }
}

/// The position in a block of trailers (RFC 7541, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrailerCheck {
    /// The bytes before the first field or update: the length of the padding, and the priority.
    Before(u8),
    /// In the new size of the dynamic table, a number of several bytes.
    TableSize,
    NameLength,
    Name {
        is_coded: bool,
    },
    Over,
}

impl TrailerCheck {
    pub(super) fn new(head: FrameHead) -> Self {
        let padding = u8::from(head.has(flag::PADDED));
        let priority = if head.has(flag::PRIORITY) { 5 } else { 0 };
        Self::Before(padding + priority)
    }

    /// Whether the next bytes show that the block begins with a pseudo-field.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            let (next, is_pseudo) = self.next(*byte);
            *self = next;
            if is_pseudo || next == Self::Over {
                return is_pseudo;
            }
        }
        false
    }

    fn next(self, byte: u8) -> (Self, bool) {
        // A field without indexing or never indexed has four bits for the entry of its name, one with indexing six.
        let entry = match byte {
            0x80.. => byte & 0x7f,
            0x40.. => byte & 0x3f,
            _ => byte & 0x0f,
        };
        match self {
            Self::Before(left @ 1..) => (Self::Before(left - 1), false),
            Self::Before(0) => match byte {
                0x3f => (Self::TableSize, false),
                0x20..0x3f => (self, false),
                ..0x80 if entry == 0 => (Self::NameLength, false),
                _ => (Self::Over, PSEUDO.contains(&entry)),
            },
            Self::TableSize if byte < 0x80 => (Self::Before(0), false),
            // The names of pseudo-fields are short. The library refuses unknown ones.
            Self::NameLength => match byte & 0x7f {
                1..0x7f => (Self::Name { is_coded: byte >= 0x80 }, false),
                _ => (Self::Over, false),
            },
            Self::Name { is_coded: true } => (Self::Over, byte & 0xfe == CODED_COLON),
            Self::Name { is_coded: false } => (Self::Over, byte == b':'),
            Self::TableSize | Self::Over => (self, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRI: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn begun() -> FrameCheck {
        let mut check = FrameCheck::new(0, 1);
        check.follow(&[PRI, &frame(kind::SETTINGS, 0, 0, b"")].concat(), 0).unwrap();
        check
    }

    #[test]
    fn a_connection_begins_with_settings() {
        for (first, result) in [
            (frame(kind::SETTINGS, 0, 0, b"\0\x04\0\0\0\0"), Ok(())),
            (frame(kind::SETTINGS, flag::ACK, 0, b""), Err(Violation::NoSettings)),
            (frame(PING, 0, 0, b"gateway!"), Err(Violation::NoSettings)),
            (frame(kind::HEADERS, 5, 1, b"\x82"), Err(Violation::NoSettings)),
        ] {
            let bytes = [PRI, &first].concat();
            for step in 1..bytes.len() {
                let mut check = FrameCheck::new(0, 1);
                assert_eq!(bytes.chunks(step).try_for_each(|piece| check.follow(piece, 0)), result, "{first:?}");
            }
        }
    }

    #[test]
    fn trailers_have_no_pseudo_fields() {
        let head = frame(kind::HEADERS, flag::END_HEADERS, 1, b"\x83\x86\x84");
        let data = frame(kind::DATA, 0, 1, b"abc");
        let trailers = |block: &[u8]| frame(kind::HEADERS, flag::END_HEADERS | 1, 1, block);
        let cut = [frame(kind::HEADERS, 1, 1, b""), frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"\x84")].concat();
        for (end, result) in [
            (trailers(b"\0\x01x\x01y"), Ok(())),
            (trailers(b"\x84"), Err(Violation::PseudoTrailer)),
            (cut, Err(Violation::PseudoTrailer)),
            // Another request, and data that looks like a field.
            (frame(kind::HEADERS, flag::END_HEADERS | 1, 3, b"\x82\x86\x84"), Ok(())),
            ([trailers(b""), frame(kind::DATA, 0, 3, b"\x84")].concat(), Ok(())),
        ] {
            let bytes = [&head[..], &data, &end].concat();
            for step in 1..bytes.len() {
                let mut check = begun();
                assert_eq!(bytes.chunks(step).try_for_each(|piece| check.follow(piece, 0)), result, "{end:?}");
            }
        }
    }

    #[test]
    fn a_head_is_incomplete_until_its_last_frame() {
        let mut check = begun();
        for (next, in_head) in [
            (frame(kind::HEADERS, 0, 7, b"\x82"), true),
            (frame(kind::CONTINUATION, 0, 7, b"\x86"), true),
            (frame(kind::CONTINUATION, flag::END_HEADERS, 7, b"\x84"), false),
            (frame(kind::HEADERS, flag::END_HEADERS, 9, b"\x82\x86\x84"), false),
        ] {
            for byte in &next[..next.len() - 1] {
                check.follow(&[*byte], 0).unwrap();
            }
            assert!(check.is_in_head(), "{next:?}");
            check.follow(&next[next.len() - 1..], 0).unwrap();
            assert_eq!(check.is_in_head(), in_head, "{next:?}");
        }
        assert_eq!((check.last_stream, check.opened), (9, 2));
    }

    /// How many of these frames may come before the connection must end.
    fn allowed(check: &mut FrameCheck, frame: &[u8], now: Coarse) -> usize {
        (0..1_000_000).find(|_| check.follow(frame, now) == Err(Violation::Flood)).unwrap()
    }

    #[test]
    fn frames_that_carry_nothing_are_bounded() {
        let at_once = usize::try_from(AT_ONCE).unwrap();
        // PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, and unknown types.
        for (kind, per_head, per_data) in
            [2, 4, 5, 6, 7, 8, 0x10, 0xff].map(|kind| (kind, 16, 16)).into_iter().chain([(3, 1, 0)])
        {
            let mut check = begun();
            let count = allowed(&mut check, &frame(kind, 0, 1, b""), 0);
            // The first SETTINGS is one of them.
            assert_eq!(count, at_once - usize::from(kind != kind::RST_STREAM), "{kind}");
            // In 250 ms there are 25 more, however often the time is read.
            let more = (0..=250).map(|now| allowed(&mut check, &frame(kind, 0, 1, b""), now)).sum::<usize>();
            assert_eq!(more, 25, "{kind}");
            check.sent(kind::HEADERS);
            assert_eq!(allowed(&mut check, &frame(kind, 0, 1, b""), 250), per_head, "{kind}");
            // What responses allow adds up, and what time allows does not.
            (0..1000).for_each(|_| check.sent(kind::DATA));
            assert_eq!(allowed(&mut check, &frame(kind, 0, 1, b""), 250), 1000 * per_data, "{kind}");
            assert_eq!(allowed(&mut check, &frame(kind, 0, 1, b""), 1_000_000), at_once, "{kind}");
        }
    }

    #[test]
    fn a_stream_is_reset_by_a_whole_frame() {
        let mut check = begun();
        let frames = [frame(kind::RST_STREAM, 0, 7, &[0; 4]), frame(PING, 0, 0, b"gateway!")].concat();
        for (at, byte) in frames.iter().enumerate() {
            check.follow(&[*byte], 0).unwrap();
            assert!(check.take_reset().eq((at == 12).then_some(7)), "{at}");
        }
    }

    #[test]
    fn frames_with_a_part_of_a_request_are_not_bounded() {
        let mut check = begun();
        for stream in 0..100_000 {
            let stream = 2 * stream + 1;
            check.follow(&frame(kind::HEADERS, flag::END_HEADERS, stream, b"\x82"), 0).unwrap();
            check.follow(&frame(kind::DATA, 1, stream, b"x"), 0).unwrap();
        }
    }

    proptest! {
        #[test]
        fn does_not_panic_or_depend_on_how_bytes_are_cut(frames in prop::collection::vec((0..11u8, any::<u8>(), 0..6u32, prop::collection::vec(any::<u8>(), 0..9)), 0..9), rest in prop::collection::vec(any::<u8>(), 0..40)) {
            let frames = frames.iter().flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload));
            let begun = [PRI, &frame(kind::SETTINGS, 0, 0, b"")].concat();
            check(&begun.into_iter().chain(frames).chain(rest).collect::<Vec<_>>());
        }
    }

    fn begins_with_pseudo(flags: u8, block: &[u8], step: usize) -> bool {
        let mut check = TrailerCheck::new(FrameHead { flags, ..FrameHead::default() });
        block.chunks(step).any(|piece| check.follow(piece))
    }

    #[test]
    fn pseudo_fields_are_noticed_in_every_representation() {
        for (block, is_pseudo) in [
            (&b""[..], false),
            // The static table.
            (b"\x81", true),
            (b"\x82", true),
            (b"\x8e", true),
            (b"\x8f", false),
            // The dynamic table.
            (b"\xbe", false),
            (b"\xff\x00", false),
            // Their names with other values: with indexing, without, and never indexed.
            (b"\x44\x01/", true),
            (b"\x04\x01/", true),
            (b"\x14\x01/", true),
            (b"\x4f\x01x", false),
            (b"\x0f\x00\x01x", false),
            (b"\x1f\x00\x01x", false),
            // Names of their own, plain and coded.
            (b"\x00\x05:path\x01/", true),
            (b"\x10\x05:path\x01/", true),
            (b"\x40\x05:path\x01/", true),
            (b"\x00\x84\xb9\x58\x33\x11\x01/", true),
            (b"\x00\x05x-sum\x017", false),
            (b"\x00\x84\xf2\xb4\x5b\xff\x017", false),
            (b"\x00\x00\x017", false),
            (b"\x00\x7f\x01:", false),
            // After a new size of the dynamic table, short and long.
            (b"\x20\x82", true),
            (b"\x3f\xe1\x1f\x82", true),
            (b"\x20\x3f\xe1\x1f\x00\x05x-sum", false),
            // The library finds a pseudo-field after another field.
            (b"\x00\x05x-sum\x017\x82", false),
        ] {
            for step in 1..=block.len().max(1) {
                assert_eq!(begins_with_pseudo(0, block, step), is_pseudo, "{block:x?} by {step}");
                let padded = [&b"\x82"[..], block].concat();
                assert_eq!(begins_with_pseudo(flag::PADDED, &padded, step), is_pseudo, "{block:x?} by {step}");
                let all = [&b"\x82\x82\x82\x82\x82\x82"[..], block].concat();
                let flags = flag::PADDED | flag::PRIORITY;
                assert_eq!(begins_with_pseudo(flags, &all, step), is_pseudo, "{block:x?} by {step}");
            }
        }
    }
}
