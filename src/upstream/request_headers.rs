//! The headers that the upstream gets, in any protocol: those of the client that pass, those about the client, Via (RFC
//! 9110, section 7.6.3), and those of the route. Host is not among them, since each protocol has its own form for it.
//!
//! Forwarded (RFC 7239) says who the client is, which host it has asked for, and how. Upstreams read the client from the
//! first element, so that element must have the client that the gateway believes. What trusted proxies have written is kept if
//! it names somebody; otherwise the gateway writes the header itself.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;

use super::error::UpstreamError;
use super::header_policy::{HeaderAction, header_action};
use super::request::{ForwardedHeader, ForwardedInfo, RequestHead};
use crate::base::http::header_rules::{
    FORWARDED, FORWARDED_CLIENT_CERT, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PROTO, REAL_IP, REQUEST_ID,
    is_same_variable,
};
use crate::base::http::trace_context::{TRACEPARENT, TRACESTATE};
use crate::base::http::{header_list, via};
use crate::config::{HeaderChanges, Scheme};
use crate::net::tls::ClientCertificate;
use crate::request::identify::client::last_elements;

/// The most names that Connection may contain: as many as a request may have headers.
pub(super) const MAX_NAMED: usize = 100;

/// Headers that belong to the client's connection because Connection names them (RFC 9110, section 7.6.1), in any case.
type NamedHeaders<'a> = SmallVec<[&'a [u8]; 2]>;

/// Takes the headers of a request in the form of a protocol.
pub(super) trait HeaderSink {
    /// A header of the client, or of the route.
    fn pass(&mut self, name: &HeaderName, value: &HeaderValue);

    /// A header that the gateway writes.
    fn add(&mut self, name: &'static str, value: &[u8]);

    /// A header that the gateway writes, with the value that `write` appends.
    fn add_written(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>));
}

/// Passes each header of a request to `sink`, without those that are `named`, and with the changes of its route.
pub(super) fn each(head: &RequestHead<'_>, named: &[&[u8]], sink: &mut impl HeaderSink) {
    let own = via::entry(head.forwarded.version);
    let Some(changes) = head.changes else {
        unchanged(head.headers, named, &head.forwarded, sink);
        return sink.add("via", own);
    };
    unchanged(head.headers, named, &head.forwarded, &mut ChangedHeaders { changes, sink });
    for (name, value) in changes.set.iter().filter(|(name, _)| *name != header::HOST).chain(&changes.add) {
        sink.pass(name, value);
    }
    // Via must show loops even if the route changes it.
    if changes.replaced().any(|name| is_same_variable(name.as_str(), "via")) {
        via::entries(head.headers).for_each(|entry| sink.add("via", entry));
    }
    sink.add("via", own);
}

/// Leaves out what a route removes or replaces, in every spelling that upstreams read as the same header.
struct ChangedHeaders<'a, S> {
    changes: &'a HeaderChanges<HeaderValue>,
    sink: &'a mut S,
}

impl<S> ChangedHeaders<'_, S> {
    fn keeps(&self, name: &str) -> bool {
        !self.changes.replaced().any(|replaced| is_same_variable(replaced.as_str(), name))
    }
}

impl<S: HeaderSink> HeaderSink for ChangedHeaders<'_, S> {
    fn pass(&mut self, name: &HeaderName, value: &HeaderValue) {
        if self.keeps(name.as_str()) {
            self.sink.pass(name, value);
        }
    }

    fn add(&mut self, name: &'static str, value: &[u8]) {
        if self.keeps(name) {
            self.sink.add(name, value);
        }
    }

    fn add_written(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        if self.keeps(name) {
            self.sink.add_written(name, write);
        }
    }
}

