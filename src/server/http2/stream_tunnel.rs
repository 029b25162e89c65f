//! A tunnel through a stream of HTTP/2 (RFC 8441, section 5): its DATA frames in both directions are one stream of bytes.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::send_window::poll_granted;
use super::streams::Stream;

/// If this is dropped before both directions have ended, the stream is reset.
#[derive(Debug)]
pub(super) struct StreamTunnel {
    received: RecvStream,
    unread: Bytes,
    sender: SendStream<Bytes>,
    stream: Rc<Stream>,
}

impl StreamTunnel {
    pub(super) fn new(received: RecvStream, sender: SendStream<Bytes>, stream: Rc<Stream>) -> Self {
        Self { received, unread: Bytes::new(), sender, stream }
    }
}

impl AsyncRead for StreamTunnel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { received, unread, .. } = self.get_mut();
        while unread.is_empty() {
            let Some(data) = ready!(received.poll_data(cx)) else { return Poll::Ready(Ok(())) };
            *unread = data.map_err(io::Error::other)?;
        }
        let length = unread.len().min(buf.remaining());
        buf.put_slice(&unread[..length]);
        unread.advance(length);
        // If this fails, the stream has ended, and needs no window.
        let _ = received.flow_control().release_capacity(length);
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
