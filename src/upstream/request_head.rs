//! The head of a request as the upstream gets it, written straight from the client's headers.
//!
//! What passes is for [`super::header_policy`] to say. The gateway adds where the request comes from, and Via (RFC 9110, section
//! 7.6.3).

use std::io::Write as _;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use memchr::memchr_iter;
use smallvec::SmallVec;

use super::header_policy::{FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PROTO, HeaderAction, REAL_IP, header_action};

/// The most names that Connection may have: as many as a request may have headers.
pub(super) const MAX_NAMED: usize = 100;

/// Where a request came from, for the upstream to know.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedInfo<'a> {
    /// The address of who opened the connection, as text.
    pub peer: &'a str,
    /// The client's address where it is not the peer's: the peer is a proxy that is trusted.
    pub client: Option<IpAddr>,
    /// Whether what the peer says of the request's origin is believed.
    pub trusted: bool,
    /// The Host header to send instead of the client's, which must not be empty otherwise.
    pub authority: Option<&'a HeaderValue>,
}

/// How the upstream learns where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body, and nothing needs to say so.
    None,
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
}

/// Writes the head of a request for `target`, in origin form.
pub(super) fn encode(
    out: &mut Vec<u8>,
    method: &Method,
    target: &str,
    headers: &HeaderMap,
    forwarded: &ForwardedInfo<'_>,
    framing: Framing,
) {
    push(out, &[method.as_str().as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\n"]);
    if let Some(host) = forwarded.authority.or_else(|| headers.get(header::HOST)) {
        line(out, "host", host.as_bytes());
    }
    let named = if headers.contains_key(header::CONNECTION) { named_by_connection(headers) } else { SmallVec::new() };
    let is_named = |name: &HeaderName| named.iter().any(|named| named.eq_ignore_ascii_case(name.as_str().as_bytes()));
    let (mut proto, mut host, mut forwarded_for, mut te) = (false, false, false, false);
    let mut asked_for = None;
    for (name, value) in headers {
        let header_action = header_action(name, forwarded.trusted);
        if header_action == HeaderAction::Pass {
            if named.is_empty() || !is_named(name) {
                line(out, name.as_str(), value.as_bytes());
            }
            continue;
        }
        let passes = header_action == HeaderAction::PassListed;
        match name.as_str() {
            // In one line with the peer's address, below.
            FORWARDED_FOR => {
                forwarded_for |= passes;
                continue;
            }
            FORWARDED_PROTO => proto |= passes,
            FORWARDED_HOST => host |= passes,
            "host" => asked_for = Some(value).filter(|host| !host.is_empty()),
            "te" => te = true,
            _ => {}
        }
        if passes {
            line(out, name.as_str(), value.as_bytes());
        }
    }
    push(out, &[FORWARDED_FOR.as_bytes(), b": "]);
    if forwarded_for {
        // In one line: many upstreams read only the first.
        for value in headers.get_all(FORWARDED_FOR) {
            push(out, &[value.as_bytes(), b", "]);
        }
    }
    push(out, &[forwarded.peer.as_bytes(), b"\r\n"]);
    match forwarded.client {
        None => line(out, REAL_IP, forwarded.peer.as_bytes()),
        // Writing to a vector cannot fail.
        Some(client) => {
            let _ = write!(out, "{REAL_IP}: {client}\r\n");
        }
    }
    if !proto {
        line(out, FORWARDED_PROTO, b"http");
    }
    if let Some(value) = asked_for.filter(|_| !host) {
        line(out, FORWARDED_HOST, value.as_bytes());
    }
    if te && wants_trailers(headers) {
        line(out, "te", b"trailers");
    }
    match framing {
        Framing::None => {}
        Framing::Length(length) => line(out, "content-length", itoa::Buffer::new().format(length).as_bytes()),
        Framing::Chunked => line(out, "transfer-encoding", b"chunked"),
    }
    out.extend_from_slice(b"via: 1.1 gateway\r\n\r\n");
}

/// Whether Connection names more headers than a request can have. All of them would be compared with all headers.
pub(super) fn names_too_many(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::CONNECTION).iter();
    lines.map(|line| 1 + memchr_iter(b',', line.as_bytes()).count()).sum::<usize>() > MAX_NAMED
}

/// The headers that Connection keeps on this connection, in any case.
pub(super) fn named_by_connection(headers: &HeaderMap) -> SmallVec<[&[u8]; 2]> {
    let lines = headers.get_all(header::CONNECTION).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    names.filter(|name| !name.eq_ignore_ascii_case(b"keep-alive") && !name.eq_ignore_ascii_case(b"close")).collect()
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::TE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    codings.take(MAX_NAMED).any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    push(out, &[name.as_bytes(), b": ", value, b"\r\n"]);
}

fn push(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(lines: &[(&'static str, &'static str)], trusted: bool, authority: Option<&str>) -> Vec<String> {
        let headers: HeaderMap =
            lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect();
        let mut all = HeaderMap::new();
        for (name, value) in lines {
            all.append(*name, HeaderValue::from_static(value));
        }
        assert_eq!(all.keys_len(), headers.keys_len());
        let authority = authority.map(|authority| authority.parse().unwrap());
        let client = trusted.then(|| IpAddr::from([1, 1, 1, 1]));
        let forwarded = ForwardedInfo { peer: "192.0.2.1", client, trusted, authority: authority.as_ref() };
        let mut out = Vec::new();
        encode(&mut out, &Method::GET, "/a?b", &all, &forwarded, Framing::None);
        let text = String::from_utf8(out).unwrap();
        let mut lines = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n");
        assert_eq!(lines.next(), Some("GET /a?b HTTP/1.1"));
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_belongs_to_a_connection_stays_on_it() {
        let sent = [
            ("host", "a"),
            ("connection", "close, X-Private, host"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("proxy-connection", "x"),
            ("upgrade", "h2c"),
            ("te", "gzip, Trailers"),
            ("expect", "100-continue"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ];
        let expected = [
            "accept: */*",
            "host: a",
            "te: trailers",
            "via: 1.1 gateway",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a",
            "x-forwarded-proto: http",
            "x-real-ip: 192.0.2.1",
        ];
        assert_eq!(written(&sent, false, None), expected);
    }

    #[test]
    fn strangers_do_not_say_where_they_come_from_and_proxies_do() {
        let sent = [
            ("host", "a"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "site"),
            ("forwarded", "for=1.1.1.1"),
            ("x-real-ip", "3.3.3.3"),
            ("x_forwarded_for", "3.3.3.3"),
            ("via", "1.0 old"),
        ];
        let expected = [
            "host: up:1",
            "via: 1.0 old",
            "via: 1.1 gateway",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a",
            "x-forwarded-proto: http",
            "x-real-ip: 192.0.2.1",
        ];
        assert_eq!(written(&sent, false, Some("up:1")), expected);
        let expected = [
            "forwarded: for=1.1.1.1",
            "host: up:1",
            "via: 1.0 old",
            "via: 1.1 gateway",
            "x-forwarded-for: 1.1.1.1, 10.0.0.2, 192.0.2.1",
            "x-forwarded-host: site",
            "x-forwarded-proto: https",
            "x-real-ip: 1.1.1.1",
        ];
        assert_eq!(written(&sent, true, Some("up:1")), expected);
    }

    #[test]
    fn connection_may_name_as_many_as_there_can_be() {
        let named = |lines: &[usize]| {
            let mut headers = HeaderMap::new();
            for names in lines {
                headers.append("connection", vec!["x"; *names].join(", ").parse().unwrap());
            }
            names_too_many(&headers)
        };
        assert!(!named(&[]) && !named(&[1]) && !named(&[100]) && !named(&[50, 50]));
        assert!(named(&[101]) && named(&[51, 50]) && named(&[1; 101]));
    }

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
            let mut out = Vec::new();
            let forwarded = ForwardedInfo { peer: "::1", client: None, trusted: false, authority: None };
            encode(&mut out, &Method::POST, "/", &headers, &forwarded, framing);
            let head = "POST / HTTP/1.1\r\nx-forwarded-for: ::1\r\nx-real-ip: ::1\r\nx-forwarded-proto: http\r\n";
            assert_eq!(String::from_utf8(out).unwrap(), format!("{head}{expected}via: 1.1 gateway\r\n\r\n"));
        }
    }
}
