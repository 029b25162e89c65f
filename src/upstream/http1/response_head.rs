//! Parses the head of an upstream's response, and finds out where the body ends. Pure.

use std::time::Duration;
use std::{iter, mem};

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;

use crate::base::http::header_lines::{HeaderLine, HeaderLines, next_line};
use crate::base::http::header_rules::{Rule, is_any};
use crate::base::http::{has_no_content, spare_headers};
use crate::upstream::request_headers::MAX_NAMED;
use crate::upstream::response_rules::{BadHead, Interim, MAX_FIELDS, content_length, interim_head};

/// In bytes.
const MAX_HEAD: usize = 64 * 1024;
const KEEP_ALIVE: &str = "keep-alive";

/// How the end of a response's body is known (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// May be 0.
    Length(u64),
    Chunked,
    /// When the connection ends.
    Close,
    /// There is no body: the connection becomes a tunnel.
    Tunnel,
}

#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    /// `None` for the standard phrase.
    pub(super) reason: Option<Box<Bytes>>,
    pub(super) end: BodyEnd,
    pub(super) keep_alive: bool,
    /// How long the server keeps it without a request, if it says so.
    pub(super) kept_for: Option<Duration>,
    /// The headers that Connection names, if there may be trailers.
    pub(super) named: Box<[HeaderName]>,
}

/// Removes the head of a response from `bytes`; `None` if it is incomplete. The headers for the client replace `headers`.
/// Interim responses go to `interim`. `asked` says whether the request asks for a WebSocket, which a response may accept.
pub(super) fn parse(
    bytes: &mut BytesMut,
    method: &Method,
    asked: bool,
    interim: &mut Interim<'_>,
    headers: &mut HeaderMap,
) -> Result<Option<ResponseHead>, BadHead> {
    if headers.capacity() == 0 {
        *headers = spare_headers::take();
    } else if !headers.is_empty() {
        // They are those of the same head, which was incomplete.
        headers.clear();
    }
    loop {
        let incomplete = if bytes.len() < MAX_HEAD { Ok(None) } else { Err(BadHead::TOO_LARGE) };
        let mut rest = &bytes[..];
        let Some(StatusLine { status, reason, is_newest }) = StatusLine::read(&mut rest)? else { return incomplete };
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        let mut passing = (status.is_informational() && !switches).then(HeaderMap::new);
        let Some(mut frame) = Frame::read(&mut rest, passing.as_mut().unwrap_or(headers))? else { return incomplete };
        let length = bytes.len() - rest.len();
        if let Some(passing) = passing {
            let pass = interim.count(status)?;
            bytes.advance(length);
            if let Some(pass) = pass {
                pass(interim_head(status, passing));
            }
            continue;
        }
        if switches {
            if !(asked && frame.is_websocket) {
                return Err(BadHead::UPGRADE);
            }
            // Such a response has no length (RFC 9110, section 8.6).
            headers.remove(CONTENT_LENGTH);
        }
        let mut end = if switches { BodyEnd::Tunnel } else { frame.body_end()? };
        if has_no_content(method, status) {
            end = BodyEnd::Length(0);
        }
        let is_standard = reason.is_empty() || status.canonical_reason() == Some(reason);
        let reason = (!is_standard).then(|| Box::new(Bytes::copy_from_slice(reason.as_bytes())));
        let persists = is_newest || frame.keep_alive;
        let keep_alive = persists && !frame.close && !matches!(end, BodyEnd::Close | BodyEnd::Tunnel);
        if end != BodyEnd::Chunked {
            frame.named.clear();
        }
        let (named, kept_for) = (frame.named.into_vec().into(), frame.kept_for);
        bytes.advance(length);
        return Ok(Some(ResponseHead { status, reason, end, keep_alive, kept_for, named }));
    }
}

struct StatusLine<'a> {
    status: StatusCode,
    reason: &'a str,
    /// Whether it is HTTP/1.1.
    is_newest: bool,
}

