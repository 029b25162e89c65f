//! Writes keys for people.

use std::net::IpAddr;

use crate::config::Source;

/// The value of a source as a text. An IPv6 address is written with the length of its prefix.
pub fn value_text(source: &Source, value: &[u8]) -> String {
    match source {
        Source::ClientIp { v6 } => network(value, *v6),
        _ => String::from_utf8_lossy(value).into_owned(),
    }
}

/// A key as the admin API takes it: its parts, joined by `|`. A part that is absent is empty, and a network of IPv6 is its
/// first address.
pub fn written_text(parts: &[Option<(&Source, Vec<u8>)>]) -> String {
    let part = |part: &Option<(&Source, Vec<u8>)>| match part {
        Some((Source::ClientIp { .. }, value)) => network(value, 128),
        Some((_, value)) => String::from_utf8_lossy(value).into_owned(),
        None => String::new(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join("|")
}

/// A key as a text: its parts, joined by `|`. A part that is absent is `-`.
pub fn key_text(parts: &[Option<(&Source, Vec<u8>)>]) -> String {
    let part = |part: &Option<(&Source, Vec<u8>)>| match part {
        Some((source, value)) => value_text(source, value),
        None => "-".to_owned(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join("|")
}

/// Formats an IPv4 address, or an IPv6 network with this prefix length, from its octets.
fn network(octets: &[u8], v6: u8) -> String {
    match (<[u8; 4]>::try_from(octets), <[u8; 16]>::try_from(octets)) {
        (Ok(octets), _) => IpAddr::from(octets).to_string(),
        (_, Ok(octets)) if v6 == 128 => IpAddr::from(octets).to_string(),
        (_, Ok(octets)) => format!("{}/{v6}", IpAddr::from(octets)),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined() {
        let (address, method) = (Source::ClientIp { v6: 64 }, Source::Method);
        let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
        assert_eq!(key_text(&[Some((&address, v6.clone())), Some((&method, b"GET".to_vec()))]), "2001:db8::/64|GET");
        assert_eq!(
            written_text(&[Some((&address, v6.clone())), None, Some((&method, b"GET".to_vec()))]),
            "2001:db8::||GET"
        );
        assert_eq!(key_text(&[None, Some((&address, vec![192, 0, 2, 1]))]), "-|192.0.2.1");
        assert_eq!(value_text(&Source::ClientIp { v6: 128 }, &v6), "2001:db8::");
        assert_eq!(value_text(&method, b"\xff"), "\u{fffd}");
    }
}
