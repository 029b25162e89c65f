//! The body of a response in HTTP/1.1, which waits while the client does not read: the HTTP library would buffer as much of it
//! as the largest head may have. If it breaks off, the client gets what has come before the connection ends.
//!
//! When a body returns an error, the HTTP library drops everything unwritten, even the head. A client that has got nothing
//! would assume that its request was not processed, and send it again.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::message_body::Messages;
use crate::server::connection_state::{ConnectionState, Flush};

/// In bytes.
const MOST_UNWRITTEN: usize = 64 << 10;

/// Returns no more data while too much is unwritten, and an error only when everything before it is sent. The task of the
/// connection polls it again when something was written.
pub(super) struct ResponseBody<B: Body> {
    body: B,
    /// What has come and does not fit.
    rest: Bytes,
    /// Why the body has broken off, and the flush for which the error waits.
    broken: Option<(B::Error, Flush)>,
    messages: Rc<Messages>,
    connection: Rc<ConnectionState>,
}

impl<B: Body<Data = Bytes> + Unpin> ResponseBody<B> {
    pub(super) fn new(body: B, messages: Rc<Messages>, connection: Rc<ConnectionState>) -> Self {
        Self { body, rest: Bytes::new(), broken: None, messages, connection }
    }

    fn poll_paced(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, rest, messages, .. } = self;
        let unwritten = messages.unwritten.get();
        let room = MOST_UNWRITTEN.saturating_sub(unwritten);
        let mut polled = match room {
            0 => Poll::Pending,
            _ if rest.is_empty() => Pin::new(body).poll_frame(cx),
            _ => Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest))))),
        };
        messages.is_full.set(room == 0);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(data) = frame.data_mut()
        {
            if data.len() > room {
                *rest = data.split_off(room);
            }
            messages.unwritten.set(unwritten + data.len());
        }
        polled
    }
}

/// The error is never pinned.
impl<B: Body + Unpin> Unpin for ResponseBody<B> {}

impl<B: Body<Data = Bytes> + Unpin> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if this.broken.is_none() {
            let polled = this.poll_paced(cx);
            let Poll::Ready(Some(Err(error))) = polled else { return polled };
            this.broken = Some((error, this.connection.flush()));
        }
        if let Some((_, flush)) = &this.broken {
            ready!(this.connection.poll_flushed(*flush, cx));
        }
        Poll::Ready(this.broken.take().map(|(error, _)| Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