fn unchanged(headers: &HeaderMap, named: &[&[u8]], info: &ForwardedInfo<'_>, sink: &mut impl HeaderSink) {
    let is_named = |name: &HeaderName| named.iter().any(|named| named.eq_ignore_ascii_case(name.as_str().as_bytes()));
    let (mut proto, mut host, mut forwarded_for, mut te) = (false, false, false, false);
    let mut client_host = None;
    let traceparent = info.origin.and_then(|origin| origin.traceparent());
    let trace = info.origin.and_then(|origin| origin.trace);
    let is_clients_trace = trace.is_some_and(|trace| trace.client.is_some());
    for (name, value) in headers {
        let action = header_action(name, info.trusted);
        if action == HeaderAction::Pass {
            if named.is_empty() || !is_named(name) {
                sink.pass(name, value);
            }
            continue;
        }
        let passes = action == HeaderAction::PassListed;
        match name.as_str() {
            // It is sent below, in one line with the peer's address.
            FORWARDED_FOR => {
                forwarded_for |= passes;
                continue;
            }
            // It is sent below, in one line without what the client may have written.
            FORWARDED => continue,
            // The certificate that the peer itself has shown is sent instead.
            FORWARDED_CLIENT_CERT if info.certificate.is_some() => continue,
            TRACEPARENT if is_clients_trace && traceparent.is_none() => {
                sink.pass(name, value);
                continue;
            }
            TRACESTATE if is_clients_trace => {
                sink.pass(name, value);
                continue;
            }
            FORWARDED_PROTO => proto |= passes,
            FORWARDED_HOST => host |= passes,
            "host" => client_host = Some(value).filter(|host| !host.is_empty()),
            "te" => te = true,
            _ => {}
        }
        if passes {
            sink.pass(name, value);
        }
    }
    let peer = info.peer.as_bytes();
    if forwarded_for {
        // Many upstreams read only the first line.
        let lines = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        sink.add(FORWARDED_FOR, &lines.chain([peer]).collect::<Vec<_>>().join(&b", "[..]));
    } else {
        sink.add(FORWARDED_FOR, peer);
    }
    if info.header != ForwardedHeader::default() {
        sink.add_written(FORWARDED, |value| write_forwarded(value, headers, client_host, info));
    }
    match info.client {
        None => sink.add(REAL_IP, peer),
        Some(client) => sink.add(REAL_IP, client.to_string().as_bytes()),
    }
    if !proto {
        sink.add(FORWARDED_PROTO, info.scheme.name().as_bytes());
    }
    if let Some(ClientCertificate { subject, sha256 }) = info.certificate {
        let escaped = |subject: &String| subject.replace('\\', "\\\\").replace('"', "\\\"");
        let subject = subject.as_ref().map_or(String::new(), |subject| format!(";Subject=\"{}\"", escaped(subject)));
        sink.add(FORWARDED_CLIENT_CERT, format!("Hash={sha256}{subject}").as_bytes());
    }
    if let Some(value) = client_host.filter(|_| !host) {
        sink.add(FORWARDED_HOST, value.as_bytes());
    }
    if let Some(origin) = info.origin {
        sink.add(REQUEST_ID, origin.id.as_bytes());
    }
    if let Some(parent) = traceparent {
        sink.add(TRACEPARENT, &parent);
    }
    if te && wants_trailers(headers) {
        sink.add("te", b"trailers");
    }
}

/// The error is [`UpstreamError::TooManyNamed`] if Connection has more names than a request can have headers: each name would
/// be compared with each header.
pub(super) fn named_by_connection(headers: &HeaderMap) -> Result<NamedHeaders<'_>, UpstreamError> {
    let mut named = NamedHeaders::new();
    for (index, name) in header_list::members(headers, &header::CONNECTION).enumerate() {
        if index == MAX_NAMED {
            return Err(UpstreamError::TooManyNamed);
        }
        if !name.eq_ignore_ascii_case(b"keep-alive") && !name.eq_ignore_ascii_case(b"close") {
            named.push(name);
        }
    }
    Ok(named)
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    let codings = header_list::members(headers, &header::TE);
    codings.take(MAX_NAMED).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// Appends the value of Forwarded, in one line. `host` is the client's Host header, unless it is empty.
