//! The body of a response in HTTP/1.1, which waits while the client does not read. The HTTP library would buffer as much of it
//! as the largest head may have.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::message_body::Messages;

/// In bytes.
const MOST_UNWRITTEN: usize = 64 << 10;

/// Returns no more data while too much is unwritten. The task of the connection polls it again when something was written.
pub(super) struct PacedBody<B> {
    body: B,
    /// What has come and does not fit.
    rest: Bytes,
    messages: Rc<Messages>,
}

impl<B> PacedBody<B> {
    pub(super) fn new(body: B, messages: Rc<Messages>) -> Self {
        Self { body, rest: Bytes::new(), messages }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, rest, messages } = self.get_mut();
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

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
