//! What a route changes of a request for the upstream: its path, and the values of headers.
//!
//! A rewrite of the path contains captures as the client has written them, since the upstream decodes the path. The result
//! is normalized, like every path of a client, so a path that servers read differently is refused here too.
//!
//! In values of headers, captures are in the normal form of the path, by which limits count, so that the upstream cannot
//! read another value than the counted one. Characters that separate values or parameters, and those that a header cannot
//! contain, are percent-encoded. So clients cannot add a line, a value or a parameter to a header.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::ops::Deref;

use http::{HeaderValue, header};

use crate::base::http::host;
use crate::base::http::path::{self, BadPath};
use crate::base::percent;
use crate::config::{EscapedSlashes, HeaderChanges, HeaderText, PathRules, SentPath, Template, TemplatePart};

/// The path for the upstream, for a path that [`path::normal`] has accepted. It begins with one slash. Fails for a rewrite in
/// which a capture and the text beside it in the configuration together become a dot segment, so that servers could read
/// another path.
pub fn sent<'a>(sent: &SentPath, path: &'a str, rules: PathRules) -> Result<Cow<'a, str>, BadPath> {
    match sent {
        SentPath::Stripped(segments) => Ok(path::onward(path, *segments, rules)),
        SentPath::Rewritten(template) => rewritten(template, path, rules).map(Cow::Owned),
    }
}

fn rewritten(template: &Template, path: &str, rules: PathRules) -> Result<String, BadPath> {
    let mut written = String::with_capacity(template.text.len() + path.len());
    for part in &template.parts {
        match part {
            // An empty `{rest}` leaves two slashes.
            TemplatePart::Text(text) if written.ends_with('/') => {
                written.push_str(text.strip_prefix('/').unwrap_or(text));
            }
            TemplatePart::Text(text) => written.push_str(text),
            TemplatePart::Segment(index) => percent::push_as_written(&mut written, &path::segment(path, *index, rules)),
            TemplatePart::Rest(segments) => {
                let rest = path::onward(path, *segments, rules);
                percent::push_as_written(&mut written, rest.trim_start_matches('/'));
            }
            // A rewrite cannot have these placeholders.
            TemplatePart::ClientIp
            | TemplatePart::Host
            | TemplatePart::RequestId
            | TemplatePart::Path
            | TemplatePart::Query
            | TemplatePart::QueryIfAny => {}
        }
    }
    // The client's encoded slashes are checked already, and those of the configuration are intended.
    path::normal(&written, PathRules { escaped_slashes: EscapedSlashes::Keep, ..rules })?;
    Ok(written)
}

/// The parts of a request that values of headers can contain.
#[derive(Clone, Copy, Debug)]
pub struct TemplateInput<'a> {
    pub client_ip: IpAddr,
    /// In normal form. Empty if the request has none.
    pub host: &'a str,
    /// In the normal form in which routes match it.
    pub path: &'a str,
    /// Empty if the request has no id.
    pub request_id: &'a [u8],
}

pub enum PreparedChanges {
    Fixed(HeaderChanges<HeaderValue>),
    Templates(HeaderChanges<HeaderText>),
}

pub enum CurrentChanges<'a> {
    Prepared(&'a HeaderChanges<HeaderValue>),
    Filled(Box<HeaderChanges<HeaderValue>>),
}

impl Deref for CurrentChanges<'_> {
    type Target = HeaderChanges<HeaderValue>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Prepared(changes) => changes,
            Self::Filled(changes) => changes,
        }
    }
}

impl PreparedChanges {
    /// `None` if nothing changes.
    pub fn new(changes: &HeaderChanges<HeaderText>) -> Option<Box<Self>> {
        if changes.is_empty() {
            return None;
        }
        let mut has_templates = false;
        let fixed = changes.filled(|text| match text {
            HeaderText::Fixed(value) => Some(value.clone()),
            HeaderText::Template(_) => {
                has_templates = true;
                None
            }
        });
        Some(Box::new(if has_templates { Self::Templates(changes.clone()) } else { Self::Fixed(fixed) }))
    }

    pub fn of(&self, input: &TemplateInput<'_>) -> CurrentChanges<'_> {
        match self {
            Self::Fixed(changes) => CurrentChanges::Prepared(changes),
            Self::Templates(changes) => CurrentChanges::Filled(Box::new(input.fill(changes))),
        }
    }
}

impl TemplateInput<'_> {
    fn fill(&self, changes: &HeaderChanges<HeaderText>) -> HeaderChanges<HeaderValue> {
        let mut filled = changes.filled(|text| match text {
            HeaderText::Fixed(value) => Some(value.clone()),
            HeaderText::Template(template) => self.value(template),
        });
        // If the host is invalid, the upstream gets the host of its URL.
        let is_host = |value: &HeaderValue| value.to_str().is_ok_and(|value| host::normal(value).is_some());
        filled.set.retain(|(name, value)| *name != header::HOST || is_host(value));
        filled
    }

