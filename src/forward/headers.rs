//! The headers of a request on its way to an upstream, and of a response on its way back.
//!
//! RFC 9110, section 7.6.1: what belongs to one connection stays on it. RFC 9110, section 7.6.3: Via.

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

/// Headers that belong to one connection, whether Connection names them or not. `TE` and `Trailer` pass when they
/// are about trailers.
static HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

const FORWARDED: HeaderName = header::FORWARDED;
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const VIA: HeaderValue = HeaderValue::from_static("1.1 gateway");
const HTTP: HeaderValue = HeaderValue::from_static("http");

/// Where a request came from, for the upstream to know.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Who opened the connection.
    pub peer: IpAddr,
    /// Whether what the peer says of the request's origin is believed.
    pub trusted: bool,
    /// The Host header to send instead of the client's.
    pub authority: Option<&'a HeaderValue>,
}

/// Makes the client's headers the upstream's.
pub fn prepare_request(headers: &mut HeaderMap, origin: &Origin<'_>) {
    let trailers = wants_trailers(headers);
    strip(headers);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // The gateway itself says "100 Continue", when the upstream begins to take the body.
    headers.remove(header::EXPECT);

    let peer = HeaderValue::try_from(origin.peer.to_canonical().to_string());
    if origin.trusted {
        append(headers, FORWARDED_FOR, peer.ok());
        headers.entry(FORWARDED_PROTO).or_insert(HTTP);
    } else {
        // What a stranger claims about the way so far is dropped.
        headers.remove(FORWARDED);
        headers.remove(FORWARDED_FOR);
        headers.remove(FORWARDED_HOST);
        if let Ok(peer) = peer {
            headers.insert(FORWARDED_FOR, peer);
        }
        headers.insert(FORWARDED_PROTO, HTTP);
    }
    let host = match origin.authority {
        Some(authority) => headers.insert(header::HOST, authority.clone()),
        None => headers.get(header::HOST).cloned(),
    };
    if let Some(host) = host {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    append(headers, header::VIA, Some(VIA));
}

/// Makes the upstream's headers the client's.
pub fn prepare_response(headers: &mut HeaderMap) {
    strip(headers);
}

/// Adds to what the proxies before have written, in one line.
fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    let Some(value) = value else { return };
    if !headers.contains_key(&name) {
        headers.insert(name, value);
        return;
    }
    let mut lines: SmallVec<[&[u8]; 4]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
    lines.push(value.as_bytes());
    let line = HeaderValue::from_bytes(&lines.join(&b", "[..]));
    drop(lines);
    if let Ok(line) = line {
        headers.insert(name, line);
    }
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::TE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    lines.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

fn strip(headers: &mut HeaderMap) {
    let named: SmallVec<[HeaderName; 4]> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        // Neither is a client's to take away: one frames the body, the other finds the site.
        .filter(|name| *name != header::CONTENT_LENGTH && *name != header::HOST)
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lines: &[(&'static str, &'static str)], trusted: bool, authority: Option<&str>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let authority = authority.map(|authority| authority.parse().unwrap());
        let peer = "192.0.2.1".parse().unwrap();
        prepare_request(&mut headers, &Origin { peer, trusted, authority: authority.as_ref() });
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_belongs_to_a_connection_stays_on_it() {
        let lines = request(
            &[
                ("host", "a"),
                ("connection", "close, X-Private, host"),
                ("x-private", "1"),
                ("keep-alive", "5"),
                ("proxy-connection", "x"),
                ("upgrade", "h2c"),
                ("te", "gzip, Trailers"),
                ("expect", "100-continue"),
                ("accept", "*/*"),
            ],
            false,
            None,
        );
        let expected = [
            "accept: */*",
            "host: a",
            "te: trailers",
            "via: 1.1 gateway",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a",
            "x-forwarded-proto: http",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn strangers_do_not_say_where_they_come_from_and_proxies_do() {
        let said = [
            ("host", "a"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "site"),
            ("forwarded", "for=1.1.1.1"),
            ("via", "1.0 old"),
        ];
        let expected = [
            "host: up:1",
            "via: 1.0 old, 1.1 gateway",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a",
            "x-forwarded-proto: http",
        ];
        assert_eq!(request(&said, false, Some("up:1")), expected);
        let expected = [
            "forwarded: for=1.1.1.1",
            "host: up:1",
            "via: 1.0 old, 1.1 gateway",
            "x-forwarded-for: 1.1.1.1, 10.0.0.2, 192.0.2.1",
            "x-forwarded-host: site",
            "x-forwarded-proto: https",
        ];
        assert_eq!(request(&said, true, Some("up:1")), expected);
    }
}
