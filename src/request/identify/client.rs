//! The address of the client and the scheme of its request: those of the connection, or those that trusted proxies report in
//! X-Forwarded-For and the like, or in Forwarded (RFC 7239). In it each proxy on the way states from whom it got the
//! request.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::{HeaderMap, header};
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::base::http::header_rules::{FORWARDED_FOR, FORWARDED_PROTO};
use crate::config::{Scheme, is_in};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// 0.0.0.0 if the client is unknown, because a client that makes a proxy report two clients must not use up the
    /// quota of the proxy.
    pub address: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub via_trusted: bool,
    /// The two clients that the trusted proxy reports; `None` unless they contradict each other.
    pub contradictory: Option<[IpAddr; 2]>,
    pub forwarded: Reported,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The scheme of the client's request, if the header states it.
    pub scheme: Option<Scheme>,
    /// Whether the header is valid and names the node from which a proxy got the request.
    pub names_node: bool,
    /// How many elements trusted proxies have written. They are the last ones.
    written: usize,
    /// Whether X-Forwarded-For is missing. A proxy that writes it may pass on Forwarded as its client wrote that header.
    pub is_alone: bool,
}

/// Counts all requests whose client is unknown. No machine has this address.
const CONTRADICTED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Client {
    /// A client that has connected itself, or whose peer does not speak for it.
    pub fn of_peer(address: IpAddr) -> Self {
        Self { address, via_trusted: false, contradictory: None, forwarded: Reported::default() }
    }
}

impl Reported {
    /// How many of the last elements an upstream may get: those that proxies have written, if every line is valid.
    pub fn kept(self) -> usize {
        if self.names_node && self.is_alone { self.written } else { 0 }
    }
}

/// The scheme that a trusted proxy reports, otherwise that of the connection. If X-Forwarded-Proto and Forwarded name
/// different schemes, neither is used, as with addresses: see [`client`].
pub fn scheme(uses_tls: bool, client: Client, headers: &HeaderMap) -> Scheme {
    let listed = if client.via_trusted { headers.get(FORWARDED_PROTO) } else { None };
    // The first of several proxies has written the first value.
    let first = listed.and_then(|value| value.as_bytes().split(|byte| *byte == b',').next());
    let reported = match (first.and_then(parse_scheme), client.forwarded) {
        (Some(listed), Reported { scheme: Some(scheme), .. }) if listed != scheme => None,
        (None, Reported { scheme, is_alone: true, .. }) => scheme,
        (listed, _) => listed,
    };
    reported.unwrap_or(if uses_tls { Scheme::Https } else { Scheme::Http })
}

/// Some proxies name WebSocket's own schemes (RFC 6455, section 3).
fn parse_scheme(text: &[u8]) -> Option<Scheme> {
    let is_any = |scheme: &[u8], names: &[&str]| names.iter().any(|name| scheme.eq_ignore_ascii_case(name.as_bytes()));
    match text.trim_ascii() {
        scheme if is_any(scheme, &["https", "wss"]) => Some(Scheme::Https),
        scheme if is_any(scheme, &["http", "ws"]) => Some(Scheme::Http),
        _ => None,
    }
}

/// Finds the client behind `peer`. X-Forwarded-For and Forwarded are used only if the peer is a trusted proxy. They are read
/// from the right: the first address that is not a trusted proxy's is the client's, since the client could have written
/// everything to the left of it. An entry that is not an address ends the search at the last known proxy.
///
/// Most proxies write only one of the two headers and pass on the other as the client has sent it. The gateway cannot know
/// which one, so if they name different clients, neither is used, and all such requests are counted together.
pub fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Client {
    let peer = peer.to_canonical();
    let is_trusted = |address| is_in(address, trusted);
    if !is_trusted(peer) {
        return Client::of_peer(peer);
    }
    let lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
    let entries = lines.into_iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let entries = entries.filter(|entry| !entry.trim_ascii().is_empty());
    let listed = farthest(peer, entries.map(parse_address), is_trusted).map(|(address, _)| address);

    let forwarded = Forwarded::read(headers);
    let nodes =
        forwarded.elements.iter().rev().map(|element| parse_node(str::from_utf8(element.node.as_deref()?).ok()?));
    let found = farthest(peer, nodes, is_trusted);
    // The last element that a trusted proxy has written. The client could have written what is to the left of it.
    let scheme =
        found.and_then(|(_, depth)| parse_scheme(forwarded.elements.iter().rev().nth(depth)?.proto.as_deref()?));
    let named = found.map(|(address, _)| address).filter(|_| forwarded.has_nodes());
    let contradictory = listed.zip(named).filter(|(listed, named)| listed != named).map(<[_; 2]>::from);
    let address = if contradictory.is_some() { CONTRADICTED } else { listed.or(named).unwrap_or(peer) };
    let names_node = named.is_some() && !forwarded.is_broken;
    let written = found.map_or(0, |(_, depth)| depth + 1);
    let forwarded = Reported { scheme, names_node, written, is_alone: listed.is_none() };
    Client { address, via_trusted: true, contradictory, forwarded }
}

