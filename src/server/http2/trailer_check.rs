//! Notices pseudo-fields in the trailers of an HTTP/2 request, which are not allowed there (RFC 9113, section 8.1). Pure.
//!
//! The HTTP library drops them without an error. It does refuse a pseudo-field after another field, so only the first field of
//! a block matters. An entry of the compression's dynamic table is unknown here; the library drops it if it is a pseudo-field.

use super::frames::{FrameHead, flag};

/// The entries of the static table that are pseudo-fields (RFC 7541, appendix A).
const PSEUDO: std::ops::RangeInclusive<u8> = 1..=14;
/// The first seven bits of a name that begins with a colon in the Huffman code (RFC 7541, appendix B).
const CODED_COLON: u8 = 0b1011_1000;

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
    use super::*;

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
