//! The body of a request as it comes from the client, in any protocol.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection_state::ConnectionState;
use super::streams::Stream;

/// See the head of this file.
#[derive(Debug)]
pub struct ClientBody(Source);

#[derive(Debug)]
enum Source {
    Http1(MessageBody),
    Http2(StreamBody),
}

/// The client has broken off its body, or what it has sent is not valid.
#[derive(Debug)]
pub enum ClientBodyError {
    /// In HTTP/1.1.
    Http1(hyper::Error),
    /// In HTTP/2.
    Http2(h2::Error),
}

impl ClientBody {
    /// A body in HTTP/1.1.
    pub(super) fn http1(received: Incoming, connection: Rc<ConnectionState>) -> Self {
        Self(Source::Http1(MessageBody { received, connection, is_over: false }))
    }

    /// Whether all of it has come, so that the connection can go on although the body is not read.
    pub(super) fn has_come(&self) -> bool {
        match &self.0 {
            Source::Http1(body) => body.has_come(),
            Source::Http2(body) => body.received.is_end_stream(),
        }
    }

    /// A body on a stream of HTTP/2, with the length that its head states.
    pub(super) fn http2(received: RecvStream, stream: Rc<Stream>, length: Option<u64>) -> Self {
        Self(Source::Http2(StreamBody { received, stream, left: length, passed_on: 0 }))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        match &mut self.get_mut().0 {
            Source::Http1(body) => body.poll_frame(cx).map_err(ClientBodyError::Http1),
            Source::Http2(body) => body.poll_frame(cx).map_err(ClientBodyError::Http2),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Http1(body) => body.received.is_end_stream(),
            Source::Http2(body) => body.received.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Http1(body) => body.received.size_hint(),
            Source::Http2(body) => body.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl fmt::Display for ClientBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(error) => error.fmt(f),
            Self::Http2(error) => error.fmt(f),
        }
    }
}

/// A body in HTTP/1.1, which is followed by the next request.
#[derive(Debug)]
struct MessageBody {
    received: Incoming,
    connection: Rc<ConnectionState>,
    is_over: bool,
}

impl MessageBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = ready!(Pin::new(&mut self.received).poll_frame(cx));
        // Nothing follows trailers.
        self.is_over = polled.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers));
        Poll::Ready(polled)
    }

    /// See [`ClientBody::has_come`]. The library reads on over a body with a length, but not over several chunks.
    fn has_come(&self) -> bool {
        let has_length = self.received.size_hint().exact().is_some();
        self.is_over || self.received.is_end_stream() || has_length && !self.connection.is_in_body()
    }
}

impl Drop for MessageBody {
    fn drop(&mut self) {
        if !self.has_come() {
            self.connection.leaves_body();
        }
    }
}

/// A body in HTTP/2. The library checks that it has the length that its head states.
#[derive(Debug)]
struct StreamBody {
    received: RecvStream,
    stream: Rc<Stream>,
    /// How many bytes are still to come, if that is known.
    left: Option<u64>,
    /// How many bytes were passed on, and are not granted to the client again.
    passed_on: usize,
}

impl StreamBody {
    /// Grants window to the client again for what was passed on.
    fn release(&mut self) {
        let passed_on = std::mem::take(&mut self.passed_on);
        if passed_on > 0 {
            // If this fails, the stream has ended, and needs no window.
            let _ = self.received.flow_control().release_capacity(passed_on);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        // More is asked for when the upstream has taken what was passed on.
        self.release();
        let polled = self.received.poll_data(cx);
        if polled.is_pending() {
            self.stream.asks_for_body();
        }
        if let Some(data) = ready!(polled) {
            let data = data?;
            self.stream.receives_body();
            self.passed_on = data.len();
            self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(self.received.poll_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        // The stream may go on for long with its response, and the connection needs the window for other streams.
        self.release();
    }
}
