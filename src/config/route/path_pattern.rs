//! The paths of routes: exact, `{name}` for one segment, a final `*` for the rest.
//!
//! Paths of requests are normalized before they are matched. So literals of patterns are normalized in the same way; otherwise
//! they would never match.

use std::ops::Range;

use super::path_guess::{guess, is_expression};
use crate::base::percent;
use crate::config::read::{Field, Wrong};
use crate::config::report::{nearest, quoted};
use crate::config::{Source, values};

/// Segments, then optionally a final `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// As written.
    pub text: String,
    /// The parts between slashes. `/` has one empty literal, and `/a/` ends with one.
    pub segments: Vec<Segment>,
    /// Whether a final `*` matches the rest, which may be empty.
    pub rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Literal(String),
    /// `{name}`: any one segment.
    Capture(String),
}

impl PathPattern {
    /// The names of its captures.
    pub(super) fn captures(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }
}

pub(super) fn pattern(text: &str) -> Result<PathPattern, Wrong> {
    read(text).map_err(|wrong| if is_expression(text) { expression(text) } else { wrong })
}

fn expression(text: &str) -> Wrong {
    const PATHS: &str = "a path has no regular expressions: a final `*` matches the rest, {name} one segment, like \
                         \"/api/*\" or \"/users/{id}\"";
    let meant = guess(text).filter(|path| read(path).is_ok());
    let help = meant.map_or(PATHS.to_owned(), |path| format!("did you mean {path:?}? {PATHS}"));
    Wrong::not(text, "a path", help)
}

fn read(text: &str) -> Result<PathPattern, Wrong> {
    let Some(inner) = text.strip_prefix('/') else {
        return Err(Wrong::not(text, "a path", format!("a path begins with a slash: \"/{}\"", text.trim())));
    };
    if let Some((at, found)) =
        text.char_indices().find(|(_, c)| c.is_control() || c.is_whitespace() || "?#".contains(*c))
    {
        let help = match found {
            '?' => "a route matches by the path, not by the query; a limit can count by `query:NAME`",
            '#' => "clients do not send the text after a `#`",
            _ => "write a space as %20",
        };
        return Err(Wrong::new(format!("a path cannot contain {found:?}"), help).at(at..at + found.len_utf8()));
    }
    let mut pattern = PathPattern { text: text.to_owned(), segments: Vec::new(), rest: false };
    let mut start = 1;
    for part in inner.split('/') {
        let place = start..start + part.len();
        start = place.end + 1;
        let last = place.end == text.len();
        if part == "*" && last {
            pattern.rest = true;
            break;
        }
        if part.is_empty() && !last {
            let help = "repeated slashes in a request count as one; write one slash";
            return Err(Wrong::new("a path cannot have an empty segment", help).at(place.start - 1..place.end + 1));
        }
        pattern.segments.push(segment(part, &pattern.segments, &place, text)?);
    }
    Ok(pattern)
}

fn segment(part: &str, earlier: &[Segment], place: &Range<usize>, whole: &str) -> Result<Segment, Wrong> {
    let wrong = |message: &str, help: &str| Err(Wrong::new(message, help).at(place.clone()));
    if let Some(name) = part.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        if name == "*" || name.starts_with('*') || name.ends_with("..") {
            return wrong("a capture matches one segment", "write a final `*` for the rest of the path");
        }
        values::capture(name).map_err(|wrong| wrong.at(place.clone()))?;
        let capture = Segment::Capture(name.to_owned());
        if earlier.contains(&capture) {
            return wrong(&format!("`{{{name}}}` is captured twice"), "give the captures of a path different names");
        }
        return Ok(capture);
    }
    let before = part.trim_end_matches('*');
    if before != part && !before.contains('*') && place.end == whole.len() {
        let all_below = format!("{}/*", whole[..place.start + before.len()].trim_end_matches('/'));
        return wrong("a `*` must be a whole segment", &format!("write {all_below:?} for all paths below"));
    }
    if part.contains('*') {
        return wrong("a `*` must be the last segment of a path", "write `{name}` for one segment in the middle");
    }
    if part.contains(['{', '}']) {
        return wrong("a capture must be a whole segment", "write it between slashes, like /v1/{tenant}/users");
    }
    let literal = normal(part).map_err(|wrong| wrong.at(place.clone()))?;
    if literal == "." || literal == ".." {
        return wrong(
            "a path cannot have `.` or `..` segments",
            "requests with such segments are refused before routing",
        );
    }
    Ok(Segment::Literal(literal))
}

