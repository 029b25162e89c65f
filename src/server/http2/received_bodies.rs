//! The bodies that the other side sends on the streams of one HTTP/2 connection, whether or not somebody reads them.
//!
//! h2 keeps each DATA frame that nobody has read, with several hundred bytes of its own, while windows bound only the content. So
//! after some small frames, everything that has come is taken out of h2, and small pieces are joined. Window is granted again
//! only for what a reader has taken and used, so the other side sends no more ahead. A body that is read as it comes passes
//! through without a queue.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use slab::Slab;

use super::frames::{FrameHead, kind};

/// A piece below this is copied if it has to wait, in bytes.
const SMALL: usize = 1 << 10;
/// The most bytes that are joined.
const JOINED: usize = 16 << 10;
/// After so many small frames, or one for each body if that is more, all are taken out of the library.
const MANY: usize = 128;

/// Whether a frame with this head takes more memory in the library than its content.
pub(super) fn is_small(head: FrameHead) -> bool {
    head.kind == kind::DATA && (1..SMALL).contains(&usize::try_from(head.length).unwrap_or(usize::MAX))
}

/// The bodies of one connection that somebody may still read.
#[derive(Debug, Default)]
pub struct ReceivedBodies {
    bodies: RefCell<Slab<Received>>,
    /// The small frames that have come since everything was taken out of the library.
    small: Cell<usize>,
}

impl ReceivedBodies {
    pub fn add(self: &Rc<Self>, stream: RecvStream) -> ReceivedBody {
        let received = Received { stream, waiting: Queue::default(), ungranted: 0 };
        ReceivedBody { key: self.bodies.borrow_mut().insert(received), bodies: self.clone() }
    }

    pub fn count(&self) -> usize {
        self.bodies.borrow().len()
    }

    /// The head of a frame has come.
    pub fn follow(&self, head: FrameHead) {
        self.add_small(usize::from(is_small(head)));
    }

    pub(super) fn add_small(&self, frames: usize) {
        self.small.set(self.small.get() + frames);
    }

    /// Whether [`Self::take`] has to be called before the library may get more bytes.
    pub fn is_due(&self) -> bool {
        let small = self.small.get();
        small >= MANY && small >= self.count()
    }

    /// Takes everything out of the library, if that is due; returns whether it was.
    pub fn take(&self) -> bool {
        let is_due = self.is_due();
        if is_due {
            self.small.set(0);
            self.bodies.borrow_mut().iter_mut().for_each(|(_, body)| body.take());
        }
        is_due
    }
}

/// A body in [`ReceivedBodies`], for its reader. If this is dropped, the rest of the body is dropped as it comes.
#[derive(Debug)]
pub struct ReceivedBody {
    bodies: Rc<ReceivedBodies>,
    key: usize,
}

impl ReceivedBody {
    fn with<T>(&self, call: impl FnOnce(&mut Received) -> T) -> T {
        call(&mut self.bodies.bodies.borrow_mut()[self.key])
    }

    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        self.with(|received| received.poll_data(cx))
    }

    /// Grants window again for all that [`Self::poll_data`] has returned.
    pub fn grant(&mut self) {
        self.with(|received| received.grant(received.ungranted - received.waiting.length));
    }

    /// To be called when there is no more data.
    pub fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        self.with(|received| received.stream.poll_trailers(cx))
    }

    /// Whether neither data nor trailers are to come.
    pub fn is_end_stream(&self) -> bool {
        self.with(|received| received.waiting.length == 0 && received.stream.is_end_stream())
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        let received = self.bodies.bodies.borrow_mut().try_remove(self.key);
        if let Some(mut received) = received {
            // The stream may go on for long in the other direction, and the connection needs the window for other streams.
            received.grant(received.ungranted);
        }
    }
}

#[derive(Debug)]
struct Received {
    stream: RecvStream,
    waiting: Queue,
    /// How many bytes have left the library for which no window is granted again yet.
    ungranted: usize,
}

impl Received {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if let Some(data) = self.waiting.pop() {
            return Poll::Ready(Some(Ok(data)));
        }
        let polled = self.stream.poll_data(cx);
        if let Poll::Ready(Some(Ok(data))) = &polled {
            self.ungranted += data.len();
        }
        polled
    }

    fn take(&mut self) {
        let mut unread = self.stream.flow_control().used_capacity().saturating_sub(self.ungranted);
        while unread > 0 {
            // When these bytes came, the library has woken the reader, so this replaces no waker.
            let cx = &mut Context::from_waker(Waker::noop());
            // The reader gets an error from the library after what came before it.
            let Poll::Ready(Some(Ok(data))) = self.stream.poll_data(cx) else { return };
            unread = unread.saturating_sub(data.len());
            self.ungranted += data.len();
            self.waiting.push(data);
        }
    }

    fn grant(&mut self, bytes: usize) {
        if bytes > 0 {
            self.ungranted -= bytes;
            // If this fails, the stream has ended, and needs no window.
            let _ = self.stream.flow_control().release_capacity(bytes);
        }
    }
}

