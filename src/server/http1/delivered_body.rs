//! The body of a response in HTTP/1.1. If it breaks off, the client gets what has come before the connection ends.
//!
//! When a body returns an error, the HTTP library drops everything unwritten, even the head. A client that has got nothing
//! would assume that its request was not processed, and send it again.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::server::connection_state::{ConnectionState, Flush};

/// Delays the error until everything before it is sent.
pub(super) struct DeliveredBody<B: Body> {
    body: B,
    /// Why the body has broken off, and the flush for which the error waits.
    broken: Option<(B::Error, Flush)>,
    connection: Rc<ConnectionState>,
}

impl<B: Body> DeliveredBody<B> {
    pub(super) fn new(body: B, connection: Rc<ConnectionState>) -> Self {
        Self { body, broken: None, connection }
    }
}

/// The error is never pinned.
impl<B: Body + Unpin> Unpin for DeliveredBody<B> {}

impl<B: Body<Data = Bytes> + Unpin> Body for DeliveredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, broken, connection } = self.get_mut();
        if broken.is_none() {
            let polled = Pin::new(body).poll_frame(cx);
            let Poll::Ready(Some(Err(error))) = polled else { return polled };
            *broken = Some((error, connection.flush()));
        }
        if let Some((_, flush)) = broken {
            ready!(connection.poll_flushed(*flush, cx));
        }
        Poll::Ready(broken.take().map(|(error, _)| Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
