//! The address of the client: that of the peer, or the one that trusted proxies report.

use std::net::IpAddr;

use http::HeaderMap;
use ipnet::IpNet;

use super::forwarded;
use crate::config::Scheme;

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address.
    pub address: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub via_trusted: bool,
}

/// How the client has sent its request: what a trusted proxy reports, or else whether the connection uses TLS.
pub fn scheme(uses_tls: bool, client: Client, headers: &HeaderMap) -> Scheme {
    let reported = if client.via_trusted { headers.get(FORWARDED_PROTO) } else { None };
    // Of several proxies, the first one has written the first value.
    let first = reported.and_then(|value| value.as_bytes().split(|byte| *byte == b',').next()).map(<[u8]>::trim_ascii);
    match first {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"https") => Scheme::Https,
        Some(scheme) if scheme.eq_ignore_ascii_case(b"http") => Scheme::Http,
        _ if uses_tls => Scheme::Https,
        _ => Scheme::Http,
    }
}

/// Finds the client behind `peer`. X-Forwarded-For and Forwarded are used only if the peer is a trusted proxy. They are read
/// from the right: the first address that is not a trusted proxy's is the client's, because the client could have written
/// everything to the left of it. An entry that is not an address ends the search at the last known proxy.
///
/// Most proxies write only one of the two headers and pass on the other as the client has sent it. Nobody knows which one
/// that is, so if they name different clients, neither is used.
pub fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Client {
    let peer = peer.to_canonical();
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    if !is_trusted(&peer) {
        return Client { address: peer, via_trusted: false };
    }
    let lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
    let entries = lines.into_iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let entries = entries.filter(|entry| !entry.trim_ascii().is_empty());
    let listed = farthest(peer, entries.map(parse), is_trusted);
    let forwarded = farthest(peer, forwarded::nodes(headers).map(|node| parse(node?)), is_trusted);
    let address = match (listed, forwarded) {
        (Some(listed), Some(forwarded)) if listed != forwarded => peer,
        (listed, forwarded) => listed.or(forwarded).unwrap_or(peer),
    };
    Client { address, via_trusted: true }
}

/// The first of these addresses that is not a trusted proxy's, or else the last one that is known; `None` if there are none.
fn farthest(
    peer: IpAddr,
    named: impl Iterator<Item = Option<IpAddr>>,
    is_trusted: impl Fn(&IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut farthest = None;
    for named in named {
        let Some(address) = named else { return farthest.or(Some(peer)) };
        farthest = Some(address);
        if !is_trusted(&address) {
            break;
        }
    }
    farthest
}

/// An address, with or without a port, brackets or quotes.
fn parse(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim().trim_matches('"');
    let address = text.parse::<IpAddr>().ok();
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    address.or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

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
        for unknown in ["unknown", "_hidden", "\"_b:80\"", "a.test", "\"1.1.1.1\\\"\""] {
            assert_eq!(by_forwarded(&[&format!("for=1.1.1.1, for={unknown}, for=10.0.0.2")]), "10.0.0.2");
        }
        assert_eq!(by_forwarded(&["for=1.1.1.1, proto=https"]), "10.0.0.1", "the nearest proxy names nobody");
        assert_eq!(address_by_both("192.0.2.1", &[], &["for=1.1.1.1"]), "192.0.2.1");
    }

    #[test]
    fn two_headers_that_name_different_clients_are_both_ignored() {
        let both = |listed: &str, forwarded: &str| address_by_both("10.0.0.1", &[listed.as_bytes()], &[forwarded]);
        assert_eq!(both("1.1.1.1, 198.51.100.7", "for=\"198.51.100.7:80\""), "198.51.100.7");
        assert_eq!(both("198.51.100.7", "proto=https"), "198.51.100.7", "it names nobody");
        assert_eq!(both("", "for=198.51.100.7"), "198.51.100.7");
        for wrong in ["for=1.1.1.1", "for=unknown", "for=\"198.51.100.7", "198.51.100.7", "for=10.0.0.2"] {
            assert_eq!(both("198.51.100.7", wrong), "10.0.0.1", "{wrong}");
        }
        assert_eq!(both("unknown", "for=198.51.100.7"), "10.0.0.1");
    }
}
