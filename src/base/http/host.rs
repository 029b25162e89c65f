//! The normal form of a host, against which routes are matched: in lower case, without the port and a final dot.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// A byte that neither a host name nor an address has. RFC 3986, section 3.2.2, allows more in a URL, among them `%`, and
/// servers that decode such a host read another name than the routes do. `_` is not valid in DNS host names, but in use.
const FOREIGN: u8 = 1;
const UPPER: u8 = 2;

/// The kind of each byte, so that a name is read only once.
static KINDS: [u8; 256] = kinds();

const fn kinds() -> [u8; 256] {
    let mut kinds = [FOREIGN; 256];
    let mut allowed: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    while let [byte, rest @ ..] = allowed {
        kinds[*byte as usize] = if byte.is_ascii_uppercase() { UPPER } else { 0 };
        allowed = rest;
    }
    kinds
}

/// The normal form of the name in `name:port`; `None` if it is not a host. Borrowed if it is in normal form already.
pub fn normal(authority: &str) -> Option<Cow<'_, str>> {
    // Only IPv6 addresses contain colons.
    let plain = authority.bytes().position(|byte| KINDS[usize::from(byte)] != 0).unwrap_or(authority.len());
    let end = match authority.as_bytes().get(plain) {
        None | Some(b':') => plain,
        _ if authority.starts_with('[') => authority.rfind(']').map_or(authority.len(), |at| at + 1),
        _ => authority.bytes().position(|byte| byte == b':').unwrap_or(authority.len()),
    };
    let (name, rest) = authority.split_at(end);
    let kinds = name.bytes().skip(plain).fold(0, |kinds, byte| kinds | KINDS[usize::from(byte)]);
    let inner = || name.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let is_name = kinds & FOREIGN == 0 || inner().is_some();
    let name = match name.as_bytes() {
        // Servers that drop all final dots would read another name than the routes do.
        [b'.'] | [.., b'.', b'.'] => return None,
        [] if !authority.is_empty() => return None,
        // `example.com.` is the absolute form of the same name.
        [.., b'.'] => &name[..name.len() - 1],
        _ => name,
    };
    if !is_name || !is_port_or_nothing(rest.as_bytes()) {
        return None;
    }
    Some(if kinds == 0 { Cow::Borrowed(name) } else { Cow::Owned(name.to_ascii_lowercase()) })
}

/// Whether what follows a name is a port, which may be empty, or nothing.
fn is_port_or_nothing(rest: &[u8]) -> bool {
    match rest {
        [b':', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => match digits.len() {
            0..5 => true,
            // Numbers of one length compare like their digits.
            5 => *digits <= b"65535"[..],
            _ => false,
        },
        rest => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_spelling() {
        for (written, name) in [
            ("", ""),
            ("example.com", "example.com"),
            ("Example.COM:80", "example.com"),
            ("example.com.:", "example.com"),
            ("127.0.0.1:8080", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[2001:DB8::A]:443", "[2001:db8::a]"),
            ("a_b-1.c", "a_b-1.c"),
            ("a:65535", "a"),
            ("a:00080", "a"),
        ] {
            assert_eq!(normal(written).as_deref(), Some(name), "{written}");
        }
    }

    #[test]
    fn what_cannot_be_a_host_is_none() {
        for written in [
            ":80",
            "a:b",
            "a:65536",
            "a:000080",
            "a:+80",
            "a:80:90",
            "a b",
            "a/b",
            "a@b",
            "[a]",
            "[::1",
            "::1]",
            "ä",
            "a\t",
            "[::1]x",
            "[::1]]",
            "[::1]80",
            "[::1]:x",
            "a[::1]:8",
            "ä:80",
            "a:ä",
            "api%2etest",
            "%61",
            "a~",
            "a!",
            "a$b",
            "a&b",
            "a'",
            "(a)",
            "*",
            "a+b",
            "a,b",
            "a;b",
            "a=b",
            "[::1%25eth0]",
            ".",
            "a..",
            "..:80",
        ] {
            assert_eq!(normal(written), None, "{written}");
        }
    }
}
