//! The header Forwarded (RFC 7239), in which each proxy on the way says from whom it has got the request.

use http::{HeaderMap, header};
use smallvec::SmallVec;

/// The node that each proxy names, in the order of the header.
type Nodes<'a> = SmallVec<[Option<&'a [u8]>; 4]>;

/// The nodes that proxies name, the nearest one first, without quotes. `None` is one that names nobody. Nothing is returned
/// if none of them names anybody, because some proxies report only a scheme or a host.
///
/// A line that is not valid is one node with an empty name: nobody knows which part of it a client has written.
pub(super) fn nodes(headers: &HeaderMap) -> impl Iterator<Item = Option<&[u8]>> {
    let mut all = Nodes::new();
    for line in headers.get_all(header::FORWARDED) {
        match elements(line.as_bytes()) {
            Some(elements) => all.extend(elements),
            None => all.push(Some(b"")),
        }
    }
    if all.iter().all(Option::is_none) {
        all.clear();
    }
    all.into_iter().rev()
}

/// The value of `for` in each element of a line (section 4); `None` if the line is not valid. Values that should be in quotes
/// are accepted without them, since many proxies write addresses of IPv6 and ports so.
fn elements(line: &[u8]) -> Option<Nodes<'_>> {
    let mut nodes = Nodes::new();
    let mut rest = line;
    loop {
        let (mut node, mut is_empty) = (None, true);
        loop {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|byte| !is_of_name(*byte)).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            if !name.is_empty() {
                let (value, after) = value(after.strip_prefix(b"=")?)?;
                if name.eq_ignore_ascii_case(b"for") && node.replace(value).is_some() {
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
            nodes.push(node);
        }
        match rest.split_first() {
            None => return Some(nodes),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// A value and what follows it. A value in quotes is without them, but keeps its backslashes, which no address has.
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

/// Whether a byte can be in the name of a parameter, which is a token (RFC 9110, section 5.6.2).
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
        let text = |node: Option<&[u8]>| node.map_or("-".to_owned(), |node| String::from_utf8_lossy(node).into_owned());
        nodes(&headers).map(text).collect()
    }

    #[test]
    fn the_nearest_node_comes_first() {
        assert_eq!(read(&["for=192.0.2.60;proto=http;by=203.0.113.43"]), ["192.0.2.60"]);
        assert_eq!(
            read(&["for=192.0.2.43, FOR=\"[2001:db8:cafe::17]:4711\""]),
            ["[2001:db8:cafe::17]:4711", "192.0.2.43"]
        );
        assert_eq!(read(&["for=a,for=b", "For=c"]), ["c", "b", "a"]);
        assert_eq!(read(&["host=\"a, for=x;\\\"\";for=b ; proto=http ,, ;,for=2001:db8::1"]), ["2001:db8::1", "b"]);
        assert_eq!(read(&["for=a, proto=https"]), ["-", "a"]);
    }

    #[test]
    fn a_header_without_nodes_says_nothing() {
        for lines in [&[][..], &[""], &[" , ;"], &["proto=https;host=a", "by=b"]] {
            assert_eq!(read(lines), [""; 0], "{lines:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_valid_names_nobody_who_can_be_known() {
        for line in [
            "192.0.2.1",
            "for",
            "for=",
            "for=\"a",
            "for=a b",
            "for=a;for=b",
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
        /// A proxy appends what it knows to the line of the client.
        #[test]
        fn nothing_that_a_client_writes_replaces_what_a_proxy_appends(
            written in "[ -~]{0,12}(for=|\"|\\\\|,|;){0,4}[a-z\"\\\\,;=]{0,6}",
            appended in prop::sample::select(vec!["192.0.2.1", "\"192.0.2.1\"", "\"[2001:db8::1]:80\""]),
        ) {
            let nodes = read(&[&format!("{}, for={appended};proto=https", written.trim())]);
            let expected = appended.trim_matches('"');
            prop_assert!(nodes[0] == expected || nodes == [""], "{written:?}: {nodes:?}");
        }
    }
}