/// Bytes that wait for their reader.
#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Bytes>,
    /// Small pieces that came after all others.
    joined: BytesMut,
    length: usize,
}

impl Queue {
    fn push(&mut self, data: Bytes) {
        self.length += data.len();
        let is_small = data.len() < SMALL;
        if !self.joined.is_empty() && (!is_small || self.joined.len() + data.len() > JOINED) {
            self.pieces.push_back(self.joined.split().freeze());
        }
        if is_small {
            self.joined.extend_from_slice(&data);
        } else {
            self.pieces.push_back(data);
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let joined = &mut self.joined;
        let piece = self.pieces.pop_front().or_else(|| (!joined.is_empty()).then(|| joined.split().freeze()))?;
        self.length -= piece.len();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http::Request;
    use proptest::prelude::*;
    use tokio::task::yield_now;

    use super::*;

    proptest! {
        #[test]
        fn bytes_leave_a_queue_as_they_came(steps in prop::collection::vec(prop::option::of((0..3 * SMALL, any::<u8>())), 0..200)) {
            let (mut queue, mut came, mut left) = (Queue::default(), Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Some((length, byte)) => {
                        let data = vec![byte; length];
                        came.extend_from_slice(&data);
                        queue.push(data.into());
                    }
                    None => left.extend(queue.pop().unwrap_or_default()),
                }
                prop_assert_eq!(queue.length, came.len() - left.len());
                // Of two neighbours, one is large, or both together are.
                prop_assert!(queue.pieces.len() <= 2 * queue.length / SMALL, "{} for {}", queue.pieces.len(), queue.length);
                prop_assert!(queue.joined.capacity() <= 2 * JOINED);
            }
            while let Some(piece) = queue.pop() {
                prop_assert!(!piece.is_empty());
                left.extend(piece);
            }
            prop_assert!(left == came && queue.length == 0);
        }
    }

    #[test]
    fn small_data_is_counted() {
        let counts = |kind, length| is_small(FrameHead { length, kind, ..FrameHead::default() });
        assert!(counts(kind::DATA, 1) && counts(kind::DATA, 1023));
        assert!(!counts(kind::DATA, 0) && !counts(kind::DATA, 1024) && !counts(kind::HEADERS, 5));
    }

    /// What the library has of a body, and what it waits to be granted again, in bytes.
    fn used(body: &ReceivedBody) -> usize {
        body.with(|received| received.stream.flow_control().used_capacity())
    }

    #[tokio::test]
    async fn window_is_granted_for_what_was_taken() {
        const FRAMES: usize = 1000;
        let (near, far) = tokio::io::duplex(1 << 20);
        let sent = tokio::spawn(async move {
            let (mut client, connection) = h2::client::handshake(near).await.unwrap();
            tokio::spawn(connection);
            let (response, mut sender) =
                client.send_request(Request::post("http://a/").body(()).unwrap(), false).unwrap();
            for number in 0..FRAMES {
                sender.send_data(vec![u8::try_from(number % 251).unwrap()].into(), number + 1 == FRAMES).unwrap();
                // Otherwise the library would join them.
                yield_now().await;
            }
            response.await.unwrap_err();
        });
        let mut builder = h2::server::Builder::new();
        // All frames would be too many for the library.
        let mut server = builder.data_frame_budget(256 * 600).handshake::<_, Bytes>(far).await.unwrap();
        let (request, responder) = server.accept().await.unwrap().unwrap();
        let bodies = Rc::new(ReceivedBodies::default());
        let mut body = bodies.add(request.into_body());
        assert!(!bodies.take(), "no small frame was counted");
        let mut is_complete = false;
        while !is_complete {
            poll_fn(|cx| {
                assert!(server.poll_accept(cx).is_pending());
                bodies.add_small(MANY);
                assert!(bodies.take() && !bodies.is_due());
                is_complete = body.with(|received| received.waiting.length == FRAMES);
                cx.waker().wake_by_ref();
                Poll::Ready(())
            })
            .await;
            yield_now().await;
        }
        assert_eq!((used(&body), bodies.count(), body.is_end_stream()), (FRAMES, 1, false));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(Some(data)) = body.poll_data(cx) {
            all.extend(data.unwrap());
            let left = FRAMES - all.len();
            body.grant();
            assert_eq!(used(&body), left);
        }
        assert!(all.iter().enumerate().all(|(number, byte)| usize::from(*byte) == number % 251));
        assert!(all.len() == FRAMES && body.is_end_stream());
        drop((body, responder, server));
        assert_eq!(bodies.count(), 0);
        sent.await.unwrap();
    }
}