    /// The value without blanks around it; `None` if it is empty, or needs the host of a request without one.
    fn value(&self, template: &Template) -> Option<HeaderValue> {
        if self.host.is_empty() && template.needs_host() {
            return None;
        }
        let mut value = String::with_capacity(template.text.len() + 32);
        for part in &template.parts {
            match part {
                TemplatePart::Text(text) => value.push_str(text),
                TemplatePart::ClientIp => _ = write!(value, "{}", self.client_ip),
                TemplatePart::Host => push(&mut value, self.host),
                TemplatePart::RequestId => push(&mut value, std::str::from_utf8(self.request_id).unwrap_or_default()),
                TemplatePart::Segment(index) => {
                    push(&mut value, self.path.split('/').skip(1).nth(*index).unwrap_or_default());
                }
                TemplatePart::Rest(segments) => push(&mut value, after(self.path, *segments)),
                // Values of headers cannot have these placeholders.
                TemplatePart::Path | TemplatePart::Query | TemplatePart::QueryIfAny => {}
            }
        }
        let value = value.trim();
        if value.is_empty() { None } else { HeaderValue::from_str(value).ok() }
    }
}

/// The path after the first `segments` segments, without its first slash.
fn after(path: &str, segments: usize) -> &str {
    (0..=segments).fold(path, |rest, _| rest.split_once('/').map_or("", |(_, rest)| rest))
}

