//! The preamble of the PROXY protocol: what a proxy sends first to say who its client is
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>). Pure.
//!
//! Bytes are refused as soon as no valid preamble can begin with them, so nobody waits for a peer that speaks another protocol.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How many bytes from the beginning of a connection [`read`] needs at most: the longest line of version 1, with its CRLF.
pub(super) const MOST_READ: usize = 107;
/// The most bytes that may follow the first 16 of version 2. Only one address of them is kept, so the limit leaves room for
/// certificates of clients.
const MOST_MORE: usize = 16 << 10;
const WORD: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// In bytes. Not all of them need to have arrived.
    pub(super) length: usize,
    /// `None` if the proxy itself has opened the connection, or if its client did not connect by TCP over IPv4 or IPv6.
    pub client: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum PreambleError {
    #[error("the connection has ended before its first byte")]
    Nothing,
    #[error("the connection does not begin with a preamble")]
    Missing,
    #[error("the line of version 1 is not valid")]
    Line,
    #[error("the first 16 bytes of version 2 are not valid")]
    Head,
    #[error("the preamble is too long")]
    TooLong,
    #[error("the connection has ended in the middle of the preamble")]
    CutOff,
    #[error("the preamble did not arrive in time")]
    TooLate,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads the preamble at the beginning of `bytes`; `None` if it is not complete. Fails when no valid preamble begins like this.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Preamble>, PreambleError> {
    if may_begin(bytes, SIGNATURE) {
        version_2(bytes)
    } else if may_begin(bytes, WORD) {
        version_1(bytes)
    } else {
        Err(PreambleError::Missing)
    }
}

/// Whether `bytes` begin with `expected`, or may do so once more of them have arrived.
fn may_begin(bytes: &[u8], expected: &[u8]) -> bool {
    let common = bytes.len().min(expected.len());
    bytes[..common] == expected[..common]
}

fn version_1(bytes: &[u8]) -> Result<Option<Preamble>, PreambleError> {
    let bytes = &bytes[..bytes.len().min(MOST_READ)];
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        return if bytes.len() == MOST_READ { Err(PreambleError::TooLong) } else { Ok(None) };
    };
    let line = bytes[..end].strip_suffix(b"\r").and_then(|line| line.strip_prefix(WORD)).ok_or(PreambleError::Line)?;
    // What follows UNKNOWN has no meaning.
    let is_unknown = line.strip_prefix(b"UNKNOWN").is_some_and(|rest| matches!(rest.first(), None | Some(b' ')));
    let client = if is_unknown { None } else { Some(named_by(line).ok_or(PreambleError::Line)?) };
    Ok(Some(Preamble { length: end + 1, client }))
}

/// The client that a line of version 1 names after `PROXY`. The proxy's own address must be valid, too.
fn named_by(line: &[u8]) -> Option<SocketAddr> {
    let words: Vec<&str> = std::str::from_utf8(line).ok()?.split(' ').collect();
    let [family, client, proxy, client_port, proxy_port] = words[..] else { return None };
    let address = |text: &str| match family {
        "TCP4" => text.parse().ok().map(IpAddr::V4),
        "TCP6" => text.parse().ok().map(IpAddr::V6),
        _ => None,
    };
    let client = SocketAddr::new(address(client)?, port(client_port)?);
    address(proxy).zip(port(proxy_port)).map(|_| client)
}

/// Accepts no sign and no leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn version_2(bytes: &[u8]) -> Result<Option<Preamble>, PreambleError> {
    let is_local = match bytes.get(SIGNATURE.len()) {
        None => return Ok(None),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(PreambleError::Head),
    };
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else { return Ok(None) };
    let [.., family, high, low] = *head;
    let more = usize::from(u16::from_be_bytes([high, low]));
    if more > MOST_MORE {
        return Err(PreambleError::TooLong);
    }
    let preamble = |client| Ok(Some(Preamble { length: head.len() + more, client }));
    if is_local {
        // The proxy itself has connected, so the family has no meaning.
        return preamble(None);
    }
    // The addresses of the client and of the proxy, then their ports. A receiver may treat the client of a family that it
    // does not need as unknown: datagrams, and Unix sockets, whose paths have 108 bytes.
    let (least, is_tcp) = match family {
        0x00 => (0, false),
        0x11 => (12, true),
        0x12 => (12, false),
        0x21 => (36, true),
        0x22 => (36, false),
        0x31 | 0x32 => (216, false),
        _ => return Err(PreambleError::Head),
    };
    if more < least {
        return Err(PreambleError::Head);
    }
    if !is_tcp {
        return preamble(None);
    }
    let client = match rest.get(..least) {
        Some(&[a, b, c, d, _, _, _, _, high, low, _, _]) => {
            SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low]))
        }
        Some(addresses) => {
            let (Some(client), Some(ports)) = (addresses.first_chunk::<16>(), addresses.last_chunk::<4>()) else {
                return Ok(None);
            };
            SocketAddr::new(Ipv6Addr::from(*client).into(), u16::from_be_bytes([ports[0], ports[1]]))
        }
        None => return Ok(None),
    };
    preamble(Some(client))
}

