//! The body of a request in HTTP/1.1. If nobody reads on, a short rest is read, so that the client can use its connection
//! again. Otherwise the response announces that the connection ends.
//!
//! The HTTP library reads only what has come already. If there is more, it closes the connection after the response, and a
//! client that was not told so may lose its next request.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::framing_check::FramingCheck;

/// In bytes.
const MOST: usize = 64 << 10;
/// How long the response waits for the rest: clients send head and body at nearly the same time.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) framing: RefCell<FramingCheck>,
    /// The bytes of responses that the library has not written.
    pub(super) unwritten: Cell<usize>,
    /// Whether the body of a response waits until some of them are written.
    pub(super) is_full: Cell<bool>,
    /// Whether the body of the request in flight was left before all of it had come. Then it is the last request.
    has_left_body: Cell<bool>,
}

impl Messages {
    pub(super) fn is_in_body(&self) -> bool {
        self.framing.borrow().is_in_body()
    }

    /// Whether all of this body has come, so that the connection can go on although nobody reads it. The library skips the rest
    /// of a body with a length, but not several chunks.
    fn has_come(&self, body: &impl Body) -> bool {
        body.is_end_stream() || body.size_hint().exact().is_some() && !self.is_in_body()
    }

    /// Ends the body of a request that the handler has left, before this response is sent. A body on its way to an upstream is
    /// left when the response ends, which for a response without a body is at once.
    pub(super) async fn end_body<B: Body>(
        &self,
        body: Option<impl Body<Data = Bytes> + Unpin>,
        request: &Parts,
        response: &mut Response<B>,
    ) {
        // A client that waits for `100 Continue` does not send its body after a final response (RFC 9110, section 10.1.1).
        if let Some(body) = body
            && !response.headers().contains_key(CONNECTION)
            && !request.headers.contains_key(EXPECT)
            && body.size_hint().lower() <= MOST as u64
            && !self.has_come(&body)
        {
            let _ = tokio::time::timeout(LONGEST, read(body)).await;
        }
        if self.has_left_body.get() || response.body().is_end_stream() && self.is_in_body() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Up to [`MOST`] bytes.
async fn read(mut body: impl Body<Data = Bytes> + Unpin) {
    let mut left = MOST;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}

/// The body of one request. On drop it records whether the body was left.
pub(in crate::server) struct MessageBody {
    received: Incoming,
    messages: Rc<Messages>,
    is_over: bool,
}

impl MessageBody {
    pub(super) fn new(received: Incoming, messages: Rc<Messages>) -> Self {
        messages.has_left_body.set(false);
        Self { received, messages, is_over: false }
    }
}

impl Body for MessageBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = ready!(Pin::new(&mut self.received).poll_frame(cx));
        // Nothing follows trailers.
        self.is_over = polled.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers));
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.received.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.received.size_hint()
    }
}

impl Drop for MessageBody {
    fn drop(&mut self) {
        if !self.messages.has_come(self) {
            self.messages.has_left_body.set(true);
        }
    }
}
