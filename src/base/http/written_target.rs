//! Request targets as clients write them: some bytes should be escapes (RFC 3986, section 2), and count as such.
//!
//! Servers such as nginx accept these bytes and read them as their escapes, in a path and in a query. The HTTP library refuses
//! some in paths and others in queries. So the gateway shows other bytes to the library.

use http::uri::PathAndQuery;
use memchr::memchr;
use percent_encoding::{AsciiSet, percent_encode};

/// Bytes that count as their escapes, besides all bytes above 0x7F.
const UNESCAPED: &AsciiSet =
    &AsciiSet::EMPTY.add(b'"').add(b'<').add(b'>').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

/// Escapes everything necessary in a path with or without a query. A fragment, which the library would drop, is part of the
/// path for some servers.
pub fn escaped(target: &[u8]) -> Option<PathAndQuery> {
    let is_path = target.starts_with(b"/") && memchr(b'#', target).is_none();
    let escaped = || percent_encode(target, UNESCAPED).to_string();
    if is_path { PathAndQuery::try_from(escaped()).ok() } else { None }
}

/// Like [`escaped`], but as written if the library accepts that.
pub fn read(target: &[u8]) -> Option<PathAndQuery> {
    PathAndQuery::try_from(target).ok().or_else(|| escaped(target))
}

/// The target in the first line of a request, if it is a path with bytes that the library may refuse.
pub fn refused(line: &[u8]) -> Option<&[u8]> {
    let target = line.get(memchr(b' ', line)? + 1..).filter(|target| target.starts_with(b"/"))?;
    let target = target.split(|byte| *byte == b' ').next()?;
    target.iter().copied().any(is_refused).then_some(target)
}

/// Replaces the bytes that the library may refuse, in a part of the first line of a request. `before` is the part before.
pub fn hide(before: &[u8], part: &mut [u8]) {
    if is_plain(part) {
        return;
    }
    let target = match (memchr(b' ', before), memchr(b' ', part)) {
        (Some(space), _) if before.get(space + 1).or(part.first()) == Some(&b'/') => part,
        (None, Some(space)) if part.get(space + 1) == Some(&b'/') => &mut part[space + 1..],
        _ => return,
    };
    target.iter_mut().filter(|byte| is_refused(**byte)).for_each(|byte| *byte = b'_');
}

/// Whether there is neither a fragment nor a byte that the library may refuse. Nearly all targets are so, so this looks at
/// eight bytes at once.
pub fn is_plain(part: &[u8]) -> bool {
    let (words, rest) = part.as_chunks();
    match part.last_chunk() {
        Some(last) => words.iter().all(|word| is_plain_word(*word)) && (rest.is_empty() || is_plain_word(*last)),
        None => !rest.iter().any(|byte| is_refused(*byte) || *byte == b'#'),
    }
}

#[inline]
fn is_plain_word(bytes: [u8; 8]) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(bytes);
    // Sets the top bit of each zero byte, and perhaps of higher bytes.
    let zeros = |word: u64| word.wrapping_sub(EACH) & !word;
    // `"` and `#` differ in one bit, and so do `<` and `>`.
    let quotes = zeros((word | EACH) ^ (EACH * u64::from(b'#')));
    let angles = zeros((word | (EACH * 2)) ^ (EACH * u64::from(b'>')));
    let graves = zeros(word ^ (EACH * u64::from(b'`')));
    (word | quotes | angles | graves) & (EACH * 0x80) == 0
}

fn is_refused(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'`' | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_refuses_is_escaped_and_all_else_stays() {
        for (written, expected) in [
            ("/a{b}|^?{|}^`", "/a{b}|^?{|}^`"),
            ("/caf\u{e9}?\u{e9}", "/caf\u{e9}?\u{e9}"),
            ("/a\"b", "/a\"b"),
            ("/a<b>`c?%22", "/a%3Cb%3E%60c?%22"),
            ("/a?\"{", "/a?%22%7B"),
        ] {
            assert_eq!(read(written.as_bytes()).unwrap().as_str(), expected);
        }
        assert_eq!(read(b"/caf\xe9?\xe9").unwrap().as_str(), "/caf%E9?%E9");
        assert_eq!(escaped(b"/{\xe9").unwrap().as_str(), "/%7B%E9");
        for wrong in [&b"/a<#b"[..], b"<", b"/a\x7f<"] {
            assert_eq!(read(wrong), None);
        }
    }

    #[test]
    fn what_is_not_plain_is_found_wherever_it_stands() {
        for length in 0..40 {
            let plain = &b"GET /a/b?c=d&e=%22!$'*~{}|^[]\\_,;:@-.()+"[..length];
            assert!(is_plain(plain), "{length}");
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut other = plain.to_vec();
                    other[at] = byte;
                    assert_eq!(is_plain(&other), !is_refused(byte) && byte != b'#', "{byte} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn only_paths_are_shown_in_another_way() {
        for (line, shown) in [
            (&b"GET /a<b?\">` HTTP/1.1"[..], &b"GET /a_b?___ HTTP/1.1"[..]),
            (b"G`T /caf\xe9 HTTP/1.1", b"G`T /caf_ HTTP/1.1"),
            (b"GET http://a/<b> HTTP/1.1", b"GET http://a/<b> HTTP/1.1"),
            (b"GET /a{b} HTTP/1.1", b"GET /a{b} HTTP/1.1"),
            (b"G<", b"G<"),
        ] {
            assert_eq!(refused(line).is_some(), line != shown, "{line:?}");
            for cut in 0..=line.len() {
                let mut parts = line.to_vec();
                let (first, second) = parts.split_at_mut(cut);
                hide(&[], first);
                hide(&line[..cut], second);
                // After only the blank, it is not known whether a path follows.
                assert_eq!(parts, shown, "{line:?} at {cut}");
            }
        }
        assert_eq!(refused(b"GET /a<b HTTP/1.1"), Some(&b"/a<b"[..]));
    }
}
