//! A stream to a server whose frames are followed: the library does not report the window that the server leaves to all bodies
//! together.

use std::cell::Cell;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::{InspectReader, InspectWriter};

use crate::server::{Frames, Piece, frame_kind};

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

/// Counts in `traffic` what passes through `stream`.
pub(super) fn followed<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    traffic: Rc<PassedBytes>,
) -> impl AsyncRead + AsyncWrite + Unpin {
    let (mut received, mut sent) = (Received::default(), Frames::of_client());
    let sent_to = traffic.clone();
    let stream = InspectWriter::new(stream, move |bytes| follow_sent(&mut sent, bytes, &sent_to));
    InspectReader::new(stream, move |bytes| received.follow(bytes, &traffic))
}

#[derive(Debug, Default)]
struct Received {
    frames: Frames,
    /// Whether the current frame grants window for the connection.
    is_grant: bool,
}

impl Received {
    fn follow(&mut self, mut bytes: &[u8], PassedBytes { received, granted, .. }: &PassedBytes) {
        received.set(received.get() + bytes.len() as u64);
        while let Some(piece) = self.frames.next(&mut bytes) {
            if let Piece::Head(head) = piece {
                self.is_grant = head.kind == frame_kind::WINDOW_UPDATE && head.stream == 0;
            } else if self.is_grant
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
            let traffic = PassedBytes::default();
            let (mut incoming, mut outgoing) = (Received::default(), Frames::of_client());
            received.chunks(step).for_each(|bytes| incoming.follow(bytes, &traffic));
            sent.chunks(step).for_each(|bytes| follow_sent(&mut outgoing, bytes, &traffic));
            assert_eq!(traffic.window(), 65_535 + 65_536 - 5, "{step}");
            assert_eq!(traffic.received.get(), received.len() as u64);
        }
    }
}