/// As more bytes arrive, a preamble stays the same, and a refusal stays one. A line of version 1 can name each client
/// that was found.
#[cfg(any(test, fuzzing))]
pub(crate) fn check(bytes: &[u8]) {
    let mut before = Ok(None);
    for end in 0..=bytes.len().min(2 * MOST_READ) {
        let found = read(&bytes[..end]).map_err(|_| ());
        assert!(before == Ok(None) || found == before, "{before:?}, then {found:?} after {end} bytes");
        before = found;
    }
    let Ok(Some(Preamble { length, client })) = before else { return };
    assert!(length <= 16 + MOST_MORE);
    if let Some(client) = client {
        let (family, ip) = (if client.is_ipv4() { "TCP4" } else { "TCP6" }, client.ip());
        let line = format!("PROXY {family} {ip} {ip} {} 0\r\n", client.port());
        let same = read(line.as_bytes()).ok().flatten();
        assert_eq!(same, Some(Preamble { length: line.len(), client: Some(client) }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Version 2 with these bytes between the signature and the length, and with this block after them.
    fn binary([command, family]: [u8; 2], block: &[u8]) -> Vec<u8> {
        [SIGNATURE, &[command, family], &u16::try_from(block.len()).unwrap().to_be_bytes(), block].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 10, 0, 0, 1, 0x1f, 0x90, 0, 80];

    fn client(bytes: &[u8]) -> Option<String> {
        let Preamble { length, client } = read(bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        client.map(|client| client.to_string())
    }

    #[test]
    fn a_line_names_the_client() {
        for (line, expected) in [
            ("TCP4 192.0.2.1 10.0.0.1 8080 80", Some("192.0.2.1:8080")),
            ("TCP4 255.255.255.255 255.255.255.255 65535 65535", Some("255.255.255.255:65535")),
            ("TCP4 0.0.0.0 0.0.0.0 0 0", Some("0.0.0.0:0")),
            ("TCP6 2001:db8::1 ::1 1 2", Some("[2001:db8::1]:1")),
            ("TCP6 2001:DB8:0:0:0:0:0:1 ::1 1 2", Some("[2001:db8::1]:1")),
            ("UNKNOWN", None),
            ("UNKNOWN ", None),
            ("UNKNOWN 192.0.2.1 and what not", None),
            (
                "UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535",
                None,
            ),
        ] {
            assert_eq!(client(format!("PROXY {line}\r\n").as_bytes()).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn lines_that_are_not_valid_are_refused() {
        for line in [
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080 80 \r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080 80 1\r\n",
            "PROXY TCP4  192.0.2.1 10.0.0.1 8080 80\r\n",
            "PROXY  TCP4 192.0.2.1 10.0.0.1 8080 80\r\n",
            "PROXY\tTCP4 192.0.2.1 10.0.0.1 8080 80\r\n",
            "proxy TCP4 192.0.2.1 10.0.0.1 8080 80\r\n",
            "PROXY tcp4 192.0.2.1 10.0.0.1 8080 80\r\n",
            "PROXY UDP4 192.0.2.1 10.0.0.1 8080 80\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY TCP4 192.0.2.01 10.0.0.1 8080 80\r\n",
            "PROXY TCP4 192.0.2.256 10.0.0.1 8080 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0 8080 80\r\n",
            "PROXY TCP4 2001:db8::1 ::1 8080 80\r\n",
            "PROXY TCP6 192.0.2.1 10.0.0.1 8080 80\r\n",
            "PROXY TCP6 [2001:db8::1] ::1 8080 80\r\n",
            "PROXY TCP6 fe80::1%eth0 ::1 8080 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 08080 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 +8080 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 65536 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080 -1\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080 80\n",
            "PROXY UNKNOWN\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080 80\r\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 8080 80\0\r\n",
            "PROXY TCP4 192.0.2.1\u{a0} 10.0.0.1 8080 80\r\n",
        ] {
            assert!(read(line.as_bytes()).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_line_has_at_most_107_bytes() {
        let line = |length: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(length - 16)).into_bytes();
        assert_eq!(read(&line(107)).unwrap().unwrap().length, 107);
        assert!(read(&line(107)[..106]).unwrap().is_none());
        assert!(matches!(read(&line(108)), Err(PreambleError::TooLong)));
        assert!(matches!(read(&line(108)[..107]), Err(PreambleError::TooLong)));
    }

    #[test]
    fn the_binary_form_names_the_client() {
        let v6: [u8; 36] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let named_v6 = Some("[1:203:405:607:809:a0b:c0d:e0f]:8225");
        let unix = [b'/'; 216];
        for (head, block, expected) in [
            ([0x21, 0x11], &V4[..], Some("192.0.2.1:8080")),
            ([0x21, 0x21], &v6, named_v6),
            // Families that need not be understood, and no address.
            ([0x21, 0x12], &V4, None),
            ([0x21, 0x22], &v6, None),
            ([0x21, 0x31], &unix, None),
            ([0x21, 0x32], &unix, None),
            ([0x21, 0x00], &[], None),
            ([0x21, 0x00], &unix, None),
            // The proxy itself, whatever family it claims.
            ([0x20, 0x00], &[], None),
            ([0x20, 0x11], &V4, None),
            ([0x20, 0x11], &[], None),
            ([0x20, 0xff], &unix, None),
        ] {
            for more in [&b""[..], b"\x01\x00\x02h2", &[7; 1000]] {
                let bytes = binary(head, &[block, more].concat());
                assert_eq!(client(&bytes).as_deref(), expected, "{head:x?}");
            }
        }
    }

    #[test]
    fn the_binary_form_is_refused_where_it_is_not_valid() {
        for (head, block) in [
            ([0x11, 0x11], &V4[..]),
            ([0x22, 0x11], &V4),
            ([0x31, 0x11], &V4),
            ([0x00, 0x00], &[]),
            ([0x21, 0x11], &V4[..11]),
            ([0x21, 0x12], &V4[..11]),
            ([0x21, 0x21], &V4),
            ([0x21, 0x31], &[0; 215]),
            ([0x21, 0x10], &V4),
            ([0x21, 0x13], &V4),
            ([0x21, 0x01], &V4),
            ([0x21, 0x41], &[0; 300]),
        ] {
            assert!(matches!(read(&binary(head, block)), Err(PreambleError::Head)), "{head:x?}");
        }
        let longest = binary([0x21, 0x11], &vec![1; MOST_MORE]);
        assert_eq!(read(&longest[..MOST_READ]).unwrap().unwrap().length, 16 + MOST_MORE);
        let longer = binary([0x21, 0x11], &vec![1; MOST_MORE + 1]);
        assert!(matches!(read(&longer[..16]), Err(PreambleError::TooLong)));
        assert!(matches!(read(&binary([0x20, 0x00], &vec![1; 65_535])), Err(PreambleError::TooLong)));
    }

    #[test]
    fn what_is_no_preamble_is_refused_at_its_first_wrong_byte() {
        for text in
            ["GET / HTTP/1.1\r\n", "POST /", "PRI * HTTP/2.0\r\n\r\n", "PROPFIND /", "\x16\x03\x01", "\r\n\r\nG"]
        {
            let wrong = (1..=text.len()).find(|end| read(&text.as_bytes()[..*end]).is_err()).unwrap();
            assert!(wrong <= 5, "{text:?} after {wrong} bytes");
        }
        assert!(read(b"").unwrap().is_none());
    }

    proptest! {
        /// However a preamble is cut, the result is the same, and no part of it is taken for the whole or refused.
        #[test]
        fn pieces_make_no_difference(v4 in any::<(u32, u16)>(), v6 in any::<(u128, u16)>(), tlvs in 0..300_usize, form in 0..4) {
            let v4 = SocketAddr::new(Ipv4Addr::from_bits(v4.0).into(), v4.1);
            let v6 = SocketAddr::new(Ipv6Addr::from_bits(v6.0).into(), v6.1);
            let block = |ip: &[u8], port: u16| [ip, ip, &port.to_be_bytes(), &[0, 80], &vec![1; tlvs]].concat();
            let (bytes, client) = match (form, v4.ip(), v6.ip()) {
                (0, ip, _) => (format!("PROXY TCP4 {ip} {ip} {} 1\r\n", v4.port()).into_bytes(), v4),
                (1, _, ip) => (format!("PROXY TCP6 {ip} {ip} {} 1\r\n", v6.port()).into_bytes(), v6),
                (2, IpAddr::V4(ip), _) => (binary([0x21, 0x11], &block(&ip.octets(), v4.port())), v4),
                (_, _, IpAddr::V6(ip)) => (binary([0x21, 0x21], &block(&ip.octets(), v6.port())), v6),
                _ => unreachable!(),
            };
            let whole = Preamble { length: bytes.len(), client: Some(client) };
            let mut found = None;
            for end in 0..=bytes.len().min(MOST_READ) {
                let now = read(&bytes[..end]).unwrap();
                prop_assert!(found.is_none() || now == found);
                prop_assert!(now.is_none_or(|now| now == whole));
                found = now;
            }
            prop_assert_eq!(found, Some(whole));
            let more = [&bytes[..], b"PROXY TCP4 198.51.100.1 1.1.1.1 1 1\r\nGET / HTTP/1.1\r\n\r\n"].concat();
            prop_assert_eq!(read(&more[..more.len().min(MOST_READ)]).unwrap(), Some(whole));
        }

        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..MOST_READ), begins in 0..3_usize) {
            let begin: &[u8] = [&b""[..], WORD, SIGNATURE][begins];
            let bytes = [begin, &bytes].concat();
            if let Ok(Some(preamble)) = read(&bytes[..bytes.len().min(MOST_READ)]) {
                prop_assert!(preamble.length <= 16 + MOST_MORE);
            }
        }
    }
}
