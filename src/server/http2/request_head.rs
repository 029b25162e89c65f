//! Heads that the HTTP library accepts in HTTP/2 although HTTP/1.1 has no such heads. Upstreams would read such a request in
//! another way than the gateway has counted it.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Uri, header};

/// Why a request must not be served; `None` if it may.
pub(super) fn ambiguity(head: &Parts) -> Option<&'static str> {
    if !has_web_scheme(&head.uri) {
        return Some("The scheme is not http or https.");
    }
    if head.method != Method::CONNECT && !has_absolute_path(&head.uri) {
        return Some("The path does not begin with a slash.");
    }
    if head.headers.get(header::HOST).is_some_and(HeaderValue::is_empty) {
        return Some("The Host header is empty.");
    }
    if head.headers.get(header::CONTENT_LENGTH).is_some_and(HeaderValue::is_empty) {
        return Some("The content-length header has no number.");
    }
    has_blank_edges(&head.headers).then_some("A header begins or ends with a blank.")
}

fn has_web_scheme(uri: &Uri) -> bool {
    uri.scheme_str().is_none_or(|scheme| matches!(scheme, "http" | "https"))
}

/// The library accepts `*`, and an empty path before a query.
fn has_absolute_path(uri: &Uri) -> bool {
    uri.path_and_query().is_some_and(|path| path.as_str().starts_with('/'))
}

/// Whether a value begins or ends with a blank (RFC 9113, section 8.2.1). In HTTP/1.1 the blank does not belong to the value,
/// so a client would get a new counter for each number of blanks.
fn has_blank_edges(headers: &HeaderMap) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    headers.values().map(HeaderValue::as_bytes).any(|value| is_blank(value.first()) || is_blank(value.last()))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn of(uri: &str, fields: &[(&'static str, &'static str)]) -> Option<&'static str> {
        let mut request = Request::get(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        ambiguity(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn heads_of_http_1_are_not_ambiguous() {
        for uri in ["http://a/", "https://a:1/b?c", "/only/a/path", "http://a//b"] {
            let fields = [("a", ""), ("b", "a \t b"), ("c", "\""), ("content-length", "0")];
            assert_eq!(of(uri, &fields), None, "{uri}");
        }
    }

    #[test]
    fn what_only_http_2_carries_is_ambiguous() {
        let none = ("a", "");
        for (uri, field, word) in [
            ("ftp://a/", none, "scheme"),
            ("httpss://a/", none, "scheme"),
            ("*", none, "slash"),
            ("http://a/", ("host", ""), "Host"),
            ("/", ("content-length", ""), "number"),
            ("/", ("a", " b"), "blank"),
            ("/", ("a", "\tb"), "blank"),
            ("/", ("a", "b "), "blank"),
            ("/", ("a", "b\t"), "blank"),
            ("/", ("a", " "), "blank"),
        ] {
            let found = of(uri, &[("first", "x"), field]).unwrap();
            assert!(found.contains(word), "{uri} {field:?}: {found}");
        }
    }
}
