//! The path that the upstream gets: the client's, or that of `rewrite` in the route.
//!
//! A rewrite contains captures as the client has written them, since the upstream decodes the path. The result is normalized,
//! like every path of a client, so a path that servers read differently is refused here too.

use std::borrow::Cow;

use super::path::{self, BadPath};
use crate::base::percent;
use crate::config::{EscapedSlashes, PathRules, SentPath, Template, TemplatePart};

/// The path for the upstream, for a path that [`path::normal`] has accepted. It begins with one slash.
///
/// # Errors
/// Those of a rewrite: when a capture and the text beside it in the configuration together become a dot segment, so that
/// servers could read another path.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::PathMatching;

    const RULES: PathRules = PathRules { matching: PathMatching::Forgiving, escaped_slashes: EscapedSlashes::Reject };

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.to_owned())
    }

    fn of(parts: &[TemplatePart], path: &str, rules: PathRules) -> Result<String, BadPath> {
        rewritten(&Template { text: String::new(), parts: parts.to_vec() }, path, rules)
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
}
