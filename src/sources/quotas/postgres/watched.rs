//! Watches the byte stream of a PostgreSQL connection: when data came last, and whether it is valid messages.
//!
//! A message begins with one byte for its kind and four for its length (PostgreSQL, "Message Formats"). The client library
//! buffers a whole message, so without this check a server could claim a huge length and make the memory grow.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// In bytes. The row of a quota has a thousandth of that.
const LONGEST_MESSAGE: u32 = 1 << 20;

/// The length includes these bytes.
const LENGTH_BYTES: u32 = 4;

/// Follows message boundaries in what is read.
#[derive(Debug, Default)]
struct Messages {
    head: [u8; 5],
    have: usize,
    /// The number of missing bytes after the head.
    rest: usize,
}

impl Messages {
    /// # Errors
    /// If it is not the protocol, or a message is too long.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = bytes.get(passed..).unwrap_or_default();
            let missing = self.head.iter_mut().skip(self.have).zip(bytes);
            let taken = missing.map(|(place, byte)| *place = *byte).count();
            self.have += taken;
            bytes = bytes.get(taken..).unwrap_or_default();
            if self.have == self.head.len() {
                let [kind, length @ ..] = self.head;
                let length = u32::from_be_bytes(length);
                if !kind.is_ascii_alphanumeric() || length < LENGTH_BYTES {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak PostgreSQL's protocol"));
                }
                if length > LONGEST_MESSAGE {
                    let text = format!("it sends a message of {length} bytes, and {LONGEST_MESSAGE} are allowed");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                self.have = 0;
                self.rest = (length - LENGTH_BYTES) as usize;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    messages: Messages,
    heard: Rc<Cell<Instant>>,
}

impl<S> Watched<S> {
    /// The cell has the time at which something was last read from `stream`.
    pub(super) fn new(stream: S) -> (Self, Rc<Cell<Instant>>) {
        let heard = Rc::new(Cell::new(Instant::now()));
        (Self { stream, messages: Messages::default(), heard: heard.clone() }, heard)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, out))?;
        self.heard.set(Instant::now());
        Poll::Ready(self.messages.read(out.filled().get(before..).unwrap_or_default()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the messages in pieces of `size`.
    fn accepts(bytes: &[u8], size: usize) -> bool {
        let mut messages = Messages::default();
        bytes.chunks(size).all(|piece| messages.read(piece).is_ok())
    }

    #[test]
    fn messages_are_followed_in_whatever_pieces_they_come() {
        // The content of the messages has bytes that would be invalid heads.
        let good = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I1\0\0\0\x04D\0\0\0\x0a\xff\xff\xff\xff\xff\xff";
        for size in 1..=good.len() {
            assert!(accepts(good, size), "pieces of {size}");
            for bad in [&b"\0\0\0\0\x08"[..], b"D\0\0\0\x03", b"D\x00\x10\x00\x01", b"HTTP/1.1 400 Bad Request"] {
                assert!(!accepts(&[good, bad].concat(), size), "{bad:?} in pieces of {size}");
            }
        }
        assert!(accepts(b"D\x00\x10\x00\x00", 2), "the longest one");
    }
}
