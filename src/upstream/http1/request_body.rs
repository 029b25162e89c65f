//! The body of a request on its way from the client to the upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::HeaderName;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body, Incoming};

use super::chunked;
use super::request_head::Framing;
use crate::identify::ambiguity::SingleSources;
use crate::upstream::connection::UpstreamConnection;
use crate::upstream::header_policy::may_trail;
use crate::upstream::request::UpstreamRequest;
use crate::upstream::stall::Position;

/// A body that is being sent.
#[derive(Debug)]
pub(super) struct RequestBody {
    /// `None` when all of it is in the buffer of the connection.
    body: Option<Incoming>,
    framing: Framing,
    trailers: Trailers,
    /// Bytes of it that came from the client, and the most that may come.
    taken: u64,
    most: u64,
    /// Whether there is nothing more to do: everything is sent, or the upstream accepts no more.
    over: bool,
}

/// Decides which trailers are forwarded.
#[derive(Debug, Default)]
struct Trailers {
    /// The sources of keys and costs: some upstreams read trailers as headers, and would use another key than was
    /// counted.
    counted: Option<Arc<SingleSources>>,
    /// The headers that Connection names, which may be trailers too (RFC 9110, section 7.6.1).
    named: Vec<HeaderName>,
}

impl Trailers {
    fn new(request: &UpstreamRequest<'_>, named: &[&[u8]]) -> Self {
        let named = named.iter().filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        Self { counted: Some(request.counted.clone()), named }
    }

    fn may_pass(&self, name: &HeaderName) -> bool {
        let is_counted = self.counted.as_ref().is_some_and(|counted| counted.has_header(name));
        may_trail(name) && !is_counted && !self.named.contains(name)
    }
}

/// Why a body cannot be sent.
#[derive(Debug)]
pub(super) enum RequestBodyError {
    /// The client has broken off.
    Client(hyper::Error),
    /// It is larger than it may be.
    TooLarge,
    /// The upstream accepts no more. It may have sent a response.
    Upstream,
}

impl RequestBody {
    /// The body of a request, framed as its size allows; `None` if the request has no body. Connection names the
    /// headers in `named`.
    pub(super) fn new(body: Option<Incoming>, request: &UpstreamRequest<'_>, named: &[&[u8]]) -> Self {
        let framing = match body.as_ref().map_or(Some(0), |body| body.size_hint().exact()) {
            // Some requests state that they have no body, others need not (RFC 9110, section 8.6).
            Some(0) if !request.headers.contains_key(CONTENT_LENGTH) => Framing::None,
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        };
        let trailers = if framing == Framing::Chunked { Trailers::new(request, named) } else { Trailers::default() };
        Self { body, framing, trailers, taken: 0, most: request.max_body_size, over: false }
    }

    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether nothing more is to be sent.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// The position of the exchange while it waits.
    pub(super) fn position(&self, connection: &UpstreamConnection) -> Position {
        let unsent = connection.unsent();
        Position { for_client: !self.over && unsent == 0, taken: self.taken, unsent }
    }

    /// Forwards what the client sends, as fast as the upstream accepts it, until it is complete.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut UpstreamConnection,
    ) -> Poll<Result<(), RequestBodyError>> {
        if self.over {
            return Poll::Ready(Ok(()));
        }
        let polled = ready!(self.poll_all(cx, connection));
        self.over = true;
        Poll::Ready(polled)
    }

    fn poll_all(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut UpstreamConnection,
    ) -> Poll<Result<(), RequestBodyError>> {
        loop {
            ready!(connection.poll_flush(cx)).map_err(|_| RequestBodyError::Upstream)?;
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
            let chunked = self.framing == Framing::Chunked;
            let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
            if let Some(Ok(frame)) = &frame {
                self.taken += frame.data_ref().map_or(0, |data| data.len() as u64);
                if self.taken > self.most {
                    return Poll::Ready(Err(RequestBodyError::TooLarge));
                }
            }
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) if chunked => {
                        chunked::encode_size(data.len(), &mut connection.sending);
                        connection.sending.extend_from_slice(&data);
                        connection.sending.extend_from_slice(b"\r\n");
                    }
                    Ok(data) => connection.sending.extend_from_slice(&data),
                    Err(frame) => {
                        if chunked {
                            let trailers = frame.trailers_ref().into_iter().flatten();
                            let passing = trailers.filter(|(name, _)| self.trailers.may_pass(name));
                            chunked::encode_end(passing, &mut connection.sending);
                        }
                        self.body = None;
                        continue;
                    }
                },
                Some(Err(error)) => return Poll::Ready(Err(RequestBodyError::Client(error))),
                None => {
                    if chunked {
                        chunked::encode_end([], &mut connection.sending);
                    }
                    self.body = None;
                    continue;
                }
            }
            // If the length is reached, this is the end. Another poll could wait for ever.
            if !chunked && body.is_end_stream() {
                self.body = None;
            }
        }
    }
}
