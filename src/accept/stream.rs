//! A client's stream that tells its slot when bytes come, and when they could be read in two ways.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connections::Slot;
use super::framing::Follower;

/// See the head of this file.
pub(super) type Watched = TokioIo<Noting>;

/// The stream as tokio sees it.
pub(super) struct Noting {
    stream: TcpStream,
    slot: Rc<Slot>,
    follower: Follower,
}

impl Noting {
    pub(super) fn wrap(stream: TcpStream, slot: Rc<Slot>) -> Watched {
        TokioIo::new(Self { stream, slot, follower: Follower::default() })
    }
}

impl AsyncRead for Noting {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let received = &buf.filled()[before..];
        if !received.is_empty() {
            this.follower.follow(received);
            this.slot.received(this.follower.is_ambiguous());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Noting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
