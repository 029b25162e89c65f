//! The response on a stream of HTTP/2: its head is checked, which tells where its body ends. When the body is dropped before
//! its end, the stream is reset.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Response};
use hyper::body::{Body, Frame, SizeHint};

use super::connection::OpenStream;
use super::request::RequestBody;
use crate::base::http::has_no_content;
use crate::base::http::header_rules::remove_hop_by_hop;
use crate::server::ReceivedBody;
use crate::upstream::endpoint::DestinationAddress;
use crate::upstream::error::{BodyError, RequestBodyError};
use crate::upstream::header_policy::ResponseTrailers;
use crate::upstream::response_rules::{BadHead, MAX_FIELDS, content_length};
use crate::upstream::stall::Stalled;

/// What is still to come of a body.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rest {
    /// So many bytes, if their number is known, and the end of the stream.
    Data(Option<u64>),
    Trailers,
    Over,
}

/// Completes the check of a response's head. The library has checked that it is valid in HTTP/2, but lets some hop-by-hop
/// headers pass. The error is [`BadHead`] if the response switches to another protocol, has too many headers, or the length of
/// its body can be read in two ways.
pub(super) fn check(response: &mut Response<RecvStream>, method: &Method) -> Result<Rest, BadHead> {
    if response.status().is_informational() {
        return Err(BadHead::UPGRADE);
    }
    if response.headers().len() > MAX_FIELDS {
        return Err(BadHead::TOO_LARGE);
    }
    let is_over = response.body().is_end_stream() || has_no_content(method, response.status());
    let headers = response.headers_mut();
    remove_hop_by_hop(headers);
    let length = length(headers)?;
    // The headers of the limits are added later.
    headers.reserve(4);
    Ok(if is_over { Rest::Over } else { Rest::Data(length) })
}

/// The length that the headers state. A repeated length is forwarded once (RFC 9110, section 8.6).
fn length(headers: &mut HeaderMap) -> Result<Option<u64>, BadHead> {
    let Some(first) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = content_length(first.as_bytes())?;
    if headers.get_all(CONTENT_LENGTH).iter().any(|other| other != first) {
        return Err(BadHead::LENGTH);
    }
    let first = first.clone();
    headers.insert(CONTENT_LENGTH, first);
    Ok(Some(length))
}

pub(in crate::upstream) struct ResponseBody {
    pub(super) received: ReceivedBody,
    pub(super) rest: Rest,
    /// The request's body, while it is still being sent.
    pub(super) request_body: Option<RequestBody>,
    /// Whether the client cannot get trailers after a body of a stated length, as in HTTP/1.1.
    pub(super) ends_at_length: bool,
    pub(super) trailers: ResponseTrailers,
    pub(super) stream: OpenStream,
}

impl ResponseBody {
    pub(in crate::upstream) fn server(&self) -> &DestinationAddress {
        &self.stream.connection.peer
    }

    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        let Some(request_body) = &mut self.request_body else { return Ok(()) };
        match request_body.poll(&mut self.stream, cx) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Err(RequestBodyError::Client(error))) => return Err(BodyError::Client(error)),
            Poll::Ready(Err(RequestBodyError::TooLarge)) => return Err(BodyError::TooLarge),
            // The server has sent a response without waiting for the rest, which is allowed.
            Poll::Ready(Ok(()) | Err(RequestBodyError::Upstream)) => {}
        }
        self.request_body = None;
        Ok(())
    }

    /// The next frame, or an error if one side has exceeded its time limit.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll_upload(cx)?;
        let polled = self.poll_received(cx);
        if polled.is_ready() {
            self.stream.stall().upstream_sent();
            return polled;
        }
        let position = self.request_body.as_ref().map(RequestBody::position).unwrap_or_default();
        Poll::Ready(Some(Err(match ready!(self.stream.stall().poll(cx, position)) {
            Stalled::Client(limit) => BodyError::BodyTimeout(limit),
            Stalled::Upstream(limit) => BodyError::ReadTimeout(limit),
        })))
    }

    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while let Rest::Data(left) = &mut self.rest {
            match ready!(self.received.poll_data(cx)) {
                Some(Ok(data)) => {
                    // The client takes it at once: data is polled only when the client has room for it.
                    self.received.grant();
                    if let Some(left) = left {
                        *left = left.saturating_sub(data.len() as u64);
                    }
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Some(Err(error)) => {
                    self.stream.has_ended();
                    return Poll::Ready(Some(Err(BodyError::Http2(error))));
                }
                None => self.rest = Rest::Trailers,
            }
        }
        if let Rest::Trailers = self.rest {
            let trailers = ready!(self.received.poll_trailers(cx)).map_err(BodyError::Http2)?;
            self.rest = Rest::Over;
            let passing = trailers.and_then(|trailers| self.trailers.passing(trailers));
            return Poll::Ready(passing.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        Poll::Ready(None)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if self.is_end_stream() && self.request_body.is_none() {
            let cx = &mut Context::from_waker(Waker::noop());
            // The end may be in an empty frame that nobody has polled yet.
            while let Poll::Ready(Some(Ok(data))) = self.received.poll_data(cx)
                && data.is_empty()
            {}
            if self.received.is_end_stream() { self.stream.has_ended() } else { self.stream.is_left() }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll_next(cx)
    }

    fn is_end_stream(&self) -> bool {
        match self.rest {
            Rest::Over => true,
            // Otherwise nobody would poll for the end of the stream, and the response would count as incomplete.
            Rest::Data(Some(0)) if self.ends_at_length => true,
            Rest::Data(_) | Rest::Trailers => self.received.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest {
            Rest::Data(Some(left)) => SizeHint::with_exact(left),
            Rest::Data(None) => SizeHint::default(),
            Rest::Trailers | Rest::Over => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_one_reading() {
        for (lines, expected) in [
            (&[][..], Some(None)),
            (&["5"], Some(Some(5))),
            (&["5", "5"], Some(Some(5))),
            (&["5", "6"], None),
            (&["5, 5"], None),
            (&["+5"], None),
            (&[""], None),
            (&["99999999999999999999"], None),
        ] {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| _ = headers.append(CONTENT_LENGTH, line.parse().unwrap()));
            assert_eq!(length(&mut headers).ok(), expected, "{lines:?}");
            assert!(expected.is_none() || headers.len() <= 1, "{headers:?}");
        }
    }
}
