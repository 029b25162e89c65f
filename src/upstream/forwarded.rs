//! The header Forwarded (RFC 7239) for upstreams: who the client is, which host it has asked for, and how.
//!
//! Upstreams read the client from the first element, so that element must have the client that the gateway believes. The header
//! of a trusted proxy is kept if it does; otherwise the gateway writes the header itself.

use http::{HeaderMap, HeaderValue, header};

use super::request::ForwardedInfo;
use crate::base::http::header_list;
use crate::base::http::header_rules::FORWARDED_HOST;
use crate::config::Scheme;

/// Appends the value of the header, in one line. `host` is the client's Host header, unless it is empty, and `hop` is the
/// scheme of the peer's connection.
pub(super) fn write(
    value: &mut Vec<u8>,
    headers: &HeaderMap,
    host: Option<&HeaderValue>,
    forwarded: &ForwardedInfo<'_>,
    hop: Scheme,
) {
    let host = host.map_or(&b""[..], HeaderValue::as_bytes);
    if forwarded.header.keeps {
        let lines = headers.get_all(header::FORWARDED).iter().map(|line| line.as_bytes().trim_ascii());
        for line in lines.filter(|line| !line.is_empty()) {
            value.extend_from_slice(line);
            value.extend_from_slice(SEPARATOR);
        }
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

const FORWARDED_HOST_NAME: http::HeaderName = http::HeaderName::from_static(FORWARDED_HOST);

const SEPARATOR: &[u8] = b", ";

/// An IPv6 address has a colon in its first five characters, or is shorter. An IPv4 address is longer and has none.
const UP_TO_COLON: usize = 5;

/// Appends an element. An IPv6 address is in brackets, and therefore in quotes (section 6).
fn push_element(value: &mut Vec<u8>, address: &str, host: &[u8], scheme: Scheme) {
    if address.as_bytes().first_chunk::<UP_TO_COLON>().is_none_or(|start| start.contains(&b':')) {
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

const QUOTES: u8 = 1;
const BACKSLASH: u8 = 2;

/// What each byte of a value needs: nothing, if it is a letter, a digit or `-`, `.` or `_`.
static NEEDS: [u8; 256] = {
    let mut needs = [QUOTES; 256];
    let mut byte = 0;
    while byte < 128_u8 {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_') {
            needs[byte as usize] = 0;
        }
        byte += 1;
    }
    needs[b'"' as usize] |= BACKSLASH;
    needs[b'\\' as usize] |= BACKSLASH;
    needs
};

/// Appends a value, in quotes if any byte needs them: the colon of a port does.
fn push_value(value: &mut Vec<u8>, text: &[u8]) {
    let needs = text.iter().fold(0, |needs, byte| needs | NEEDS[usize::from(*byte)]);
    if needs == 0 {
        return value.extend_from_slice(text);
    }
    value.push(b'"');
    if needs & BACKSLASH == 0 {
        value.extend_from_slice(text);
    } else {
        let needs_backslash = |byte: &u8| NEEDS[usize::from(*byte)] & BACKSLASH != 0;
        value.extend(text.iter().flat_map(|byte| needs_backslash(byte).then_some(b'\\').into_iter().chain([*byte])));
    }
    value.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Version;
    use proptest::prelude::*;

    use super::*;
    use crate::request::identify::client::{client, scheme};
    use crate::upstream::ForwardedHeader;

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
            header: ForwardedHeader { keeps: found.forwarded.is_to_be_kept(), hop: None },
        };
        let mut value = Vec::new();
        write(&mut value, &headers, headers.get(header::HOST), &info, Scheme::Http);
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
            (&["for=2.2.2.2, for=1.1.1.1 ", " ", "for=\"[fd00::2]\""], "for=2.2.2.2, for=1.1.1.1, for=\"[fd00::2]\""),
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
        assert_eq!(written(PEER, &lines), own);
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
