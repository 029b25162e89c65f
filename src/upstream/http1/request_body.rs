//! The body of a request on its way from the client to the upstream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Method;
use http::header::CONTENT_LENGTH;
use http_body::Body;

use super::chunked;
use super::request_head::Framing;
use crate::base::http::header_list;
use crate::upstream::connection::UpstreamConnection;
use crate::upstream::error::RequestBodyError;
use crate::upstream::outgoing_body::OutgoingBody;
use crate::upstream::request::UpstreamRequest;
use crate::upstream::stall::Position;
use crate::upstream::trailers::RequestTrailers;

/// Whether requests with this method usually have a body.
fn expects_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

#[derive(Debug)]
pub(super) struct RequestBody {
    /// `None` when all of it is in the buffer of the connection.
    body: Option<OutgoingBody>,
    framing: Framing,
    /// Only chunks can have trailers.
    trailers: Option<RequestTrailers>,
    /// How many bytes came from the client, and the most that may come.
    taken: u64,
    most: u64,
    /// Whether there is nothing more to do: everything is sent, or the upstream accepts no more.
    over: bool,
}

impl RequestBody {
    /// Chooses the framing by the size; no `body` means that the request has none. Connection names the headers in `named`.
    pub(super) fn new(body: Option<OutgoingBody>, request: &UpstreamRequest<'_>, named: &[&[u8]]) -> Self {
        let framing = match body.as_ref().map_or(Some(0), |body| body.size_hint().exact()) {
            // Some requests state that they have no body, and those of some methods should; others need not (RFC 9110,
            // section 8.6).
            Some(0)
                if !expects_body(request.head.method) && !header_list::has(request.head.headers, &CONTENT_LENGTH) =>
            {
                Framing::None
            }
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        };
        let (rules, head) = (request.body, &request.head);
        let chunked = rules.filter(|_| framing == Framing::Chunked);
        let trailers = chunked.map(|rules| RequestTrailers::new(head, rules, named));
        Self { body, framing, trailers, taken: 0, most: rules.map_or(0, |rules| rules.max_size), over: false }
    }

    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

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
        connection.end_sending();
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
                        if let Some(rules) = &self.trailers {
                            let passing = frame.into_trailers().ok().and_then(|trailers| rules.passing(trailers));
                            chunked::encode_end(passing.iter().flatten(), &mut connection.sending);
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
