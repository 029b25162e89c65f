//! The one spelling of a path that routes are matched against.
//!
//! RFC 3986, section 6.2.2, names spellings that mean the same; a route that missed one of them would leave a way
//! around its limits. What is forwarded stays as the client wrote it.

use std::borrow::Cow;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// A `.` or `..` segment, plain or encoded: the upstream could see another path than the gateway.
    DotSegment,
    /// A `%` that two hexadecimal digits do not follow.
    BadEscape,
}

/// The path with unreserved characters decoded, other escapes in upper case, and empty segments left out
/// except a last one. Borrowed where the path is written so already, as nearly all are.
pub fn normal(path: &str) -> Result<Cow<'_, str>, BadPath> {
    let bytes = path.as_bytes();
    let suspicious = |pair: &[u8]| pair[0] == b'%' || (pair[0] == b'/' && (pair[1] == b'/' || pair[1] == b'.'));
    if !bytes.windows(2).any(suspicious) && bytes.last() != Some(&b'%') {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode(path)?;
    if decoded.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(BadPath::DotSegment);
    }
    let mut merged = String::with_capacity(decoded.len());
    for character in decoded.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    Ok(Cow::Owned(merged))
}

fn decode(path: &str) -> Result<String, BadPath> {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        let byte = after.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or(BadPath::BadEscape)?;
        decoded.push_str(before);
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            decoded.push(char::from(byte));
        } else {
            decoded.push('%');
            decoded.push_str(&after[..2].to_ascii_uppercase());
        }
        rest = &after[2..];
    }
    decoded.push_str(rest);
    Ok(decoded)
}

/// The path without its first `count` segments, as written: empty segments do not count, as in [`normal`].
pub fn without(path: &str, count: usize) -> &str {
    let mut rest = path;
    for _ in 0..count {
        let inner = rest.trim_start_matches('/');
        rest = inner.find('/').map_or("", |slash| &inner[slash..]);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_that_mean_the_same_become_one() {
        for (written, normal_form) in [
            ("/v1/login", "/v1/login"),
            ("/v1/l%6Fgin", "/v1/login"),
            ("//v1///login", "/v1/login"),
            ("/v1/login/", "/v1/login/"),
            ("/v1/login//", "/v1/login/"),
            ("/a%2fb", "/a%2Fb"),
            ("/.well-known/x", "/.well-known/x"),
            ("/%7Euser", "/~user"),
            ("/a%20b", "/a%20b"),
            ("*", "*"),
            ("/", "/"),
            ("//", "/"),
        ] {
            assert_eq!(normal(written).unwrap(), normal_form, "{written}");
        }
    }

    #[test]
    fn what_could_be_two_paths_is_refused() {
        for path in ["/a/../b", "/..", "/.", "/./a", "/%2e%2E/a", "/a/.%2e"] {
            assert_eq!(normal(path), Err(BadPath::DotSegment), "{path}");
        }
        for path in ["/%", "/%4", "/%zz", "/%+1", "/a%"] {
            assert_eq!(normal(path), Err(BadPath::BadEscape), "{path}");
        }
    }

    #[test]
    fn leading_segments_are_left_out_as_written() {
        assert_eq!(without("/v1/a/b", 1), "/a/b");
        assert_eq!(without("//v1//a", 1), "//a");
        assert_eq!(without("/v1", 1), "");
        assert_eq!(without("/v1/", 1), "/");
        assert_eq!(without("/a/b/c", 2), "/c");
        assert_eq!(without("/a", 5), "");
    }
}
