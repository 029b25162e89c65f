//! Headers whose value is a list (RFC 9110, section 5.6.1). Pure.

use http::{HeaderMap, HeaderName};

/// The members of a list, without the blanks around them, from all lines of the header. Members may be empty.
pub fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    headers
        .get_all(name)
        .into_iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn a_list_may_have_several_lines() {
        let mut headers = HeaderMap::new();
        assert_eq!(members(&headers, &header::TE).count(), 0);
        for line in ["a, b;q=1 ,", "\tc"] {
            headers.append(header::TE, HeaderValue::from_static(line));
        }
        assert_eq!(members(&headers, &header::TE).collect::<Vec<_>>(), [&b"a"[..], b"b;q=1", b"", b"c"]);
    }
}
