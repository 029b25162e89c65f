//! The request in HTTP/1.1: its head, and its body on the way from the client to the upstream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method};
use http_body::Body;

use super::chunked::{self, line};
use crate::base::http::header_list;
use crate::upstream::bound::is_credentials;
use crate::upstream::connection::UpstreamConnection;
use crate::upstream::error::RequestBodyError;
use crate::upstream::exchange::OutgoingBody;
use crate::upstream::header_policy::RequestTrailers;
use crate::upstream::request::{RequestHead, UpstreamRequest};
use crate::upstream::request_headers::{self, HeaderSink};
use crate::upstream::stall::Position;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body, and no header has to say so.
    None,
    Length(u64),
    Chunked,
}

/// Writes the head of a request without the headers that are `named` by Connection. Its Host header is that of the route,
/// else `authority`, else the client's. Returns whether one of its headers may authenticate the connection.
pub(super) fn encode(
    out: &mut Vec<u8>,
    head: &RequestHead<'_>,
    named: &[&[u8]],
    authority: Option<&HeaderValue>,
    framing: Framing,
) -> bool {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = head.host(authority) {
        line(out, "host", host.as_bytes());
    }
    let mut lines = Lines { out, has_te: false, has_credentials: false };
    request_headers::each(head, named, &mut lines);
    let has_credentials = lines.has_credentials;
    // TE belongs to one connection (RFC 9110, section 10.1.4).
    let of_connection: Option<&[u8]> = match (head.asks_for_websocket, lines.has_te) {
        (false, false) => None,
        (false, true) => Some(b"te"),
        (true, false) => Some(b"upgrade"),
        (true, true) => Some(b"upgrade, te"),
    };
    of_connection.into_iter().for_each(|options| line(out, "connection", options));
    if head.asks_for_websocket {
        line(out, "upgrade", b"websocket");
    }
    match framing {
        Framing::None => {}
        Framing::Length(length) => line(out, "content-length", itoa::Buffer::new().format(length).as_bytes()),
        Framing::Chunked => line(out, "transfer-encoding", b"chunked"),
    }
    out.extend_from_slice(b"\r\n");
    has_credentials
}

struct Lines<'a> {
    out: &'a mut Vec<u8>,
    has_te: bool,
    has_credentials: bool,
}

impl HeaderSink for Lines<'_> {
    fn pass(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.has_credentials |= is_credentials(name, value);
        line(self.out, name.as_str(), value.as_bytes());
    }

    #[expect(clippy::inline_always, reason = "where the name is known, it is copied without a call")]
    #[inline(always)]
    fn add(&mut self, name: &'static str, value: &[u8]) {
        self.has_te |= name == "te";
        line(self.out, name, value);
    }

    fn add_written(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        write(self.out);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Whether requests with this method usually have a body.
fn expects_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

pub(super) struct RequestBody {
    /// `None` when all of it is in the buffer of the connection.
    body: Option<OutgoingBody>,
    pub(super) framing: Framing,
    /// Only chunks can have trailers.
    trailers: Option<RequestTrailers>,
    /// How many bytes came from the client, and the most that may come.
    taken: u64,
    most: u64,
    /// Whether there is nothing more to do: everything is sent, or the upstream accepts no more.
    pub(super) over: bool,
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

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Version};

    use super::*;
    use crate::base::http::request_id::RequestId;
    use crate::base::http::trace_context::TraceContext;
    use crate::base::http::via;
    use crate::base::random::Random;
    use crate::upstream::request::{ForwardedInfo, Origin};

    #[test]
    fn says_where_the_body_ends() {
        for (framing, expected) in [
            (Framing::None, ""),
            (Framing::Length(0), "content-length: 0\r\n"),
            (Framing::Length(17), "content-length: 17\r\n"),
            (Framing::Chunked, "transfer-encoding: chunked\r\n"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("content-length", HeaderValue::from_static("99"));
            headers.insert("host", HeaderValue::from_static("client"));
            let id = HeaderValue::from_static("r-1");
            let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
            let line = HeaderValue::from_static(parent);
            headers.insert("traceparent", line.clone());
            let random = Random::seeded().unwrap();
            let trace = TraceContext::of(Some(&line), &random, None);
            let request = RequestHead {
                method: &Method::POST,
                target: "/a?b",
                headers: &headers,
                preserve_host: true,
                forwarded: ForwardedInfo {
                    peer: "::1",
                    origin: Some(Origin { id: &RequestId::of(Some(&id), &random), trace: trace.as_ref(), spans: None }),
                    ..ForwardedInfo::OWN
                },
                changes: None,
                asks_for_websocket: false,
            };
            for (authority, host) in [(None, "client"), (Some("up:1"), "up:1")] {
                let mut out = Vec::new();
                let authority = authority.map(HeaderValue::from_static);
                encode(&mut out, &request, &[], authority.as_ref(), framing);
                let head = format!("POST /a?b HTTP/1.1\r\nhost: {host}\r\ntraceparent: {parent}\r\n");
                let about = "x-forwarded-for: ::1\r\nx-real-ip: ::1\r\nx-forwarded-proto: http\r\n";
                let via = std::str::from_utf8(via::entry(Version::HTTP_11)).unwrap();
                let more = format!("{about}x-forwarded-host: client\r\nx-request-id: r-1\r\nvia: {via}\r\n");
                assert_eq!(String::from_utf8(out).unwrap(), format!("{head}{more}{expected}\r\n"));
            }
        }
    }
}
