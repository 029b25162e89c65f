//! The body of a request on a stream of HTTP/2, with the window that the client is granted for it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};

use super::streams::{Stream, Upload};

/// Grants window when the returned data was used. The library checks that the body has the length that its head states.
#[derive(Debug)]
pub(in crate::server) struct StreamBody {
    received: RecvStream,
    stream: Rc<Stream>,
    _upload: Upload,
    /// How many bytes are still to come, if that is known.
    left: Option<u64>,
    /// How many bytes were passed on, for which no window is granted again yet.
    passed_on: usize,
}

impl StreamBody {
    /// `length` is what the head states.
    pub(super) fn new(received: RecvStream, upload: Upload, stream: Rc<Stream>, length: Option<u64>) -> Self {
        Self { received, stream, _upload: upload, left: length, passed_on: 0 }
    }

    /// Grants window to the client again for what was passed on.
    fn release(&mut self) {
        let passed_on = std::mem::take(&mut self.passed_on);
        if passed_on > 0 {
            // If this fails, the stream has ended, and needs no window.
            let _ = self.received.flow_control().release_capacity(passed_on);
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        // The upstream has taken what was passed on when it asks for more.
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

    fn is_end_stream(&self) -> bool {
        self.received.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        // The stream may go on for long with its response, and the connection needs the window for other streams.
        self.release();
    }
}
