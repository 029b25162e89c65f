//! A client's stream that tells its slot when bytes come, and when they could be read in two ways.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connections::Slot;
use super::framing::Follower;
use crate::socket::{poll_receive, poll_send};

/// Room for the head of a request and a small body, as much as the HTTP library begins with.
const HEAD_ROOM: usize = 8 * 1024;

/// See the head of this file.
pub(super) type Watched = TokioIo<Noting>;

/// A stream that the HTTP library uses and its connection's task watches.
pub(super) type Shared = Rc<RefCell<TcpStream>>;

/// The stream as tokio sees it.
pub(super) struct Noting {
    stream: Shared,
    slot: Rc<Slot>,
    follower: Follower,
}

impl Noting {
    pub(super) fn wrap(stream: Shared, slot: Rc<Slot>) -> Watched {
        TokioIo::new(Self { stream, slot, follower: Follower::default() })
    }
}

/// Whether the client has gone away while its request is under way. Makes no system call while nothing has come.
///
/// The HTTP library would look by reading ahead, for which it takes a new buffer with every request.
pub(super) fn poll_gone(stream: &Shared, slot: &Slot, cx: &mut Context<'_>) -> Poll<()> {
    if !slot.is_watched() {
        return Poll::Pending;
    }
    let mut byte = [0];
    match ready!(stream.borrow().poll_peek(cx, &mut ReadBuf::new(&mut byte))) {
        Ok(0) | Err(_) => Poll::Ready(()),
        Ok(_) => {
            slot.unread();
            Poll::Pending
        }
    }
}

/// Whether the client has sent bytes that nobody has read. Asks the system, which of a new connection knows before
/// we are told.
pub(super) fn has_more(stream: &Shared) -> bool {
    SockRef::from(&*stream.borrow()).peek(&mut [MaybeUninit::uninit()]).is_ok_and(|bytes| bytes > 0)
}

impl AsyncRead for Noting {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.follower.is_in_body() {
            // Much may come, and goes straight to where it is wanted.
            ready!(Pin::new(&mut *this.stream.borrow_mut()).poll_read(cx, buf))?;
        } else {
            let mut room = [const { MaybeUninit::uninit() }; HEAD_ROOM];
            let room = &mut room[..buf.remaining().min(HEAD_ROOM)];
            ready!(poll_receive(&this.stream.borrow(), cx, room, |bytes| buf.put_slice(bytes)))?;
        }
        let received = &buf.filled()[before..];
        if !received.is_empty() {
            this.follower.follow(received);
            this.slot.received(this.follower.is_ambiguous());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Noting {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = poll_send(&self.stream.borrow(), cx, bytes);
        self.slot.sent(written.is_ready());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(cx, slices);
        self.slot.sent(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(cx)
    }
}
