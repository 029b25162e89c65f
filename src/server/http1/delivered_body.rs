//! The body of a response in HTTP/1.1. If it breaks off, the client gets what has come of the response before the connection ends.
//!
//! The HTTP library drops what it has not written yet when a body returns an error, even the head. A client that has got nothing
//! would take its request for one that was not processed, and send it again.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::server::connection_state::{ConnectionState, Flush};

/// A body that delays its error until everything before it is sent.
pub(super) struct DeliveredBody<B: Body> {
    body: B,
    /// Why it breaks off, and until when that is held back.
    broken: Option<(B::Error, Flush)>,
    connection: Rc<ConnectionState>,
}

impl<B: Body> DeliveredBody<B> {
    /// The body of a response on this connection.
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