/// Appends a text. Percent-encodes everything that has no place in a segment.
fn push(value: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b',' | b';' | b'=' | b'&' | b'\'' | b'(' | b')' => percent::push_escaped(value, byte),
            b'/' | b'%' | b'[' | b']' => value.push(char::from(byte)),
            byte => percent::push(value, byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::PathMatching;

    const RULES: PathRules = PathRules { matching: PathMatching::Forgiving, escaped_slashes: EscapedSlashes::Reject };

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.to_owned())
    }

    fn template(parts: &[TemplatePart]) -> Template {
        Template { text: String::new(), parts: parts.to_vec() }
    }

    fn of(parts: &[TemplatePart], path: &str, rules: PathRules) -> Result<String, BadPath> {
        rewritten(&template(parts), path, rules)
    }

    #[test]
    fn captures_and_the_rest_are_put_in_as_written() {
        use TemplatePart::{Rest, Segment};
        let both = [text("/in/"), Segment(1), text("/"), Rest(2)];
        for (path, expected) in [
            ("/v1/acme/x/y", "/in/acme/x/y"),
            ("/v1/acme", "/in/acme/"),
            ("/v1/acme/", "/in/acme/"),
            ("//v1//acme//x//y/", "/in/acme/x//y/"),
            ("/v1/ac%6de/%c3%a9%20", "/in/ac%6de/%c3%a9%20"),
            ("/v1/a%3Fb%23c/x%3f", "/in/a%3Fb%23c/x%3f"),
            ("/v1/é\"/{}", "/in/%C3%A9%22/%7B%7D"),
            ("/;a/v1;b/acme;c=d/x;e", "/in/acme/x;e"),
            ("/v1/acme%3Bc/x", "/in/acme/x"),
            ("/v1/.../..a", "/in/.../..a"),
        ] {
            assert_eq!(of(&both, path, RULES).as_deref(), Ok(expected), "{path}");
        }
        for (path, expected) in [("/v1/acme", "/acme/in"), ("/v1/acme/x/", "/x/acme/in"), ("/v1/acme/x", "/x/acme/in")]
        {
            let parts = [text("/"), Rest(2), text("/"), Segment(1), text("/in")];
            assert_eq!(of(&parts, path, RULES).as_deref(), Ok(expected), "{path}");
        }
        let exact = PathRules { matching: PathMatching::Exact, ..RULES };
        assert_eq!(of(&both, "/v1/acme;c=d/x", exact).as_deref(), Ok("/in/acme;c=d/x"));
        let keep = PathRules { escaped_slashes: EscapedSlashes::Keep, ..RULES };
        assert_eq!(of(&both, "/v1/a%2Fb/c%2fd", keep).as_deref(), Ok("/in/a%2Fb/c%2fd"));
        let decode = PathRules { escaped_slashes: EscapedSlashes::Decode, ..RULES };
        assert_eq!(of(&both, r"/v1%2Facme\x%5Cy", decode).as_deref(), Ok("/in/acme/x/y"));
    }

    #[test]
    fn a_capture_and_a_text_make_no_dot_segment() {
        use TemplatePart::{Rest, Segment};
        let exact = PathRules { matching: PathMatching::Exact, ..RULES };
        for (parts, path) in [
            (&[text("/a/.."), Rest(1)][..], "/x"),
            (&[text("/a/"), Rest(1), text("..")], "/x/y/"),
            (&[text("/a/."), Segment(0)], "/;x"),
        ] {
            assert_eq!(of(parts, path, exact), Err(BadPath::DotSegment), "{parts:?}");
        }
    }

    proptest! {
        #[test]
        fn a_capture_stays_in_its_segment(target in "/([a.;%:?#é~]|%2[0-9A-F]|%[35][0-9a-f]|/|\\\\){0,12}", slashes in 0..3_usize, exact in any::<bool>()) {
            let escaped_slashes = [EscapedSlashes::Reject, EscapedSlashes::Keep, EscapedSlashes::Decode][slashes];
            let matching = if exact { PathMatching::Exact } else { PathMatching::Forgiving };
            let rules = PathRules { matching, escaped_slashes };
            let target = target.split(['?', '#']).next().unwrap_or_default();
            let Ok(normal) = path::normal(target, rules) else { return Ok(()) };
            let Some(capture) = normal.split('/').nth(1).filter(|segment| !segment.is_empty()) else { return Ok(()) };
            let parts = [text("/x-"), TemplatePart::Segment(0), text("-y/"), TemplatePart::Segment(0), text("/z")];
            let written = of(&parts, target, rules).unwrap();
            prop_assert_eq!(written.matches('/').count(), 3, "{}", written);
            prop_assert!(!written.contains(['?', '#']), "{}", written);
            let read = path::normal(&written, PathRules { escaped_slashes: EscapedSlashes::Keep, ..rules }).unwrap();
            prop_assert_eq!(read, format!("/x-{capture}-y/{capture}/z"));

            let rest = [text("/"), TemplatePart::Rest(0), text("/"), TemplatePart::Segment(0)];
            let written = of(&rest, target, rules).unwrap();
            prop_assert!(written.starts_with('/') && !written.starts_with("//"), "{}", written);
        }
    }

    fn value(parts: &[TemplatePart], host: &str, path: &str) -> Option<String> {
        let input = TemplateInput { client_ip: "2001:db8::1".parse().unwrap(), host, path, request_id: b"r-1" };
        Some(input.value(&template(parts))?.to_str().unwrap().to_owned())
    }

    #[test]
    fn placeholders_are_filled_in() {
        use TemplatePart::{ClientIp, Host, Rest, Segment};
        for (parts, path, expected) in [
            (&[Segment(1)][..], "/v1/acme/x/y", Some("acme")),
            (&[Segment(0), text(" of "), Segment(1)], "/v1/acme", Some("v1 of acme")),
            (&[Rest(2)], "/v1/acme/x/y", Some("x/y")),
            (&[Rest(2)], "/v1/acme/", None),
            (&[Rest(2)], "/v1/acme", None),
            (&[Rest(0)], "/", None),
            (&[text("rest "), Rest(2)], "/v1/acme", Some("rest")),
            (&[Host, text(" "), ClientIp], "/", Some("a.test 2001:db8::1")),
            (&[Segment(0)], "/a,b;c=d&e'(f)+@:~", Some("a%2Cb%3Bc%3Dd%26e%27%28f%29+@:~")),
            (&[Segment(0)], "/%20%C3%A9%22", Some("%20%C3%A9%22")),
        ] {
            assert_eq!(value(parts, "a.test", path).as_deref(), expected, "{parts:?} {path}");
        }
        assert_eq!(value(&[Host], "[::1]", "/").as_deref(), Some("[::1]"));
        assert_eq!(value(&[TemplatePart::RequestId], "a.test", "/").as_deref(), Some("r-1"));
        assert_eq!(value(&[text("www."), Host], "", "/"), None);
        assert_eq!(value(&[text("host="), Host], "a;for=1", "/").as_deref(), Some("host=a%3Bfor%3D1"));
    }

    #[test]
    fn a_host_that_is_not_valid_is_not_set() {
        let template = HeaderText::Template(template(&[text("www."), TemplatePart::Host]));
        let changes = HeaderChanges { set: vec![(header::HOST, template)], ..HeaderChanges::default() };
        let set = |host| {
            let input = TemplateInput { client_ip: IpAddr::from([127, 0, 0, 1]), host, path: "/", request_id: b"" };
            PreparedChanges::new(&changes).unwrap().of(&input).set.len()
        };
        assert_eq!(["a.test", "[::1]", ""].map(set), [1, 0, 0]);
    }

    proptest! {
        #[test]
        fn clients_add_nothing_to_a_header(target in "/[ -~é]{0,20}(%[0-9a-f]{2}){0,3}/[/,;=%0-9A-F]{0,9}", keep in any::<bool>()) {
            let escaped_slashes = if keep { EscapedSlashes::Keep } else { EscapedSlashes::Decode };
            let rules = PathRules { escaped_slashes, matching: PathMatching::Exact };
            let Ok(path) = path::normal(&target, rules) else { return Ok(()) };
            let parts = [text("x="), TemplatePart::Segment(0), text(";y="), TemplatePart::Rest(1)];
            let value = value(&parts, "a.test", &path).unwrap();
            prop_assert_eq!(value.matches(['=', ';', ',', '"', ' ']).count(), 3, "{}", value);
            prop_assert!(value.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
