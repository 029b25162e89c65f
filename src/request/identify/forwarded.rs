//! The header Forwarded (RFC 7239), in which each proxy on the way states from whom it got the request.

use http::{HeaderMap, header};
use smallvec::SmallVec;

/// The element of one proxy, without quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Element<'a> {
    /// `for`: the node from which the proxy got the request.
    pub(super) node: Option<&'a [u8]>,
    /// `proto`: the scheme of that request.
    pub(super) proto: Option<&'a [u8]>,
}

/// The elements of all proxies, in the order of the header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forwarded<'a> {
    /// An invalid line is one element with an empty node, because a client may have written any part of it.
    pub(super) elements: SmallVec<[Element<'a>; 4]>,
    pub(super) is_broken: bool,
}

impl<'a> Forwarded<'a> {
    pub(super) fn read(headers: &'a HeaderMap) -> Self {
        let mut all = Self::default();
        for line in headers.get_all(header::FORWARDED) {
            match elements(line.as_bytes()) {
                Some(elements) => all.elements.extend(elements),
                None => {
                    all.elements.push(Element { node: Some(b""), proto: None });
                    all.is_broken = true;
                }
            }
        }
        all
    }

    /// Whether any proxy names a node. Some report only a scheme or a host.
    pub(super) fn has_nodes(&self) -> bool {
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
            elements.push(element);
        }
        match rest.split_first() {
            None => return Some(elements),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// A value and the rest of the text. A quoted value loses its quotes but keeps its backslashes, which no address has.
fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| b"\",; \t".contains(byte)).unwrap_or(text.len());
        return (end > 0).then(|| text.split_at(end));
    };
    let mut is_escaped = false;
    let end = quoted.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })?;
    let (value, after) = quoted.split_at(end);
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

    fn read(lines: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::FORWARDED, HeaderValue::from_str(line).unwrap());
        }
        let text = |part: Option<&[u8]>| part.map_or("-".to_owned(), |part| String::from_utf8_lossy(part).into_owned());
        let all = Forwarded::read(&headers);
        assert_eq!(all.is_broken, all.elements.iter().any(|element| element.node == Some(b"")));
        let schemes =
            |element: &Element<'_>| element.proto.map_or(String::new(), |proto| format!(" {}", text(Some(proto))));
        all.elements.iter().rev().map(|element| text(element.node) + &schemes(element)).collect()
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
