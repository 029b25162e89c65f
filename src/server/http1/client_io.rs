//! A client's stream as the HTTP library uses it. It records received and sent bytes in the state of the connection, and
//! shows them to the check of their framing, which may change a target.
//!
//! hyper writes its own response, without a body, to input that it cannot parse. What it writes while no request waits for a
//! response is discarded here, and the gateway derives its own response from hyper's error.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::message_body::Messages;
use crate::net::ClientStream;
use crate::server::connection_state::ConnectionState;
use crate::server::lifecycle::Event;

/// The most bytes of a body that are read at once. The buffer of the library grows while reads fill it, up to what a head may
/// need, and would keep as much of each upload that its upstream does not read. One byte more would let it grow once more.
const LARGEST_PIECE: u64 = (64 << 10) - 1;

pub(super) struct ClientIo {
    pub(super) stream: ClientStream,
    pub(super) state: Rc<ConnectionState>,
    pub(super) messages: Rc<Messages>,
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let in_body = this.messages.framing.borrow().is_in_body();
        if in_body {
            ready!(Pin::new(&mut (&mut this.stream).take(LARGEST_PIECE)).poll_read(cx, buf))?;
        } else {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        }
        let received = &mut buf.filled_mut()[before..];
        if !received.is_empty() {
            let mut framing = this.messages.framing.borrow_mut();
            framing.follow(received);
            this.state.record(Event::Received(framing.begun()));
            // The request may be on its way to an upstream already. The error breaks it off, so that the upstream does not take
            // it for complete. If the head was ambiguous, the handler refuses the request.
            if in_body && framing.is_ambiguous() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the body can be read in two ways",
                )));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.state.lifecycle().is_unasked() {
            // The library responds to something that is not a request. The connection's task has a better response.
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        // The library passes all bytes that it has.
        let length = if let Poll::Ready(Ok(length)) = written { length } else { 0 };
        this.messages.unwritten.set(bytes.len() - length);
        if length > 0 && this.messages.is_full.take() {
            cx.waker().wake_by_ref();
        }
        this.state.record(Event::Sent(written.is_ready()));
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // With TLS, bytes that were accepted may still wait here.
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        if flushed.is_pending() {
            this.state.record(Event::Sent(false));
            return Poll::Pending;
        }
        if this.state.lifecycle().is_unsent() {
            this.state.record(Event::Sent(true));
        }
        // The library flushes when it has written everything. It may have read the next request before that: when it drains
        // a request's body after the response.
        this.state.record(Event::Flushed);
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task shuts the stream down, because it may have to send a response before that.
        Poll::Ready(Ok(()))
    }
}