fn write_forwarded(
    value: &mut Vec<u8>,
    headers: &HeaderMap,
    host: Option<&HeaderValue>,
    forwarded: &ForwardedInfo<'_>,
) {
    let host = host.map_or(&b""[..], HeaderValue::as_bytes);
    let ForwardedHeader { keeps, hop } = forwarded.header;
    for (index, element) in last_elements(headers, keeps).enumerate() {
        value.extend_from_slice(if index > 0 { SEPARATOR } else { b"" });
        value.extend_from_slice(element);
    }
    let Some(hop) = hop else { return };
    if keeps > 0 {
        value.extend_from_slice(SEPARATOR);
        return push_element(value, forwarded.peer, host, hop);
    }
    let listed = forwarded.trusted.then(|| header_list::members(headers, &FORWARDED_HOST_NAME).next()).flatten();
    let asked = listed.filter(|host| !host.is_empty()).unwrap_or(host);
    match forwarded.client {
        None => push_element(value, forwarded.peer, asked, forwarded.scheme),
        Some(client) => {
            push_element(value, &client.to_string(), asked, forwarded.scheme);
            value.extend_from_slice(SEPARATOR);
            push_element(value, forwarded.peer, host, hop);
        }
    }
}

const FORWARDED_HOST_NAME: HeaderName = HeaderName::from_static(FORWARDED_HOST);

const SEPARATOR: &[u8] = b", ";

/// Appends an element. An IPv6 address is in brackets, and therefore in quotes (section 6).
fn push_element(value: &mut Vec<u8>, address: &str, host: &[u8], scheme: Scheme) {
    if address.contains(':') {
        value.extend_from_slice(b"for=\"[");
        value.extend_from_slice(address.as_bytes());
        value.extend_from_slice(b"]\"");
    } else {
        value.extend_from_slice(b"for=");
        value.extend_from_slice(address.as_bytes());
    }
    if !host.is_empty() {
        value.extend_from_slice(b";host=");
        push_value(value, host);
    }
    value.extend_from_slice(b";proto=");
    value.extend_from_slice(scheme.name().as_bytes());
}

