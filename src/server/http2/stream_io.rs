//! What a client sends on a stream of HTTP/2: the body of a request, with the window that the client is granted for it, or its
//! side of a tunnel (RFC 8441, section 5), whose DATA frames in both directions are one stream of bytes.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::SendStream;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::received_bodies::ReceivedBody;
use super::streams::Stream;
use super::windows::poll_granted;

/// Grants window when the returned data was used. The library checks that the body has the length that its head states.
pub(in crate::server) struct StreamBody {
    received: ReceivedBody,
    stream: Rc<Stream>,
    /// How many bytes are still to come, if that is known.
    left: Option<u64>,
}

impl StreamBody {
    /// `length` is what the head states.
    pub(super) fn new(received: ReceivedBody, stream: Rc<Stream>, length: Option<u64>) -> Self {
        Self { received, stream, left: length }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        // The upstream has taken what was passed on when it asks for more.
        self.received.grant();
        let polled = self.received.poll_data(cx);
        if polled.is_pending() {
            self.stream.asks_for_body();
        }
        if let Some(data) = ready!(polled) {
            let data = data?;
            // The client does not wait for `100 Continue`.
            self.stream.expects_continue.set(false);
            self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(self.received.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.received.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// If this is dropped before both directions have ended, the stream is reset.
pub(super) struct StreamTunnel {
    /// `None` if the client has ended its side with the request.
    pub(super) received: Option<ReceivedBody>,
    pub(super) unread: Bytes,
    pub(super) sender: SendStream<Bytes>,
    pub(super) stream: Rc<Stream>,
}

impl AsyncRead for StreamTunnel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { received, unread, .. } = self.get_mut();
        while unread.is_empty() {
            let Some(received) = received else { return Poll::Ready(Ok(())) };
            // All that came before was used.
            received.grant();
            let Some(data) = ready!(received.poll_data(cx)) else { return Poll::Ready(Ok(())) };
            *unread = data.map_err(io::Error::other)?;
        }
        let length = unread.len().min(buf.remaining());
        buf.put_slice(&unread[..length]);
        unread.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamTunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { sender, stream, .. } = self.get_mut();
        ready!(stream.poll_room(cx));
        let granted = ready!(poll_granted(sender, bytes.len(), cx)).ok_or(io::ErrorKind::BrokenPipe)?;
        let length = granted.map_err(io::Error::other)?;
        stream.send(sender, Bytes::copy_from_slice(&bytes[..length]), false).map_err(io::Error::other)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The task of the connection sends what the library has.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().sender.send_data(Bytes::new(), true).map_err(io::Error::other))
    }
}