/// The last elements of Forwarded, as they are written.
pub fn last_elements(headers: &HeaderMap, count: usize) -> impl Iterator<Item = &[u8]> {
    let elements = Forwarded::read(headers).elements;
    let others = elements.len().saturating_sub(count);
    elements.into_iter().skip(others).map(|element| element.text)
}

/// The first of these addresses that is not a trusted proxy's, otherwise the last known one, and the number of entries before
/// the last one that was read. `None` if there are none.
fn farthest(
    peer: IpAddr,
    named: impl Iterator<Item = Option<IpAddr>>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<(IpAddr, usize)> {
    let mut farthest = None;
    for (depth, named) in named.enumerate() {
        let known = farthest.map_or(peer, |(address, _)| address);
        farthest = Some((named.unwrap_or(known), depth));
        if !named.is_some_and(&is_trusted) {
            break;
        }
    }
    farthest
}

/// Parses an address, with or without a port, brackets or quotes.
pub fn parse_address(entry: &[u8]) -> Option<IpAddr> {
    parse_node(str::from_utf8(entry).ok()?.trim().trim_matches('"'))
}

/// Parses an address, with or without a port or brackets. A proxy may hide the port behind a name that begins with an underscore
/// (RFC 7239, section 6.3).
fn parse_node(text: &str) -> Option<IpAddr> {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let hidden = text.trim().split_once(":_").filter(|(_, port)| !port.is_empty() && is_name(port));
    let text = hidden.map_or(text.trim(), |(address, _)| address);
    let address = text.parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    address.or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

/// The element of one proxy, without quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Element<'a> {
    text: &'a [u8],
    /// `for`: the node from which the proxy got the request.
    node: Option<Cow<'a, [u8]>>,
    /// `proto`: the scheme of that request.
    proto: Option<Cow<'a, [u8]>>,
}

/// The elements of all proxies, in the order of the header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Forwarded<'a> {
    /// An invalid line is one element with an empty node, because a client may have written any part of it.
    elements: SmallVec<[Element<'a>; 4]>,
    is_broken: bool,
}

impl<'a> Forwarded<'a> {
    fn read(headers: &'a HeaderMap) -> Self {
        let mut all = Self::default();
        for line in headers.get_all(header::FORWARDED) {
            match elements(line.as_bytes()) {
                Some(elements) => all.elements.extend(elements),
                None => {
                    all.elements.push(Element { node: Some(Cow::default()), ..Element::default() });
                    all.is_broken = true;
                }
            }
        }
        all
    }

    /// Whether any proxy names a node. Some report only a scheme or a host.
    fn has_nodes(&self) -> bool {
        self.elements.iter().any(|element| element.node.is_some())
    }
}

/// The elements of a line (section 4); `None` if the line is invalid. Values that need quotes are accepted without, since
/// many proxies write IPv6 addresses and ports that way.
fn elements(line: &[u8]) -> Option<SmallVec<[Element<'_>; 4]>> {
    let mut elements = SmallVec::new();
    let mut rest = line;
    loop {
        let (mut element, mut is_empty) = (Element::default(), true);
        let written = rest;
        loop {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|byte| !is_of_name(*byte)).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            if !name.is_empty() {
                let (value, after) = value(after.strip_prefix(b"=")?)?;
                let place = match name {
                    name if name.eq_ignore_ascii_case(b"for") => Some(&mut element.node),
                    name if name.eq_ignore_ascii_case(b"proto") => Some(&mut element.proto),
                    _ => None,
                };
                // An empty value names nothing, and a repeated parameter contradicts the first.
                if place.is_some_and(|place| value.is_empty() || place.replace(value).is_some()) {
                    return None;
                }
                is_empty = false;
                rest = after.trim_ascii_start();
            }
            match rest.strip_prefix(b";") {
                Some(after) => rest = after,
                None => break,
            }
        }
        if !is_empty {
            element.text = written[..written.len() - rest.len()].trim_ascii();
            elements.push(element);
        }
        match rest.split_first() {
            None => return Some(elements),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// A value, without its quotes and the backslashes of its quoted pairs (RFC 9110, section 5.6.4), and the rest of the text.
fn value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| b"\",; \t".contains(byte)).unwrap_or(text.len());
        let (value, after) = text.split_at(end);
        return (end > 0).then(|| (value.into(), after));
    };
    let mut is_escaped = false;
    let end = quoted.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })?;
    let (value, after) = quoted.split_at(end);
    let mut begins_pair = false;
    let is_content = |byte: &u8| {
        begins_pair = *byte == b'\\' && !begins_pair;
        !begins_pair
    };
    let value = match value.contains(&b'\\') {
        true => Cow::Owned(value.iter().copied().filter(is_content).collect()),
        false => value.into(),
    };
    Some((value, after.strip_prefix(b"\"")?))
}

