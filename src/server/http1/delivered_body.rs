//! The body of a response in HTTP/1.1. If it breaks off, the client gets what has come of the response before the connection ends.
//!
//! The HTTP library drops what it has not written yet when a body returns an error, even the head. A client that has got nothing
//! would take its request for one that was not processed, and send it again.

use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::server::connection_state::{ConnectionState, Flush};

/// What a body returns when it is polled.
type Polled<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

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

    /// Takes the error that has just come, if one has, and returns it when everything before it is sent.
    fn delay_error(&mut self, polled: &mut Polled<B>, cx: &mut Context<'_>) {
        if let Poll::Ready(Some(Err(error))) = mem::replace(polled, Poll::Pending) {
            self.broken = Some((error, self.connection.flush()));
        }
        if let Some((error, _)) = self.broken.take_if(|(_, flush)| self.connection.poll_flushed(*flush, cx).is_ready())
        {
            *polled = Poll::Ready(Some(Err(error)));
        }
    }
}

/// The error is never pinned.
impl<B: Body + Unpin> Unpin for DeliveredBody<B> {}

impl<B: Body<Data = Bytes> + Unpin> Body for DeliveredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        // A frame is written to where it is returned, without a copy.
        let mut polled = if this.broken.is_none() { Pin::new(&mut this.body).poll_frame(cx) } else { Poll::Pending };
        if !matches!(polled, Poll::Ready(Some(Ok(_)) | None)) {
            this.delay_error(&mut polled, cx);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
