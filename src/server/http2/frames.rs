//! Finds the frames in the bytes of an HTTP/2 connection (RFC 9113, section 4.1), however they are cut. Pure.

/// What a client sends before its first frame (RFC 9113, section 3.4).
pub(in crate::server) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// In bytes.
const HEAD: usize = 9;

/// The types of frames that matter here (RFC 9113, section 6).
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
}

pub mod flag {
    pub(in crate::server) const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub(in crate::server) const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub(in crate::server) const PRIORITY: u8 = 0x20;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHead {
    /// Of the payload, in bytes.
    pub length: u32,
    /// See [`kind`].
    pub kind: u8,
    pub flags: u8,
    /// 0 is the connection.
    pub stream: u32,
}

impl FrameHead {
    fn read([l0, l1, l2, kind, flags, id @ ..]: [u8; HEAD]) -> Self {
        // The first bit has no meaning.
        let stream = u32::from_be_bytes(id) & !(1 << 31);
        Self { length: u32::from_be_bytes([0, l0, l1, l2]), kind, flags, stream }
    }

    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Head(FrameHead),
    /// More of the payload of the current frame, at least one byte.
    Payload(&'a [u8]),
}

#[derive(Debug, Default)]
pub struct Frames {
    /// The bytes of the preface that are still to come. The library compares them.
    preface_left: usize,
    /// The head of the next frame, and how many bytes of it have come.
    head: [u8; HEAD],
    filled: usize,
    /// Of the payload.
    left: u32,
    /// The first bytes of the payload, and how many of them have come.
    start: [u8; 8],
    started: usize,
}

impl Frames {
    /// Those of a client, which follow its `PREFACE`.
    pub fn of_client() -> Self {
        Self { preface_left: PREFACE.len(), ..Self::default() }
    }

    pub fn is_between(&self) -> bool {
        self.filled == 0 && self.left == 0
    }

    /// The number of 32 bits in the payload of the last frame after `offset` bytes, at most 4, if all of the frame has come.
    pub fn number(&self, offset: usize) -> Option<u32> {
        let bytes = self.start[..self.started].get(offset..)?.first_chunk()?;
        self.is_between().then(|| u32::from_be_bytes(*bytes))
    }

    /// Takes the next piece from `bytes`; `None` if the rest is the beginning of a frame's head.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        let preface = self.preface_left.min(bytes.len());
        self.preface_left -= preface;
        *bytes = &bytes[preface..];
        if bytes.is_empty() {
            return None;
        }
        if self.left > 0 {
            let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let (payload, rest) = bytes.split_at(length);
            self.left -= u32::try_from(length).unwrap_or(self.left);
            *bytes = rest;
            let start = payload.len().min(self.start.len() - self.started);
            self.start[self.started..][..start].copy_from_slice(&payload[..start]);
            self.started += start;
            return Some(Piece::Payload(payload));
        }
        let (more, rest) = bytes.split_at(bytes.len().min(HEAD - self.filled));
        self.head[self.filled..][..more.len()].copy_from_slice(more);
        self.filled += more.len();
        *bytes = rest;
        if self.filled < HEAD {
            return None;
        }
        let head = FrameHead::read(self.head);
        (self.filled, self.left, self.started) = (0, head.length, 0);
        Some(Piece::Head(head))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The frames in these bytes with their payloads, if the bytes come in pieces of this size.
    fn read(bytes: &[u8], step: usize) -> (Vec<(FrameHead, Vec<u8>)>, bool) {
        let (mut frames, mut found) = (Frames::default(), Vec::<(FrameHead, Vec<u8>)>::new());
        for mut piece in bytes.chunks(step) {
            while let Some(next) = frames.next(&mut piece) {
                match next {
                    Piece::Head(head) => found.push((head, Vec::new())),
                    Piece::Payload(more) => found.last_mut().unwrap().1.extend_from_slice(more),
                }
            }
        }
        (found, frames.is_between())
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let bytes = b"\0\0\x05\x01\x24\x80\0\x01\x02hello\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\x03x";
        let head = |length, kind, flags, stream| FrameHead { length, kind, flags, stream };
        let expected = vec![
            (head(5, kind::HEADERS, flag::END_HEADERS | flag::PRIORITY, 258), b"hello".to_vec()),
            (head(0, kind::SETTINGS, 0, 0), Vec::new()),
            (head(1, kind::DATA, 0, 3), b"x".to_vec()),
        ];
        for step in 1..=bytes.len() {
            assert_eq!(read(bytes, step), (expected.clone(), true), "{step}");
        }
        for end in (1..14).chain(15..23).chain(24..33) {
            assert!(!read(&bytes[..end], 100).1, "{end}");
        }
    }

    proptest! {
        #[test]
        fn does_not_depend_on_how_bytes_are_cut(lengths in prop::collection::vec(0..40u8, 0..8), rest in prop::collection::vec(any::<u8>(), 0..30), step in 1..20usize) {
            let frame = |length: &u8| [&[0, 0, *length, 6, 0, 0, 0, 0, 0][..], &vec![*length; usize::from(*length)]].concat();
            let bytes = [lengths.iter().flat_map(frame).collect(), rest].concat();
            prop_assert_eq!(read(&bytes, step), read(&bytes, usize::MAX));
        }
    }
}
