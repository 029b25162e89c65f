//! A stream to a server whose frames are followed: the library reports neither the window that the server leaves to all bodies
//! together, nor empty pieces of bodies, nor when the settings of the server have come, and gets frames on which it spends more
//! memory than they carry.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::{Frames, Piece, ReceivedBodies, frame_flag, frame_kind};

/// What a server may be sent on all streams together before it grants more (RFC 9113, section 6.9.2).
const INITIAL_WINDOW: u64 = 65_535;

#[derive(Debug, Default)]
pub(super) struct PassedBytes {
    /// In bytes.
    pub(super) received: Cell<u64>,
    /// Whether the server's settings have come, which it sends first (RFC 9113, section 3.4).
    pub(super) has_begun: Cell<bool>,
    /// How many empty pieces of bodies have come that were not the last one.
    pub(super) empty: Cell<usize>,
    /// How many bytes of bodies the server has granted to the connection, and how many were sent.
    granted: Cell<u64>,
    sent: Cell<u64>,
}

impl PassedBytes {
    /// How many bytes of bodies may be sent on all streams together until the server grants more.
    pub(super) fn window(&self) -> u64 {
        (INITIAL_WINDOW + self.granted.get()).saturating_sub(self.sent.get())
    }
}

/// Counts in `traffic` and `bodies` what passes through `stream`.
pub(super) struct Followed<S> {
    stream: S,
    received: Received,
    sent: Frames,
    traffic: Rc<PassedBytes>,
    bodies: Rc<ReceivedBodies>,
}

impl<S> Followed<S> {
    pub(super) fn new(stream: S, traffic: Rc<PassedBytes>, bodies: Rc<ReceivedBodies>) -> Self {
        Self { stream, received: Received::default(), sent: Frames::of_client(), traffic, bodies }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Followed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, received, traffic, bodies, .. } = self.get_mut();
        if bodies.is_due() {
            // The task of the connection takes them out of the library, and reads on.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        received.follow(&buf.filled()[before..], traffic, bodies);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Followed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, sent, traffic, .. } = self.get_mut();
        let mut left = ready!(Pin::new(stream).poll_write_vectored(cx, parts))?;
        let written = left;
        for part in parts {
            let part = &part[..left.min(part.len())];
            left -= part.len();
            follow_sent(sent, part, traffic);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[derive(Debug, Default)]
struct Received {
    frames: Frames,
    /// Whether the current frame grants window for the connection.
    is_grant: bool,
    /// The length of the current frame, if it is a piece of a body that may be nothing but padding.
    padded: Option<u32>,
}

impl Received {
    fn follow(&mut self, mut bytes: &[u8], passed: &PassedBytes, bodies: &ReceivedBodies) {
        let PassedBytes { received, has_begun, empty, granted, .. } = passed;
        received.set(received.get() + bytes.len() as u64);
        while let Some(piece) = self.frames.next(&mut bytes) {
            let is_empty = match piece {
                Piece::Head(head) => {
                    bodies.follow(head);
                    self.is_grant = head.kind == frame_kind::WINDOW_UPDATE && head.stream == 0;
                    let is_middle = head.kind == frame_kind::DATA && !head.has(frame_flag::END_STREAM);
                    self.padded = (is_middle && head.has(frame_flag::PADDED)).then_some(head.length);
                    is_middle && head.length == 0
                }
                // The first byte is the length of the padding.
                Piece::Payload(bytes) => {
                    let padding = bytes.first().map(|length| 1 + u32::from(*length));
                    self.padded.take().is_some_and(|length| Some(length) == padding)
                }
            };
            empty.set(empty.get() + usize::from(is_empty));
            if self.frames.is_between() {
                has_begun.set(true);
            }
            if self.is_grant
                && let Some(grant) = self.frames.number(0)
            {
                // The first bit has no meaning.
                granted.set(granted.get() + u64::from(grant & 0x7fff_ffff));
            }
        }
    }
}

fn follow_sent(frames: &mut Frames, mut bytes: &[u8], PassedBytes { sent, .. }: &PassedBytes) {
    while let Some(piece) = frames.next(&mut bytes) {
        if let Piece::Head(head) = piece
            && head.kind == frame_kind::DATA
        {
            sent.set(sent.get() + u64::from(head.length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_what_is_granted_and_not_sent() {
        // 65 536 more for the connection, whose first bit has no meaning, and for a stream, and a ping.
        let received = b"\0\0\x04\x08\0\0\0\0\0\x80\x01\0\0\0\0\x04\x08\0\0\0\0\x01\0\0\x01\0\0\0\x08\x06\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let sent =
            [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], b"\0\0\x02\x01\x04\0\0\0\x01hi\0\0\x05\0\x01\0\0\0\x01hello"]
                .concat();
        for step in 1..=received.len() {
            let (traffic, bodies) = (PassedBytes::default(), ReceivedBodies::default());
            let (mut incoming, mut outgoing) = (Received::default(), Frames::of_client());
            received.chunks(step).for_each(|bytes| incoming.follow(bytes, &traffic, &bodies));
            sent.chunks(step).for_each(|bytes| follow_sent(&mut outgoing, bytes, &traffic));
            assert_eq!(traffic.window(), 65_535 + 65_536 - 5, "{step}");
            assert_eq!(traffic.received.get(), received.len() as u64);
        }
    }

    #[test]
    fn empty_pieces_of_bodies_are_counted_and_settings_are_noticed() {
        // Settings, an empty piece, one of padding alone, one with content, one padded with content, and an empty last one.
        let received = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0\x01\0\0\x03\0\x08\0\0\0\x01\x02\0\0\
            \0\0\x01\0\0\0\0\0\x01x\0\0\x03\0\x08\0\0\0\x01\x01x\0\0\0\0\0\x01\0\0\0\x01";
        for step in 1..=received.len() {
            let (traffic, bodies, mut incoming) =
                (PassedBytes::default(), ReceivedBodies::default(), Received::default());
            for bytes in received.chunks(step) {
                incoming.follow(bytes, &traffic, &bodies);
                assert_eq!(traffic.has_begun.get(), traffic.received.get() >= 15);
            }
            assert_eq!(traffic.empty.get(), 2, "{step}");
        }
    }
}