fn normal(part: &str) -> Result<String, Wrong> {
    let mut normal = String::new();
    let mut rest = part.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        let mut byte = *byte;
        if byte == b'%' {
            byte = percent::unescape(rest).ok_or_else(|| {
                Wrong::new("after a `%` there must be two hexadecimal digits", "write a `%` itself as %25")
            })?;
            rest = &rest[2..];
        }
        if byte.is_ascii_control() {
            let help = "requests with control characters in their path are refused before routing";
            return Err(Wrong::new("a path cannot have control characters", help));
        }
        percent::push(&mut normal, byte);
    }
    Ok(normal)
}

/// How many segments of the path the prefix `text` has.
pub(super) fn stripped(text: &str, path: &PathPattern) -> Result<usize, Wrong> {
    let message = format!("{} is not a prefix of the path {}", quoted(text), quoted(&path.text));
    let literals = path.segments.iter().take_while(|segment| matches!(segment, Segment::Literal(_))).count();
    let help = if literals == 0 || path.text == "/" {
        "this path does not begin with a literal segment, so there is nothing to strip".to_owned()
    } else {
        let longest = path.text.split('/').take(literals + 1).collect::<Vec<_>>().join("/");
        format!("a prefix is whole literal segments of the path, at most {:?}", longest.trim_end_matches('/'))
    };
    let wrong = || Wrong::new(message, help);
    let Some(prefix) = pattern(text).ok().filter(|prefix| !prefix.rest) else { return Err(wrong()) };
    let ends_empty = prefix.segments.last() == Some(&Segment::Literal(String::new()));
    let literal = prefix.segments.iter().all(|segment| matches!(segment, Segment::Literal(_)));
    if ends_empty || !literal || !path.segments.starts_with(&prefix.segments) {
        return Err(wrong());
    }
    Ok(prefix.segments.len())
}

/// Checks that requests on `path` have what a limit or upstream, which a route names here, uses in its sources.
pub(super) fn check_sources<'a>(
    named: &Field<'_>,
    owner: &str,
    sources: impl Iterator<Item = &'a Source>,
    path: &PathPattern,
) {
    let captured: Vec<_> = path.captures().collect();
    for wanted in sources {
        if let Source::Descriptor(_) = wanted {
            let message = format!("`{owner}` needs `{wanted}`, which requests do not have");
            named.report(message, "name it in [[decisions.descriptors]], or use another key");
        }
        let Source::Capture(wanted) = wanted else { continue };
        if captured.contains(&wanted.as_str()) {
            continue;
        }
        let help = match nearest(wanted, captured.iter().copied()) {
            Some(near) => format!("did you mean `path:{near}` in its key, or {{{wanted}}} in the path?"),
            None => format!("write {{{wanted}}} for a segment of the path, or use another key"),
        };
        named.report(format!("`{owner}` needs `path:{wanted}`, but `{}` captures no `{wanted}`", path.text), help);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> Segment {
        Segment::Literal(text.to_owned())
    }

    #[test]
    fn reads_patterns() {
        let capture = Segment::Capture("tenant".to_owned());
        for (text, segments, rest) in [
            ("/", vec![literal("")], false),
            ("/*", vec![], true),
            ("/v1/*", vec![literal("v1")], true),
            ("/v1/{tenant}/x", vec![literal("v1"), capture, literal("x")], false),
            ("/a/", vec![literal("a"), literal("")], false),
            ("/%7eme/a%2fb/é", vec![literal("~me"), literal("a%2Fb"), literal("%C3%A9")], false),
            ("/a%3ab/%7b", vec![literal("a:b"), literal("%7B")], false),
        ] {
            assert_eq!(pattern(text), Ok(PathPattern { text: text.to_owned(), segments, rest }), "{text}");
        }
    }

    #[test]
    fn refuses_other_patterns() {
        for text in [
            "", "*", "v1", "/*/a", "/a*", "/{a}b", "/{a", "/{}", "/{a}/{a}", "/a/../b", "/%2e%2e", "/%zz", "/%4",
            "/a b", "/a?b", "/a#b", "/a//b", "//", "/{*rest}", "/a\n", "/a%00", "/%7f",
        ] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn strips_whole_literal_segments() {
        let path = pattern("/v1/api/{tenant}/*").unwrap();
        assert_eq!(stripped("/v1", &path), Ok(1));
        assert_eq!(stripped("/v1/api", &path), Ok(2));
        for text in ["", "/", "v1", "/v", "/v1/", "/v2", "/v1/api/{tenant}", "/v1/api/x", "/v1/*"] {
            assert!(stripped(text, &path).is_err(), "{text}");
        }
        assert!(stripped("/", &pattern("/").unwrap()).is_err());
    }
}