impl<'a> StatusLine<'a> {
    /// Removes the first line of a head from `rest`; `None` if it is incomplete.
    fn read(rest: &mut &'a [u8]) -> Result<Option<Self>, BadHead> {
        // Most responses begin so.
        if let Some(after) = rest.strip_prefix(b"HTTP/1.1 200 OK\r\n") {
            *rest = after;
            return Ok(Some(Self { status: StatusCode::OK, reason: "OK", is_newest: true }));
        }
        let whole = *rest;
        let found = iter::from_fn(|| next_line(rest)).find(|line| !line.is_empty());
        // The beginning of an incomplete line may show already that this is not HTTP.
        let line = if found.is_some() { &whole[..whole.len() - rest.len()] } else { whole };
        let mut parsed = httparse::Response::new(&mut []);
        parsed.parse(line).map_err(|_| BadHead::NOT_HTTP)?;
        let (Some(code), Some(reason)) = (parsed.code, parsed.reason) else { return Ok(None) };
        let status = StatusCode::from_u16(code).map_err(|_| BadHead::NOT_HTTP)?;
        Ok(Some(Self { status, reason, is_newest: parsed.version == Some(1) }))
    }
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "five independent properties of a head")]
struct Frame {
    length: Option<HeaderValue>,
    lengths_differ: bool,
    codings: usize,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    kept_for: Option<Duration>,
    is_websocket: bool,
    named: SmallVec<[HeaderName; 1]>,
}

impl Frame {
    /// Removes the lines of a head from `rest`; `None` if they are incomplete. Those that the client gets go to `headers`.
    fn read(rest: &mut &[u8], headers: &mut HeaderMap) -> Result<Option<Self>, BadHead> {
        let mut frame = Self::default();
        let is_whole = HeaderLines::with(|lines| {
            for number in 0..=MAX_FIELDS {
                let line = lines.read(number, rest, |name, value| {
                    if frame.note(name, value) {
                        headers.append(name.clone(), value.clone());
                    }
                });
                match line {
                    HeaderLine::Field => {}
                    HeaderLine::End => return Ok(true),
                    HeaderLine::Incomplete => return Ok(false),
                    HeaderLine::Invalid => return Err(BadHead::NOT_HTTP),
                }
            }
            Err(BadHead::TOO_LARGE)
        })?;
        if frame.named.len() > MAX_NAMED {
            return Err(BadHead::TOO_LARGE);
        }
        if !frame.named.is_empty() {
            let read = mem::take(headers);
            let passing = read.iter().filter(|(name, _)| !frame.named.contains(name));
            headers.extend(passing.map(|(name, value)| (name.clone(), value.clone())));
        }
        Ok(is_whole.then_some(frame))
    }

    /// Returns whether the client gets this header, unless Connection names it.
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> bool {
        match *name {
            CONTENT_LENGTH => {
                // A repeated length is forwarded once (RFC 9110, section 8.6).
                let is_first = self.length.is_none();
                self.lengths_differ |= self.length.as_ref().is_some_and(|length| length != value);
                self.length = Some(value.clone());
                return is_first;
            }
            TRANSFER_ENCODING => {
                self.codings += 1;
                self.chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
            }
            CONNECTION if *value == KEEP_ALIVE => self.keep_alive = true,
            CONNECTION => {
                for option in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    match option {
                        _ if option.eq_ignore_ascii_case(b"close") => self.close = true,
                        _ if option.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
                        // Content-Length frames the body, so it cannot be removed.
                        _ if option.eq_ignore_ascii_case(b"content-length") => {}
                        _ => self.named.extend(HeaderName::from_bytes(option)),
                    }
                }
            }
            UPGRADE => self.is_websocket |= value.as_bytes().eq_ignore_ascii_case(b"websocket"),
            _ if !is_any(name, &[Rule::HopByHop]) => return true,
            _ if name == KEEP_ALIVE => self.kept_for = kept_for(value.as_bytes()),
            _ => {}
        }
        false
    }

    fn body_end(&self) -> Result<BodyEnd, BadHead> {
        match (self.codings, &self.length) {
            (0, None) => Ok(BodyEnd::Close),
            (0, Some(length)) if !self.lengths_differ => content_length(length.as_bytes()).map(BodyEnd::Length),
            (1, None) if self.chunked => Ok(BodyEnd::Chunked),
            _ => Err(BadHead::LENGTH),
        }
    }
}

