//! The URL to which a redirect sends a client: the template of the configuration, filled with parts of the request.

use http::{HeaderValue, Uri};

use crate::base::http::path::onward;
use crate::base::percent::{self, push_as_written};
use crate::config::{PathRules, Redirect, TemplatePart};

/// The value of Location for a request with this `uri`; `None` if it needs the host and the request has none. `host` is in
/// normal form, and `path` in that in which routes match it.
///
/// Segments and the host are in normal form. The path, the rest and the query are as the client wrote them, except for
/// characters that a URI cannot contain (RFC 3986, section 2).
pub fn location(redirect: &Redirect, host: &str, path: &str, uri: &Uri, rules: PathRules) -> Option<HeaderValue> {
    if redirect.to.needs_host() && host.is_empty() {
        return None;
    }
    let mut location = String::with_capacity(redirect.to.text.len() + path.len() + 16);
    let mut in_query = false;
    for part in &redirect.to.parts {
        // In the query of the location, a path is one value.
        let push = if in_query { push_value } else { push_as_written };
        match part {
            TemplatePart::Text(text) => {
                location.push_str(text);
                in_query |= text.contains('?');
            }
            TemplatePart::Host => location.push_str(host),
            TemplatePart::Path => push(&mut location, &onward(uri.path(), 0, rules)),
            TemplatePart::Query => push_as_written(&mut location, uri.query().unwrap_or_default()),
            TemplatePart::QueryIfAny => {
                if let Some(query) = uri.query() {
                    location.push('?');
                    push_as_written(&mut location, query);
                }
            }
            TemplatePart::Segment(index) => {
                push(&mut location, path.split('/').skip(1).nth(*index).unwrap_or_default());
            }
            TemplatePart::Rest(segments) => {
                let rest = onward(uri.path(), *segments, rules);
                push(&mut location, rest.trim_start_matches('/'));
            }
            // A location cannot have these placeholders.
            TemplatePart::ClientIp | TemplatePart::RequestId => {}
        }
    }
    // A reference that begins with two slashes names a host (RFC 3986, section 4.2), and empty parts can leave such slashes.
    let doubled = location.bytes().take_while(|byte| *byte == b'/').count().saturating_sub(1);
    location.drain(..doubled);
    HeaderValue::try_from(location).ok()
}

/// Appends the value of a query parameter.
fn push_value(location: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'&' => location.push_str("%26"),
            b'+' => location.push_str("%2B"),
            b';' => location.push_str("%3B"),
            b'=' => location.push_str("%3D"),
            b'/' => location.push('/'),
            byte => percent::push(location, byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use proptest::prelude::*;

    use super::*;
    use crate::base::http::path::normal;
    use crate::config::{EscapedSlashes, Template};

    fn redirect(parts: &[TemplatePart]) -> Redirect {
        Redirect { to: Template { text: String::new(), parts: parts.to_vec() }, status: StatusCode::FOUND }
    }

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.to_owned())
    }

    fn located(parts: &[TemplatePart], target: &str, rules: PathRules) -> Option<String> {
        let uri: Uri = target.parse().ok()?;
        let normal = normal(uri.path(), rules).ok()?;
        Some(location(&redirect(parts), "a.test", &normal, &uri, rules)?.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_url_of_a_client_stays_as_it_was_written() {
        let parts = [text("https://"), TemplatePart::Host, TemplatePart::Path, TemplatePart::QueryIfAny];
        for (target, location) in [
            ("/", "https://a.test/"),
            ("/a%20b/%c3%A9;x=1/?q=1&q=%2f?/+", "https://a.test/a%20b/%c3%A9;x=1/?q=1&q=%2f?/+"),
            ("/a?", "https://a.test/a?"),
            ("//evil.test/a//b", "https://a.test/evil.test/a//b"),
            ("http://other.test", "https://a.test/"),
            ("/é\"{}?é|", "https://a.test/%C3%A9%22%7B%7D?%C3%A9%7C"),
        ] {
            assert_eq!(located(&parts, target, PathRules::default()).as_deref(), Some(location), "{target}");
        }
        let without_host = location(&redirect(&parts), "", "/", &Uri::from_static("/"), PathRules::default());
        assert_eq!(without_host, None);
    }

    #[test]
    fn segments_and_the_rest_are_put_in() {
        let parts = [text("/new/"), TemplatePart::Segment(1), text("/"), TemplatePart::Rest(2)];
        for (target, location) in [
            ("/v1/ac%6de/x/y/?q", "/new/acme/x/y/"),
            ("//v1//acme//x", "/new/acme/x"),
            ("/v1/acme", "/new/acme/"),
            ("/v1/a%26b=%25/x", "/new/a&b=%25/x"),
        ] {
            assert_eq!(located(&parts, target, PathRules::default()).as_deref(), Some(location), "{target}");
        }
        let parts = [text("/login?next="), TemplatePart::Path, text("&"), TemplatePart::Query];
        let location = located(&parts, "/a&admin=1/%26;b+c?q=1", PathRules::default()).unwrap();
        assert_eq!(location, "/login?next=/a%26admin%3D1/%2526%3Bb%2Bc&q=1");
    }

    proptest! {
        #[test]
        fn no_request_chooses_the_host(target in "/[/a.@:;%25cCfF\\\\?#é-]{0,12}", slashes in 0..3_usize) {
            let rules = [EscapedSlashes::Reject, EscapedSlashes::Keep, EscapedSlashes::Decode][slashes];
            let rules = PathRules { escaped_slashes: rules, ..PathRules::default() };
            for parts in [
                &[TemplatePart::Path, text("x")][..],
                &[text("/"), TemplatePart::Rest(0), text("/"), TemplatePart::Rest(0)],
                &[text("/"), TemplatePart::Rest(1), text("/"), TemplatePart::Segment(0)],
                &[text("/"), TemplatePart::Segment(0), TemplatePart::QueryIfAny],
            ] {
                if let Some(location) = located(parts, &target, rules) {
                    prop_assert!(location.starts_with('/'), "{}", location);
                    prop_assert!(!location.starts_with("//") && !location.starts_with("/\\"), "{}", location);
                }
            }
        }
    }
}
