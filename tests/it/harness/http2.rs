//! An HTTP/2 client whose frames the test writes itself, right or wrong.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The beginning of a connection, before the first frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The types of frames (RFC 9113, section 6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

/// Error codes (RFC 9113, section 7).
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// How long a test waits for the next frame.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct RawHttp2 {
    pub(crate) stream: TcpStream,
    /// The bytes of the last read, and the unused bytes.
    bytes: Vec<u8>,
    received: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Status(u16),
    Reset(u32),
    GoAway(u32),
    /// The connection closes without a code.
    Closed,
}

impl RawHttp2 {
    /// A connection on which nothing was sent yet.
    #[track_caller]
    pub(crate) fn bare(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, bytes: vec![0; 1 << 16], received: Vec::new() }
    }

    /// A connection that begins with the preface and these settings.
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut client = Self::bare(address);
        let payload: Vec<_> = settings.iter().flat_map(|(id, value)| setting(*id, *value)).collect();
        client.send(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &payload)].concat()).unwrap();
        client
    }

    /// The same connection for another thread, which only sends.
    pub(crate) fn twin(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), bytes: Vec::new(), received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    /// When no frame comes until `end`.
    pub(crate) fn next(&mut self, end: Instant) -> Result<Option<Frame>> {
        loop {
            if let Some(head) = self.received.get(..9) {
                let length = usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).unwrap();
                let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                let (kind, flags) = (head[3], head[4]);
                if self.received.len() >= 9 + length {
                    let payload = self.received.drain(..9 + length).skip(9).collect();
                    return Ok(Some(Frame { kind, flags, stream, payload }));
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut self.bytes) {
                Ok(0) => return Ok(None),
                Ok(length) => self.received.extend_from_slice(&self.bytes[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next frame that is as wanted, which must come.
    #[track_caller]
    pub(crate) fn find(&mut self, what: &str, wanted: impl Fn(&Frame) -> bool) -> Frame {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.next(end) {
                Ok(Some(frame)) if wanted(&frame) => return frame,
                Ok(Some(_)) => {}
                other => panic!("no {what}: {other:?}"),
            }
        }
    }

    #[track_caller]
    pub(crate) fn reaction(&mut self, stream: u32) -> Reaction {
        let end = Instant::now() + PATIENCE;
        loop {
            let Some(frame) = self.next(end).unwrap_or_else(|error| panic!("nothing happens to {stream}: {error}"))
            else {
                return Reaction::Closed;
            };
            match frame.kind {
                kind::HEADERS if frame.stream == stream => return Reaction::Status(status(&frame.payload)),
                kind::RST_STREAM if frame.stream == stream => return Reaction::Reset(code(&frame.payload)),
                kind::GOAWAY if code(&frame.payload[4..]) > 0 => return Reaction::GoAway(code(&frame.payload[4..])),
                _ => {}
            }
        }
    }

    #[track_caller]
    pub(crate) fn ending(&mut self) -> Reaction {
        self.reaction(u32::MAX)
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A HEADERS frame with all fields of a request or of trailers.
pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    frame(kind::HEADERS, flags | END_HEADERS, stream, &block(fields))
}

pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    let path = path.as_bytes();
    headers(stream, END_STREAM, &[(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", path)])
}

/// The fields as literals without compression (RFC 7541, section 6.2.2).
pub(crate) fn block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(text.len(), &mut block);
            block.extend_from_slice(text);
        }
    }
    block
}

/// A length in seven bits, or more (RFC 7541, section 5.1).
fn length(length: usize, out: &mut Vec<u8>) {
    let Some(mut left) = length.checked_sub(127) else {
        out.push(u8::try_from(length).unwrap());
        return;
    };
    out.push(127);
    while left >= 128 {
        out.push(u8::try_from(left % 128).unwrap() | 128);
        left /= 128;
    }
    out.push(u8::try_from(left).unwrap());
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}

/// The status of a response, which is its first field, in the forms that the gateway's library writes.
fn status(block: &[u8]) -> u16 {
    match block {
        [entry @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(entry - 0x88)],
        [0x08 | 0x48, length, text @ ..] => {
            let text = &text[..usize::from(length & 0x7f)];
            let digits = if *length < 0x80 { text.to_vec() } else { digits(text) };
            String::from_utf8(digits).unwrap().parse().unwrap()
        }
        other => panic!("no status in {other:x?}"),
    }
}

/// Three digits in the Huffman code (RFC 7541, appendix B): 0 to 2 have five bits, the others six.
fn digits(coded: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = coded.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let number = |bits: &[u8]| bits.iter().fold(0, |number, bit| number << 1 | bit);
    let mut rest = &bits[..];
    let digits = (0..3).map(|_| {
        let (length, base) = if rest[..2] == [0, 0] { (5, 0) } else { (6, 0b01_1001 - 3) };
        let digit = number(&rest[..length]) - base;
        rest = &rest[length..];
        b'0' + digit
    });
    digits.collect()
}
