//! A client's stream as the HTTP library uses it in HTTP/2. It follows the frames in both directions, and records in the state
//! of the connection when bytes have to wait for the client.
//!
//! Bytes from the client are no use of the connection by themselves: a ping does not keep a connection open.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame_check::{FrameCheck, Violation};
use super::frames::{Frames, Piece, kind};
use super::streams::Streams;
use crate::net::ClientStream;
use crate::server::connection_limits::ConnectionLimits;
use crate::server::connection_state::ConnectionState;
use crate::server::http2_errors::{CodeCounts, Http2Errors};
use crate::server::lifecycle::Event;

/// Clones refer to the same stream.
#[derive(Clone)]
pub(super) struct MultiplexedIo {
    stream: ClientStream,
    state: Rc<ConnectionState>,
    followed: Rc<RefCell<Followed>>,
}

struct Followed {
    received: FrameCheck,
    violation: Option<Violation>,
    sent: Frames,
    streams: Rc<Streams>,
    /// Where the code of the error frame is counted that is being sent, and how many bytes of the payload come before the code
    /// (RFC 9113, sections 6.4 and 6.8).
    error: Option<(Counts, usize)>,
    limits: Arc<ConnectionLimits>,
}

type Counts = fn(&Http2Errors) -> &CodeCounts;

impl MultiplexedIo {
    /// `speaks_for` is the number of clients behind this one.
    pub(super) fn new(stream: ClientStream, state: Rc<ConnectionState>, streams: Rc<Streams>, speaks_for: u64) -> Self {
        let worker = &state.worker;
        let followed = Followed {
            received: FrameCheck::new(worker.now(), speaks_for),
            violation: None,
            sent: Frames::default(),
            streams,
            error: None,
            limits: worker.limits.clone(),
        };
        Self { stream, state, followed: Rc::new(RefCell::new(followed)) }
    }

    /// Why the connection has to end, if the client's frames are the reason.
    pub(super) fn violation(&self) -> Option<Violation> {
        self.followed.borrow().violation
    }

    pub(super) fn opened(&self) -> u64 {
        self.followed.borrow().received.opened
    }

    /// Tells the client that the connection ends, and the last request that was served, once the library has ended. So the
    /// client knows which requests it may send again; a client that does not read cannot be told.
    pub(super) fn go_away(&self, code: Reason) {
        let followed = &mut *self.followed.borrow_mut();
        followed.limits.http2_errors.connections.count(code);
        if !followed.sent.is_between() || self.state.lifecycle().is_unsent() {
            return;
        }
        let mut frame = vec![0, 0, 8, kind::GOAWAY, 0, 0, 0, 0, 0];
        frame.extend_from_slice(&followed.received.last_stream.to_be_bytes());
        frame.extend_from_slice(&u32::from(code).to_be_bytes());
        // The frame is short. If the system does not take all of it at once, the client does not read.
        let _ = self.stream.try_write(&frame);
    }
}

impl Followed {
    fn sent(&mut self, mut bytes: &[u8]) {
        while let Some(piece) = self.sent.next(&mut bytes) {
            match piece {
                Piece::Head(head) => {
                    match head.kind {
                        // A client could get an interim response to each request that it resets, so these refill no budget.
                        kind::HEADERS if self.streams.sends_interim() => {}
                        _ => self.received.sent(head.kind),
                    }
                    match head.kind {
                        kind::DATA => self.streams.sent(head.stream, head.length),
                        kind::RST_STREAM => {
                            self.streams.is_reset(head.stream);
                            self.error = Some((|errors| &errors.streams, 0));
                        }
                        kind::GOAWAY => self.error = Some((|errors| &errors.connections, 4)),
                        _ => {}
                    }
                }
                Piece::Payload(_) => {
                    if let Some((counts, offset)) = self.error
                        && let Some(code) = self.sent.number(offset)
                    {
                        counts(&self.limits.http2_errors).count(code.into());
                        self.error = None;
                    }
                }
            }
        }
    }
}

impl AsyncRead for MultiplexedIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, state, followed } = self.get_mut();
        if followed.borrow().streams.bodies.is_due() {
            // The task of the connection takes them out of the library, and reads on.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        let Followed { received, violation, streams, .. } = &mut *followed.borrow_mut();
        let followed = received.follow(&buf.filled()[before..], state.worker.now());
        received.take_reset().for_each(|stream| streams.is_reset(stream));
        streams.bodies.add_small(std::mem::take(&mut received.small_data));
        state.record(Event::HeadIsIncomplete(received.is_in_head()));
        *violation = followed.err();
        Poll::Ready(followed.map_err(|violation| io::Error::new(io::ErrorKind::InvalidData, violation.name())))
    }
}

impl AsyncWrite for MultiplexedIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, state, followed } = self.get_mut();
        let written = Pin::new(stream).poll_write(cx, bytes);
        state.record(Event::Sent(written.is_ready()));
        if let Poll::Ready(Ok(length)) = written {
            followed.borrow_mut().sent(&bytes[..length]);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, state, .. } = self.get_mut();
        let flushed = Pin::new(stream).poll_flush(cx);
        state.record(Event::Sent(flushed.is_ready()));
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, .. } = self.get_mut();
        ready!(Pin::new(&mut *stream).poll_flush(cx))?;
        Pin::new(stream).poll_shutdown(cx)
    }
}
