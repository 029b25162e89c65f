//! The head of a request in HTTP/1.1.

use http::{HeaderName, HeaderValue};

use crate::upstream::bound::is_credentials;
use crate::upstream::request::RequestHead;
use crate::upstream::request_headers::{self, HeaderSink};

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

#[expect(clippy::inline_always, reason = "where the name is known, it is copied without a call")]
#[inline(always)]
fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {

    use http::{HeaderMap, Method, Version};

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
