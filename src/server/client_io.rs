//! A client's stream that tells its slot when bytes come, and when they could be read in two ways.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use super::connection_state::ConnectionState;
use super::framing_check::FramingCheck;
use crate::socket::{poll_receive_into, poll_send};

/// See the head of this file.
pub(super) type Watched = TokioIo<ClientIo>;

/// A stream that the HTTP library uses and its connection's task watches.
pub(super) type Shared = Rc<TcpStream>;

/// The stream as tokio sees it.
pub(super) struct ClientIo {
    stream: Shared,
    state: Rc<ConnectionState>,
    framing: FramingCheck,
}

impl ClientIo {
    pub(super) fn wrap(stream: Shared, state: Rc<ConnectionState>) -> Watched {
        TokioIo::new(Self { stream, state, framing: FramingCheck::default() })
    }
}

/// Is over when the client's connection has broken. If the client ends its side before that, notes it in the slot.
///
/// The runtime knows both from the events that it waits for anyhow, also while bytes lie in front that nobody reads. Of
/// what `PRIORITY` stands for, the end of what the client sends can happen; for urgent data no stream is registered.
pub(super) async fn broken(stream: &TcpStream, state: &ConnectionState) {
    let is_broken = |ready: io::Result<Ready>| ready.map_or(true, Ready::is_error);
    if !is_broken(stream.ready(Interest::PRIORITY | Interest::ERROR).await) {
        state.half_closed();
        let _ = stream.ready(Interest::ERROR).await;
    }
}

/// Whether the client has sent bytes that nobody has read. Asks the system, which of a new connection knows before
/// we are told.
pub(super) fn has_more(stream: &Shared) -> bool {
    SockRef::from(&**stream).peek(&mut [MaybeUninit::uninit()]).is_ok_and(|bytes| bytes > 0)
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let in_body = this.framing.is_in_body();
        ready!(poll_receive_into(&this.stream, cx, buf))?;
        let received = &buf.filled()[before..];
        if !received.is_empty() {
            this.framing.follow(received);
            this.state.received(&this.framing);
            // Its request may be on its way to an upstream, which must not take what came for the whole of it. A request
            // whose head is in what came is refused by its handler.
            if in_body && this.framing.is_ambiguous() {
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
        if this.state.is_unasked() {
            // An answer of the library's own to what is no request. The connection's task gives a better one.
            this.state.unanswered();
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = poll_send(&this.stream, cx, bytes);
        this.state.sent(written.is_ready());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library flushes when it has written all that there is. It may have read the next request before: where it
        // has drained a body after the answer.
        self.state.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task closes it, and may have something to say before.
        Poll::Ready(Ok(()))
    }
}