/// Whether a parameter name, which is a token (RFC 9110, section 5.6.2), can contain this byte.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn address(peer: &str, lines: &[&[u8]]) -> String {
        address_by_both(peer, lines, &[])
    }

    fn address_by_both(peer: &str, lines: &[&[u8]], forwarded: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        }
        for line in forwarded {
            headers.append(header::FORWARDED, HeaderValue::from_str(line).unwrap());
        }
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        client(peer.parse().unwrap(), &headers, &trusted).address.to_string()
    }

    #[test]
    fn untrusted_peers_are_not_believed() {
        assert_eq!(address("192.0.2.1", &[b"198.51.100.7"]), "192.0.2.1");
        assert_eq!(address("::ffff:192.0.2.1", &[b"198.51.100.7"]), "192.0.2.1");
    }

    #[test]
    fn the_rightmost_untrusted_address_is_the_client() {
        assert_eq!(address("10.0.0.1", &[b"198.51.100.7"]), "198.51.100.7");
        assert_eq!(address("10.0.0.1", &[b"1.1.1.1, 198.51.100.7, 10.2.3.4"]), "198.51.100.7");
        assert_eq!(address("10.0.0.1", &[b"1.1.1.1", b"198.51.100.7", b"10.2.3.4,10.0.0.9"]), "198.51.100.7");
        assert_eq!(address("::ffff:10.0.0.1", &[b"\"[2001:db8::1]:443\", fd00::2"]), "2001:db8::1");
        assert_eq!(address("10.0.0.1", &[b"198.51.100.7:5000"]), "198.51.100.7");
    }

    #[test]
    fn without_an_untrusted_address_it_is_the_farthest_known_proxy() {
        assert_eq!(address("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(address("10.0.0.1", &[b"", b" , "]), "10.0.0.1");
        assert_eq!(address("10.0.0.1", &[b"10.9.9.9, 10.0.0.2"]), "10.9.9.9");
        assert_eq!(address("10.0.0.1", &[b"1.1.1.1, unknown, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(address("10.0.0.1", &[b"1.1.1.1, \xff\xfe"]), "10.0.0.1");
    }

    #[test]
    fn forwarded_names_the_client_as_x_forwarded_for_does() {
        let by_forwarded = |lines: &[&str]| address_by_both("10.0.0.1", &[], lines);
        assert_eq!(by_forwarded(&["for=1.1.1.1, for=198.51.100.7;proto=https, for=10.2.3.4"]), "198.51.100.7");
        assert_eq!(by_forwarded(&["for=1.1.1.1", "For=\"[2001:db8::1]:443\"", "for=\"[fd00::2]\""]), "2001:db8::1");
        assert_eq!(by_forwarded(&["for=10.9.9.9, for=10.0.0.2"]), "10.9.9.9");
        for hidden in
            ["\"198.51.100.7:_x-1\"", "\"198.51.\\100.7\\:80\"", "\"[::ffff:198.51.100.7]:_.\"", "198.51.100.7:_x"]
        {
            assert_eq!(
                by_forwarded(&[&format!("for=1.1.1.1, for={hidden}, for=10.0.0.2")]),
                "198.51.100.7",
                "{hidden}"
            );
        }
        for unknown in [
            "unknown",
            "_hidden",
            "\"_b:80\"",
            "a.test",
            "\"1.1.1.1\\\"\"",
            "\"1.1.1.1:_\"",
            "\"1.1.1.1:_a:_b\"",
            "\"1.1.1.1\\\\\"",
        ] {
            assert_eq!(by_forwarded(&[&format!("for=1.1.1.1, for={unknown}, for=10.0.0.2")]), "10.0.0.2");
        }
        assert_eq!(by_forwarded(&["for=1.1.1.1, proto=https"]), "10.0.0.1", "the nearest proxy names nobody");
        assert_eq!(address_by_both("192.0.2.1", &[], &["for=1.1.1.1"]), "192.0.2.1");
    }

    fn scheme_by(listed: &[&str], forwarded: &[&str]) -> Scheme {
        let mut headers = HeaderMap::new();
        for line in listed {
            headers.append(FORWARDED_PROTO, HeaderValue::from_str(line).unwrap());
        }
        for line in forwarded {
            headers.append(header::FORWARDED, HeaderValue::from_str(line).unwrap());
        }
        let client = client(IpAddr::from([10, 0, 0, 1]), &headers, &["10.0.0.0/8".parse().unwrap()]);
        scheme(false, client, &headers)
    }

    #[test]
    fn forwarded_names_the_scheme_that_the_client_has_used() {
        for (line, expected) in [
            ("proto=https", Scheme::Https),
            ("proto=\"HTTPS\"", Scheme::Https),
            ("for=1.1.1.1;proto=https", Scheme::Https),
            ("for=unknown;proto=https", Scheme::Https),
            ("for=1.1.1.1;proto=https, for=10.0.0.2;proto=http", Scheme::Https),
            ("for=1.1.1.1;proto=http, for=10.0.0.2;proto=https", Scheme::Http),
            ("for=1.1.1.1, for=10.0.0.2;proto=https", Scheme::Http),
            // The client could have written what is to the left of its address.
            ("proto=https, for=1.1.1.1;proto=http", Scheme::Http),
            ("for=2.2.2.2;proto=https, for=1.1.1.1", Scheme::Http),
            ("for=2.2.2.2;proto=https, for=unknown", Scheme::Http),
            ("proto=https, proto=http", Scheme::Http),
            ("proto=https, host=a", Scheme::Http),
            ("for=1.1.1.1;proto=wss", Scheme::Https),
            ("for=1.1.1.1;proto=quic", Scheme::Http),
            ("for=1.1.1.1;proto=https;proto=https", Scheme::Http),
            ("for=1.1.1.1;proto=\"https", Scheme::Http),
        ] {
            assert_eq!(scheme_by(&[], &[line]), expected, "{line}");
        }
        assert_eq!(scheme_by(&[], &["for=1.1.1.1;proto=http", "for=10.0.0.2;proto=https, proto=http"]), Scheme::Http);
        assert_eq!(scheme_by(&[], &["for=1.1.1.1;proto=https", "for=10.0.0.2"]), Scheme::Https);
    }

    #[test]
    fn two_headers_that_name_different_schemes_are_both_ignored() {
        let uses_tls = |uses_tls, listed: &str, forwarded: &str| {
            let mut headers = HeaderMap::new();
            headers.append(FORWARDED_PROTO, HeaderValue::from_str(listed).unwrap());
            headers.append(header::FORWARDED, HeaderValue::from_str(forwarded).unwrap());
            scheme(uses_tls, client(IpAddr::from([10, 0, 0, 1]), &headers, &["10.0.0.0/8".parse().unwrap()]), &headers)
        };
        for (listed, forwarded, over_plain, over_tls) in [
            ("https", "for=1.1.1.1;proto=https", Scheme::Https, Scheme::Https),
            ("http", "for=1.1.1.1;proto=http", Scheme::Http, Scheme::Http),
            ("https", "for=1.1.1.1;proto=http", Scheme::Http, Scheme::Https),
            ("http", "proto=https", Scheme::Http, Scheme::Https),
            ("https", "for=1.1.1.1", Scheme::Https, Scheme::Https),
            ("https", "for=1.1.1.1;proto=wss", Scheme::Https, Scheme::Https),
            ("wss", "for=1.1.1.1;proto=http", Scheme::Http, Scheme::Https),
            ("WSS", "for=1.1.1.1", Scheme::Https, Scheme::Https),
            ("ws", "for=1.1.1.1;proto=ws", Scheme::Http, Scheme::Http),
            ("ftp", "for=1.1.1.1", Scheme::Http, Scheme::Https),
        ] {
            let found = [false, true].map(|tls| uses_tls(tls, listed, forwarded));
            assert_eq!(found, [over_plain, over_tls], "{listed} and {forwarded}");
        }
    }

    #[test]
    fn beside_x_forwarded_for_the_client_may_have_written_forwarded() {
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_FOR, HeaderValue::from_static("1.1.1.1"));
        let mut found = |forwarded: &'static str| {
            headers.insert(header::FORWARDED, HeaderValue::from_static(forwarded));
            let client = client(IpAddr::from([10, 0, 0, 1]), &headers, &["10.0.0.0/8".parse().unwrap()]);
            assert!(!client.forwarded.is_alone);
            (scheme(false, client, &headers), client.forwarded.names_node)
        };
        assert_eq!(found("for=1.1.1.1;proto=https"), (Scheme::Http, true), "it knows its own address");
        assert_eq!(found("for=unknown;proto=https"), (Scheme::Http, true));
        assert_eq!(found("proto=https"), (Scheme::Http, false));
        assert_eq!(found("for=\"x, for=1.1.1.1;proto=https"), (Scheme::Http, false));
    }

    #[test]
    fn two_headers_that_name_different_clients_are_both_ignored() {
        let both = |listed: &str, forwarded: &str| address_by_both("10.0.0.1", &[listed.as_bytes()], &[forwarded]);
        assert_eq!(both("1.1.1.1, 198.51.100.7", "for=\"198.51.100.7:80\""), "198.51.100.7");
        assert_eq!(both("198.51.100.7", "proto=https"), "198.51.100.7", "it names nobody");
        assert_eq!(both("", "for=198.51.100.7"), "198.51.100.7");
        for wrong in ["for=1.1.1.1", "for=unknown", "for=\"198.51.100.7", "198.51.100.7", "for=10.0.0.2"] {
            assert_eq!(both("198.51.100.7", wrong), "0.0.0.0", "{wrong}");
        }
        assert_eq!(both("unknown", "for=198.51.100.7"), "0.0.0.0");
    }

    #[test]
    fn both_contradictory_clients_are_known() {
        let contradictory = |listed: &str, forwarded: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED_FOR, listed.parse().unwrap());
            headers.insert(header::FORWARDED, HeaderValue::from_static(forwarded));
            let found = client(IpAddr::from([10, 0, 0, 1]), &headers, &["10.0.0.0/8".parse().unwrap()]);
            found.contradictory.map(|both| both.map(|address| address.to_string()))
        };
        let both = |listed: &str, forwarded: &str| Some([listed.to_owned(), forwarded.to_owned()]);
        assert_eq!(contradictory("1.1.1.1", "for=2.2.2.2"), both("1.1.1.1", "2.2.2.2"));
        assert_eq!(
            contradictory("1.1.1.1, 10.0.0.2", "for=3.3.3.3, for=\"[2001:db8::1]:1\""),
            both("1.1.1.1", "2001:db8::1")
        );
        assert_eq!(contradictory("1.1.1.1", "for=unknown"), both("1.1.1.1", "10.0.0.1"));
        assert_eq!(contradictory("1.1.1.1", "for=1.1.1.1"), None);
        assert_eq!(contradictory("1.1.1.1", "proto=https"), None);
    }

    #[test]
    fn what_a_client_has_written_before_the_elements_of_proxies_is_not_kept() {
        let kept = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::FORWARDED, HeaderValue::from_str(line).unwrap());
            }
            let found = client(IpAddr::from([10, 0, 0, 1]), &headers, &["10.0.0.0/8".parse().unwrap()]);
            let kept = last_elements(&headers, found.forwarded.kept()).map(String::from_utf8_lossy);
            kept.map(Cow::into_owned).collect::<Vec<_>>()
        };
        let by_proxies = ["for=1.1.1.1; Host=\"a,b\"", "for=10.0.0.2;proto=https"];
        let line = by_proxies.join(" ,, ");
        assert_eq!(kept(&[&line]), by_proxies);
        for forged in
            ["for=6.6.6.6;host=evil.test", "for=6.6.6.6, for=10.0.0.3", "host=\"for=\\\"x, \";for=_x,", "proto=https"]
        {
            assert_eq!(kept(&[&format!("{forged}, {line}")]), by_proxies, "{forged}");
            assert_eq!(kept(&[forged, by_proxies[0], by_proxies[1]]), by_proxies, "{forged}");
        }
        assert_eq!(
            kept(&["for=10.0.0.3", " ", "for=10.0.0.2 ;"]),
            ["for=10.0.0.3", "for=10.0.0.2 ;"],
            "all are proxies"
        );
        assert_eq!(kept(&["for=6.6.6.6, for=unknown;host=a", "for=10.0.0.2"]), ["for=unknown;host=a", "for=10.0.0.2"]);
        assert_eq!(kept(&["for=6.6.6.6, proto=https"]), ["proto=https"]);
        assert_eq!(kept(&["for=\"6.6.6.6, for=1.1.1.1"]), [""; 0]);
    }

    fn read(lines: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::FORWARDED, HeaderValue::from_str(line).unwrap());
        }
        let text = |part: Option<&Cow<'_, [u8]>>| {
            part.map_or("-".to_owned(), |part| String::from_utf8_lossy(part).into_owned())
        };
        let all = Forwarded::read(&headers);
        assert_eq!(all.is_broken, all.elements.iter().any(|element| element.node.as_deref() == Some(b"")));
        let schemes = |element: &Element<'_>| {
            element.proto.as_ref().map_or(String::new(), |proto| format!(" {}", text(Some(proto))))
        };
        all.elements.iter().rev().map(|element| text(element.node.as_ref()) + &schemes(element)).collect()
    }

    #[test]
    fn the_nearest_node_comes_first() {
        assert_eq!(read(&["for=192.0.2.60;proto=http;by=203.0.113.43"]), ["192.0.2.60 http"]);
        assert_eq!(
            read(&["for=192.0.2.43, FOR=\"[2001:db8:cafe::17]:4711\""]),
            ["[2001:db8:cafe::17]:4711", "192.0.2.43"]
        );
        assert_eq!(read(&["for=a,for=b", "For=c"]), ["c", "b", "a"]);
        assert_eq!(
            read(&["host=\"a, for=x;\\\"\";for=b ; Proto=\"http\" ,, ;,for=2001:db8::1"]),
            ["2001:db8::1", "b http"]
        );
        assert_eq!(read(&["for=a, proto=https"]), ["- https", "a"]);
    }

    #[test]
    fn a_header_may_name_no_node() {
        for (lines, expected) in
            [(&[][..], &[][..]), (&[""], &[]), (&[" , ;"], &[]), (&["proto=https;host=a", "by=b"], &["-", "- https"])]
        {
            assert_eq!(read(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_valid_names_nobody_who_can_be_known() {
        for line in [
            "192.0.2.1",
            "for",
            "for=",
            "for=\"a",
            "for=\"\"",
            "for=a;proto=\"\"",
            "for=a b",
            "for=a;for=b",
            "for=a;proto=http;Proto=https",
            "for =a",
            "for=\"a\"b",
            "for=a\"",
            "=a",
            "for=a:b=c@/,\"",
        ] {
            assert_eq!(read(&[line]), [""], "{line}");
            assert_eq!(read(&["for=a", line, "for=c"]), ["c", "", "a"], "{line}");
        }
    }

    proptest! {
        /// A proxy appends its element to the client's line.
        #[test]
        fn nothing_that_a_client_writes_replaces_what_a_proxy_appends(
            written in "[ -~]{0,12}(for=|\"|\\\\|,|;){0,4}[a-z\"\\\\,;=]{0,6}",
            appended in prop::sample::select(vec!["192.0.2.1", "\"192.0.2.1\"", "\"[2001:db8::1]:80\""]),
        ) {
            let nodes = read(&[&format!("{}, for={appended};proto=https", written.trim())]);
            let expected = format!("{} https", appended.trim_matches('"'));
            prop_assert!(nodes[0] == expected || nodes == [""], "{written:?}: {nodes:?}");
        }
    }
}