/// Appends a value, in quotes if it has anything but letters, digits, `-`, `.` and `_`: the colon of a port needs them.
fn push_value(value: &mut Vec<u8>, text: &[u8]) {
    if text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte)) {
        return value.extend_from_slice(text);
    }
    value.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            value.push(b'\\');
        }
        value.push(*byte);
    }
    value.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Version;
    use proptest::prelude::*;

    use super::*;
    use crate::base::http::request_id::RequestId;
    use crate::base::http::trace_context::{TRACEPARENT_HEADER, TraceContext};
    use crate::base::random::Random;
    use crate::request::identify::client::{client, scheme};
    use crate::upstream::request::Origin;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl HeaderSink for Lines {
        fn pass(&mut self, name: &HeaderName, value: &HeaderValue) {
            self.0.push(format!("{name}: {}", value.to_str().unwrap()));
        }

        fn add(&mut self, name: &'static str, value: &[u8]) {
            self.0.push(format!("{name}: {}", std::str::from_utf8(value).unwrap()));
        }

        fn add_written(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
            let mut value = Vec::new();
            write(&mut value);
            self.add(name, &value);
        }
    }

    fn forwarded(lines: &[(&'static str, &'static str)], trusted: bool) -> Vec<String> {
        let mut all = HeaderMap::new();
        for (name, value) in lines {
            all.append(*name, HeaderValue::from_static(value));
        }
        let client = trusted.then(|| IpAddr::from([1, 1, 1, 1]));
        let random = Random::seeded().unwrap();
        let [parent] = header_list::single_lines(&all, [&TRACEPARENT_HEADER]);
        let id = HeaderValue::from_static("r-1");
        let (id, trace) = (&RequestId::of(Some(&id), &random), TraceContext::of(parent, &random, None));
        let info = ForwardedInfo {
            peer: "192.0.2.1",
            client,
            trusted,
            version: Version::HTTP_11,
            scheme: Scheme::Http,
            header: ForwardedHeader::default(),
            certificate: None,
            origin: Some(Origin { id, trace: trace.as_ref(), spans: None }),
        };
        let mut lines = Lines::default();
        let named = named_by_connection(&all).unwrap();
        unchanged(&all, &named, &info, &mut lines);
        lines.0.sort();
        lines.0
    }

    #[test]
    fn headers_of_the_connection_are_left_out() {
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
            ("traceparent", PARENT),
        ];
        let expected = [
            "accept: */*",
            "te: trailers",
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a",
            "x-forwarded-proto: http",
            "x-real-ip: 192.0.2.1",
            "x-request-id: r-1",
        ];
        assert_eq!(forwarded(&sent, false), expected);
    }

    #[test]
    fn only_trusted_proxies_set_the_address_of_the_client() {
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
            ("x_request_id", "mine"),
            ("traceparent", PARENT),
        ];
        let expected = [
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "via: 1.0 old",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a",
            "x-forwarded-proto: http",
            "x-real-ip: 192.0.2.1",
            "x-request-id: r-1",
        ];
        assert_eq!(forwarded(&sent, false), expected);
        let expected = [
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "via: 1.0 old",
            "x-forwarded-for: 1.1.1.1, 10.0.0.2, 192.0.2.1",
            "x-forwarded-host: site",
            "x-forwarded-proto: https",
            "x-real-ip: 1.1.1.1",
            "x-request-id: r-1",
        ];
        assert_eq!(forwarded(&sent, true), expected);
    }

    #[test]
    fn the_state_of_a_trace_passes_only_beside_a_valid_parent() {
        let states = [("tracestate", "a=1"), ("tracestate", "b=2")];
        let traces =
            |lines: Vec<String>| lines.into_iter().filter(|line| line.starts_with("trace")).collect::<Vec<_>>();
        let valid: Vec<_> = [("traceparent", PARENT), ("connection", "tracestate")].into_iter().chain(states).collect();
        assert_eq!(
            traces(forwarded(&valid, false)),
            [&format!("traceparent: {PARENT}"), "tracestate: a=1", "tracestate: b=2"]
        );
        for wrong in [&[][..], &[("traceparent", "00-0-0-00")], &[("traceparent", PARENT), ("traceparent", PARENT)]] {
            let lines: Vec<_> = wrong.iter().copied().chain(states).collect();
            assert_eq!(traces(forwarded(&lines, false)), [""; 0], "{wrong:?}");
        }
    }

    #[test]
    fn connection_names_at_most_as_many_headers_as_a_request_may_have() {
        let named = |lines: &[usize]| {
            let mut headers = HeaderMap::new();
            for names in lines {
                headers.append("connection", vec!["x"; *names].join(", ").parse().unwrap());
            }
            named_by_connection(&headers).map(|names| names.len()).ok()
        };
        for (lines, names) in [(&[][..], 0), (&[1], 1), (&[100], 100), (&[50, 50], 100)] {
            assert_eq!(named(lines), Some(names), "{lines:?}");
        }
        for lines in [&[101][..], &[51, 50], &[1; 101]] {
            assert_eq!(named(lines), None, "{lines:?}");
        }
    }

    const PEER: &str = "10.0.0.1";

    /// What is written for a request with these headers, from a proxy in 10.0.0.0/8 and fd00::/8, or from another peer.
    fn written(peer: &str, lines: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let found = client(peer.parse().unwrap(), &headers, &networks());
        let info = ForwardedInfo {
            peer,
            client: Some(found.address).filter(|client| client.to_string() != peer),
            trusted: found.via_trusted,
            version: Version::HTTP_11,
            scheme: scheme(false, found, &headers),
            certificate: None,
            origin: None,
            header: ForwardedHeader { keeps: found.forwarded.kept(), hop: Some(Scheme::Http) },
        };
        let mut value = Vec::new();
        write_forwarded(&mut value, &headers, headers.get(header::HOST), &info);
        String::from_utf8(value).unwrap()
    }

    fn networks() -> [ipnet::IpNet; 2] {
        ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]
    }

    #[test]
    fn nothing_of_a_peer_that_is_not_trusted_is_in_it() {
        let forged = [("forwarded", "for=6.6.6.6"), ("x-forwarded-for", "6.6.6.6"), ("x-forwarded-host", "evil.test")];
        for (peer, host, expected) in [
            ("192.0.2.1", "a.test", "for=192.0.2.1;host=a.test;proto=http"),
            ("2001:db8::1", "a.test:81", "for=\"[2001:db8::1]\";host=\"a.test:81\";proto=http"),
            ("192.0.2.1", "[::1]:81", "for=192.0.2.1;host=\"[::1]:81\";proto=http"),
            ("192.0.2.1", "a\"\\,;b", "for=192.0.2.1;host=\"a\\\"\\\\,;b\";proto=http"),
            ("192.0.2.1", "", "for=192.0.2.1;proto=http"),
        ] {
            assert_eq!(written(peer, &[&forged[..], &[("host", host)]].concat()), expected);
        }
    }

    #[test]
    fn what_a_trusted_proxy_has_written_comes_first() {
        let host = ("host", "in.test:80");
        let own = "for=10.0.0.1;host=\"in.test:80\";proto=http";
        for (lines, expected) in [
            (&["for=1.1.1.1;proto=https;by=_a"][..], "for=1.1.1.1;proto=https;by=_a"),
            (&["for=2.2.2.2, for=1.1.1.1 ", " ", "for=\"[fd00::2]\""], "for=1.1.1.1, for=\"[fd00::2]\""),
            (&["for=unknown;host=a"], "for=unknown;host=a"),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).chain([host]).collect();
            let found = written(PEER, &lines);
            assert_eq!(found, format!("{expected}, {own}"));
        }
    }

    #[test]
    fn what_is_not_certain_is_written_anew() {
        let host = ("host", "in.test");
        let own = "for=10.0.0.1;host=in.test;proto=http";
        let by_proxy =
            [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "a.test, b")];
        let rewritten = format!("for=1.1.1.1;host=a.test;proto=https, {own}");
        assert_eq!(written(PEER, &[&by_proxy[..], &[host]].concat()), rewritten);
        // The client may have written these.
        for forwarded in ["for=1.1.1.1;host=evil.test", "host=evil.test"] {
            let lines = [&by_proxy[..], &[host, ("forwarded", forwarded)]].concat();
            assert_eq!(written(PEER, &lines), rewritten, "{forwarded}");
        }
        // Nobody knows who the client is.
        let lines = [host, ("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=2.2.2.2")];
        assert_eq!(written(PEER, &lines), format!("for=0.0.0.0;host=in.test;proto=http, {own}"));
        for (forwarded, expected) in [("for=\"1.1.1.1", own), ("proto=https", "for=10.0.0.1;host=in.test;proto=https")]
        {
            assert_eq!(written(PEER, &[host, ("forwarded", forwarded)]), expected, "{forwarded}");
        }
    }

    proptest! {
        /// Another gateway behind this one, which trusts it, finds the same client and the same scheme.
        #[test]
        fn the_next_gateway_reads_what_this_one_has_known(
            near in any::<[u8; 16]>(), far in any::<[u8; 16]>(), forms in any::<[bool; 4]>(), host in "[ -~]{0,9}",
        ) {
            let address = |bytes: [u8; 16], is_v6: bool| match is_v6 {
                true => IpAddr::from(bytes).to_canonical(),
                false => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
            };
            let [near_is_v6, far_is_v6, is_trusted, by_forwarded] = forms;
            let peer = if is_trusted { address(*b"\xfd0123456789abcde", true) } else { address(near, near_is_v6) };
            let peer = peer.to_string();
            let far = address(far, far_is_v6).to_string();
            let host = ("host", host.trim());
            let (named, proto) = (format!("for=\"{far}\";proto=https"), ("x-forwarded-proto", "https"));
            let lines = if by_forwarded { vec![host, ("forwarded", &named)] } else { vec![host, ("x-forwarded-for", &far), proto] };
            let value = written(&peer, &lines);

            let headers = |lines: &[(&'static str, &str)]| {
                let pair = |(name, value): &(&'static str, &str)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap());
                lines.iter().map(pair).collect::<HeaderMap>()
            };
            let read = |peer: &str, headers: &HeaderMap, more: Option<&str>| {
                let all: Vec<_> = networks().into_iter().chain(more.map(|own| own.parse().unwrap())).collect();
                let found = client(peer.parse().unwrap(), headers, &all);
                (found.address, scheme(false, found, headers), found.forwarded.names_node)
            };
            let (known, by, _) = read(&peer, &headers(&lines), None);
            prop_assert_eq!(read("192.0.2.99", &headers(&[("forwarded", &value)]), Some("192.0.2.99/32")), (known, by, true), "{}", value);
        }
    }
}