/// What Keep-Alive says, in seconds (RFC 2068, section 19.7.1.1).
fn kept_for(value: &[u8]) -> Option<Duration> {
    let seconds = |parameter: &str| {
        let (name, value) = parameter.split_once('=')?;
        let seconds: u32 = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| Duration::from_secs(seconds.into()))
    };
    std::str::from_utf8(value).ok()?.split(',').find_map(seconds)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use http::Response;
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str, method: &Method) -> Result<Option<ResponseHead>, BadHead> {
        parse(&mut BytesMut::from(text), method, false, &mut Interim::new(None), &mut HeaderMap::new())
    }

    fn end(fields: &str) -> Result<BodyEnd, BadHead> {
        let head = head(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), &Method::GET)?;
        Ok(head.unwrap().end)
    }

    #[test]
    fn knows_where_the_body_ends() {
        assert_eq!(end("content-length: 5\r\n"), Ok(BodyEnd::Length(5)));
        assert_eq!(end("content-length: 5\r\ncontent-length: 5\r\n"), Ok(BodyEnd::Length(5)));
        assert_eq!(end("transfer-encoding: Chunked\r\n"), Ok(BodyEnd::Chunked));
        assert_eq!(end(""), Ok(BodyEnd::Close));
        for fields in [
            "content-length: 5\r\ncontent-length: 6\r\n",
            "content-length: 5, 5\r\n",
            "content-length: +5\r\n",
            "content-length: \r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            assert_eq!(end(fields), Err(BadHead::LENGTH), "{fields}");
        }
    }

    #[test]
    fn a_tunnel_begins_only_if_it_was_asked_for() {
        let switch = |fields: &str, asked| {
            let text = format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\nearly");
            let mut bytes = BytesMut::from(&*text);
            let mut headers = HeaderMap::new();
            let head = parse(&mut bytes, &Method::GET, asked, &mut Interim::new(None), &mut headers)?.unwrap();
            assert_eq!((head.end, head.keep_alive, &bytes[..]), (BodyEnd::Tunnel, false, &b"early"[..]));
            assert!(headers.get("content-length").is_none());
            Ok(headers["x-a"].clone())
        };
        let fields = "upgrade: WebSocket\r\nconnection: upgrade\r\ncontent-length: 3\r\nx-a: 1\r\n";
        assert_eq!(switch(fields, true).unwrap(), "1");
        assert_eq!(switch(fields, false), Err(BadHead::UPGRADE));
        for fields in ["", "upgrade: h2c\r\n", "upgrade: websockets\r\n"] {
            assert_eq!(switch(fields, true), Err(BadHead::UPGRADE), "{fields}");
        }
    }

    #[test]
    fn some_responses_have_no_body_whatever_they_say() {
        for (status, method) in
            [("204 No Content", Method::GET), ("304 Not Modified", Method::GET), ("200 OK", Method::HEAD)]
        {
            let mut bytes = BytesMut::from(&*format!("HTTP/1.1 {status}\r\ncontent-length: 7\r\n\r\n"));
            let mut headers = HeaderMap::new();
            let found = parse(&mut bytes, &method, false, &mut Interim::new(None), &mut headers).unwrap().unwrap();
            assert_eq!(found.end, BodyEnd::Length(0));
            assert_eq!(headers["content-length"], "7", "a HEAD tells what a GET would");
            assert!(found.keep_alive);
        }
    }

    #[test]
    fn knows_whether_the_connection_goes_on() {
        for (text, kept) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            assert_eq!(head(text, &Method::GET).unwrap().unwrap().keep_alive, kept, "{text}");
        }
    }

    #[test]
    fn servers_say_how_long_they_keep_a_connection() {
        for (line, seconds) in [
            ("timeout=5, max=100", Some(5)),
            ("max=100, Timeout = \"15\"", Some(15)),
            ("timeout=0", Some(0)),
            ("5", None),
            ("timeout=-1", None),
            ("timeout=99999999999", None),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\nkeep-alive: {line}\r\ncontent-length: 0\r\n\r\n");
            let kept = head(&text, &Method::GET).unwrap().unwrap().kept_for;
            assert_eq!(kept, seconds.map(Duration::from_secs), "{line}");
        }
    }

    #[test]
    fn headers_of_the_connection_are_left_out() {
        let text = "HTTP/1.1 200 OK\r\nconnection: x-hop, content-length\r\nx-hop: 1\r\nkeep-alive: 5\r\nupgrade: x\r\n\
                    content-length: 2\r\ncontent-length: 2\r\nset-cookie: a\r\nset-cookie: b\r\n\r\nok";
        let mut bytes = BytesMut::from(text);
        let mut headers = HeaderMap::new();
        parse(&mut bytes, &Method::GET, false, &mut Interim::new(None), &mut headers).unwrap().unwrap();
        let names: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(names, [("content-length", "2"), ("set-cookie", "a"), ("set-cookie", "b")]);
        assert_eq!(&bytes[..], b"ok");
    }

    #[test]
    fn a_head_may_come_in_pieces() {
        let text = "HTTP/1.1 200 OK\r\nx-a: 1\r\nset-cookie: a\r\nset-cookie: b\r\ncontent-length: 0\r\n\r\n";
        for cut in 0..text.len() {
            let (mut bytes, mut headers) = (BytesMut::from(&text[..cut]), HeaderMap::new());
            let mut parse =
                |bytes: &mut _| parse(bytes, &Method::GET, false, &mut Interim::new(None), &mut headers).unwrap();
            assert!(parse(&mut bytes).is_none(), "{cut}");
            bytes.extend_from_slice(&text.as_bytes()[cut..]);
            assert!(parse(&mut bytes).is_some(), "{cut}");
            assert_eq!((headers.len(), bytes.len()), (4, 0), "{cut}");
        }
    }

    #[test]
    fn interim_responses_are_left_out() {
        let text =
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(head(text, &Method::GET).unwrap().unwrap().status, 204);
        assert!(head("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.", &Method::GET).unwrap().is_none());
        assert_eq!(head("HTTP/1.1 101 Switching Protocols\r\n\r\n", &Method::GET).unwrap_err(), BadHead::UPGRADE);
    }

    #[test]
    fn interim_responses_are_passed_on() {
        let passed = RefCell::new(Vec::new());
        let pass = |head: Response<()>| passed.borrow_mut().push(head);
        let mut bytes = BytesMut::from(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\nlink: y\r\nconnection: x-hop\r\nx-hop: 1\r\n\
             keep-alive: 5\r\ncontent-length: 3\r\n\r\nHTTP/1.1 204 No Con",
        );
        let mut interim = Interim::new(Some(&pass));
        let mut headers = HeaderMap::new();
        assert!(parse(&mut bytes, &Method::GET, false, &mut interim, &mut headers).unwrap().is_none());
        let passed = passed.take();
        let [hint] = &passed[..] else { panic!("{passed:?}") };
        assert_eq!((hint.status(), hint.headers().len()), (StatusCode::EARLY_HINTS, 2));
        assert_eq!(hint.headers().get_all("link").iter().collect::<Vec<_>>(), ["x", "y"]);
        assert!(!interim.is_none());
        bytes.extend_from_slice(b"tent\r\n\r\n");
        let found = parse(&mut bytes, &Method::GET, false, &mut interim, &mut headers).unwrap().unwrap();
        assert_eq!((found.status, headers.len()), (StatusCode::NO_CONTENT, 0));
    }

    #[test]
    fn refuses_what_is_not_http() {
        for text in [
            "hello\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 99 X\r\n\r\n",
            "HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n",
        ] {
            assert_eq!(head(text, &Method::GET).unwrap_err(), BadHead::NOT_HTTP, "{text}");
        }
        let large = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD));
        assert_eq!(head(&large, &Method::GET).unwrap_err(), BadHead::TOO_LARGE);
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(head(&many, &Method::GET).unwrap_err(), BadHead::TOO_LARGE);
        let named = format!("HTTP/1.1 200 OK\r\nconnection: {}\r\n\r\n", vec!["x"; MAX_NAMED + 1].join(","));
        assert_eq!(head(&named, &Method::GET).unwrap_err(), BadHead::TOO_LARGE);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), prefix in any::<bool>()) {
            let mut text = if prefix { BytesMut::from("HTTP/1.1 200 OK\r\n") } else { BytesMut::new() };
            text.extend_from_slice(&bytes);
            let _ = parse(&mut text, &Method::GET, false, &mut Interim::new(None), &mut HeaderMap::new());
        }
    }
}
