//! A stream to a server whose frames are followed: the library does not report the window that the server leaves to all bodies
//! together.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::{Frames, PREFACE, Piece, frame_kind};
use crate::upstream::stream::UpstreamStream;

/// What a server may be sent on all streams together before it grants more (RFC 9113, section 6.9.2).
const INITIAL_WINDOW: u64 = 65_535;

#[derive(Debug, Default)]
pub(super) struct PassedBytes {
    /// In bytes.
    pub(super) received: Cell<u64>,
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

#[derive(Debug)]
struct Follower {
    traffic: Rc<PassedBytes>,
    incoming: Frames,
    outgoing: Frames,
    /// The bytes of the preface that are still to be sent.
    preface_left: usize,
    /// The bytes of a grant for the connection so far, after a 1 that marks its length.
    grant: Option<u64>,
}

impl Follower {
    fn new(traffic: Rc<PassedBytes>) -> Self {
        let (incoming, outgoing) = (Frames::default(), Frames::default());
        Self { traffic, incoming, outgoing, preface_left: PREFACE.len(), grant: None }
    }

    fn received(&mut self, mut bytes: &[u8]) {
        let PassedBytes { received, granted, .. } = &*self.traffic;
        received.set(received.get() + bytes.len() as u64);
        while let Some(piece) = self.incoming.next(&mut bytes) {
            match piece {
                Piece::Head(head) => {
                    self.grant = (head.kind == frame_kind::WINDOW_UPDATE && head.stream == 0).then_some(1);
                }
                Piece::Payload(payload) => {
                    let add = |grant: u64, byte: &u8| grant << 8 | u64::from(*byte);
                    self.grant = self.grant.map(|grant| payload.iter().take(4).fold(grant, add));
                    if let Some(grant) = self.grant.take_if(|grant| *grant >> 32 == 1) {
                        // The first bit has no meaning.
                        granted.set(granted.get() + (grant & 0x7fff_ffff));
                    }
                }
            }
        }
    }

    fn sent(&mut self, mut bytes: &[u8]) {
        let preface = self.preface_left.min(bytes.len());
        self.preface_left -= preface;
        bytes = &bytes[preface..];
        while let Some(piece) = self.outgoing.next(&mut bytes) {
            if let Piece::Head(head) = piece
                && head.kind == frame_kind::DATA
            {
                self.traffic.sent.set(self.traffic.sent.get() + u64::from(head.length));
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct FollowedStream {
    stream: UpstreamStream,
    follower: Follower,
}

impl FollowedStream {
    pub(super) fn new(stream: UpstreamStream, traffic: Rc<PassedBytes>) -> Self {
        Self { stream, follower: Follower::new(traffic) }
    }
}

impl AsyncRead for FollowedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, follower } = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(stream).poll_read(cx, buf);
        follower.received(&buf.filled()[before..]);
        polled
    }
}

impl AsyncWrite for FollowedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, follower } = self.get_mut();
        let written = ready!(Pin::new(stream).poll_write(cx, bytes))?;
        follower.sent(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, follower } = self.get_mut();
        let written = ready!(Pin::new(stream).poll_write_vectored(cx, bytes))?;
        let mut left = written;
        for part in bytes {
            let length = left.min(part.len());
            follower.sent(&part[..length]);
            left -= length;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_what_is_granted_and_not_sent() {
        // 65 536 more for the connection, whose first bit has no meaning, and for a stream, and a ping.
        let received = b"\0\0\x04\x08\0\0\0\0\0\x80\x01\0\0\0\0\x04\x08\0\0\0\0\x01\0\0\x01\0\0\0\x08\x06\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let sent = [PREFACE, b"\0\0\x02\x01\x04\0\0\0\x01hi\0\0\x05\0\x01\0\0\0\x01hello"].concat();
        for step in 1..=received.len() {
            let mut follower = Follower::new(Rc::default());
            received.chunks(step).for_each(|bytes| follower.received(bytes));
            sent.chunks(step).for_each(|bytes| follower.sent(bytes));
            assert_eq!(follower.traffic.window(), 65_535 + 65_536 - 5, "{step}");
            assert_eq!(follower.traffic.received.get(), received.len() as u64);
        }
    }
}
