//! The entry of this process in Via (RFC 9110, section 7.6.3), to recognize requests that have passed it before.

use std::sync::LazyLock;

use http::{HeaderMap, Version, header};

use super::header_list;

/// One more passage is a loop.
pub const MOST_PASSAGES: usize = 2;

/// For requests in HTTP/1.1 and in HTTP/2. No other process has this name.
static ENTRIES: LazyLock<[String; 2]> = LazyLock::new(|| {
    let name = fastrand::u64(..);
    ["1.1", "2.0"].map(|version| format!("{version} gateway-{name:016x}"))
});

pub fn entry(version: Version) -> &'static [u8] {
    let [http1, http2] = &*ENTRIES;
    if version == Version::HTTP_2 { http2.as_bytes() } else { http1.as_bytes() }
}

pub fn passages(headers: &HeaderMap) -> usize {
    if header_list::has(headers, &header::VIA) { own_entries(headers) } else { 0 }
}

/// Not inline, because few requests have a Via header.
#[inline(never)]
fn own_entries(headers: &HeaderMap) -> usize {
    let name = |entry: &'static [u8]| entry.split(|byte| *byte == b' ').nth(1);
    let is_own = |member: &&[u8]| {
        let mut words = member.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        words.nth(1) == name(entry(Version::HTTP_11))
    };
    header_list::members(headers, &header::VIA).filter(is_own).count()
}

/// The entries of all gateways: a loop may lead over several, and each must recognize it.
pub fn entries(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let is_of_gateway = |member: &&[u8]| {
        let name = member.strip_prefix(b"1.1 gateway-").or_else(|| member.strip_prefix(b"2.0 gateway-"));
        name.is_some_and(|name| name.len() == 16 && name.iter().all(u8::is_ascii_hexdigit))
    };
    header_list::members(headers, &header::VIA).filter(is_of_gateway)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_entries_of_this_process_are_passages() {
        let [http1, http2] =
            [Version::HTTP_11, Version::HTTP_2].map(|version| std::str::from_utf8(entry(version)).unwrap());
        for (lines, expected) in [
            (vec![], 0),
            (vec!["1.1 gateway, 1.0 gateway-0000000000000000".to_owned()], 0),
            (vec![http1.to_owned()], 1),
            (vec![format!("1.0 fred, {http2} (a comment),{http1}"), format!("HTTP/1.1\t{}", &http1[4..])], 3),
            (vec![http1[4..].to_owned(), format!("{http1}x")], 0),
        ] {
            let lines = lines.iter().map(|line| (header::VIA, HeaderValue::from_str(line).unwrap()));
            let mut headers = HeaderMap::new();
            lines.for_each(|(name, line)| _ = headers.append(name, line));
            assert_eq!(passages(&headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn entries_of_gateways_are_what_they_write() {
        let mut headers = HeaderMap::new();
        for line in
            ["1.1 gateway-0123456789abcdef, 1.0 fred", "2.0 gateway-0123456789abcdef (x), 2.0 gateway-fedcba9876543210"]
        {
            headers.append(header::VIA, HeaderValue::from_static(line));
        }
        headers.append(header::VIA, HeaderValue::from_bytes(entry(Version::HTTP_11)).unwrap());
        let expected = [&b"1.1 gateway-0123456789abcdef"[..], b"2.0 gateway-fedcba9876543210", entry(Version::HTTP_11)];
        assert!(entries(&headers).eq(expected));
    }
}
