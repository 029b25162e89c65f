//! A client's stream that tells its slot when bytes come, and when they could be read in two ways. A request that comes
//! again byte for byte, to be answered as before, is answered here.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use super::Handler;
use super::framing::Follower;
use super::recording::Recording;
use super::slot::Slot;
use crate::clock;
use crate::socket::{poll_receive, poll_receive_into, poll_send};

/// Room for the head of a request and a small body, as much as the HTTP library begins with.
const HEAD_ROOM: usize = 8 * 1024;

/// See the head of this file.
pub(super) type Watched<H> = TokioIo<Noting<H>>;

/// A stream that the HTTP library uses and its connection's task watches.
pub(super) type Shared = Rc<TcpStream>;

/// The stream as tokio sees it.
pub(super) struct Noting<H> {
    stream: Shared,
    slot: Rc<Slot>,
    follower: Follower,
    handler: Rc<H>,
    recording: Recording,
    /// How much of the answer that is given again has yet to go.
    rest: usize,
}

impl<H: Handler> Noting<H> {
    pub(super) fn wrap(stream: Shared, slot: Rc<Slot>, handler: Rc<H>) -> Watched<H> {
        TokioIo::new(Self {
            stream,
            slot,
            follower: Follower::default(),
            handler,
            recording: Recording::default(),
            rest: 0,
        })
    }

    /// Receives what comes, except requests that are answered as before: they are, and the next is awaited.
    fn poll_head(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut room = [const { MaybeUninit::uninit() }; HEAD_ROOM];
        let room = &mut room[..buf.remaining().min(HEAD_ROOM)];
        loop {
            let (mut again, recording) = (false, &self.recording);
            ready!(poll_receive(&self.stream, cx, room, |bytes| {
                again = recording.is_again(bytes);
                if !again {
                    buf.put_slice(bytes);
                }
            }))?;
            if !again {
                return Poll::Ready(Ok(()));
            }
            let now = clock::now();
            // Who is to leave is told so by the library.
            if self.slot.is_ending() || !self.recording.is_dated(now) || !self.handler.repeats(now) {
                buf.put_slice(self.recording.request());
                return Poll::Ready(Ok(()));
            }
            self.rest = self.recording.answer().len();
            ready!(self.poll_rest(cx))?;
        }
    }

    /// Sends what is left of an answer that is given again; mostly nothing is.
    #[inline]
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.rest > 0 {
            let answer = self.recording.answer();
            let sent = poll_send(&self.stream, cx, &answer[answer.len() - self.rest..]);
            self.slot.sent(sent.is_ready());
            self.rest -= ready!(sent)?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Is over when the client's connection has broken. If the client ends its side before that, notes it in the slot.
///
/// The runtime knows both from the events that it waits for anyhow, also while bytes lie in front that nobody reads. Of
/// what `PRIORITY` stands for, the end of what the client sends can happen; for urgent data no stream is registered.
pub(super) async fn broken(stream: &TcpStream, slot: &Slot) {
    let is_broken = |ready: io::Result<Ready>| ready.map_or(true, Ready::is_error);
    if !is_broken(stream.ready(Interest::PRIORITY | Interest::ERROR).await) {
        slot.half_closed();
        let _ = stream.ready(Interest::ERROR).await;
    }
}

/// Whether the client has sent bytes that nobody has read. Asks the system, which of a new connection knows before
/// we are told.
pub(super) fn has_more(stream: &Shared) -> bool {
    SockRef::from(&**stream).peek(&mut [MaybeUninit::uninit()]).is_ok_and(|bytes| bytes > 0)
}

impl<H: Handler> AsyncRead for Noting<H> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_rest(cx))?;
        let before = buf.filled().len();
        let in_body = this.follower.is_in_body();
        if in_body {
            // Much may come, and goes straight to where it is wanted.
            ready!(poll_receive_into(&this.stream, cx, buf))?;
        } else {
            ready!(this.poll_head(cx, buf))?;
        }
        let received = &buf.filled()[before..];
        if !received.is_empty() {
            let whole = this.follower.follow(received);
            this.recording.received(received, whole);
            this.slot.received(&this.follower, this.recording.is_on());
            // Its request may be on its way to an upstream, which must not take what came for the whole of it. A request
            // whose head is in what came is refused by its handler.
            if in_body && this.follower.is_ambiguous() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the body can be read in two ways",
                )));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<H: Handler> AsyncWrite for Noting<H> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // The library answers what it has read, and it reads nothing before the rest is out.
        debug_assert_eq!(this.rest, 0, "two answers at once");
        if this.slot.is_unasked() {
            // An answer of the library's own to what is no request. The connection's task gives a better one.
            this.slot.unanswered();
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = poll_send(&this.stream, cx, bytes);
        let length = if let Poll::Ready(Ok(length)) = written { length } else { 0 };
        this.recording.sent(&bytes[..length]);
        this.slot.sent(written.is_ready());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_rest(cx))?;
        // The library flushes when it has written all that there is. It may have read the next request before: where it
        // has drained a body after the answer.
        this.slot.flushed();
        if let Some(may_repeat) = this.slot.may_repeat() {
            this.recording.answered(may_repeat);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task closes it, and may have something to say before.
        Poll::Ready(Ok(()))
    }
}
