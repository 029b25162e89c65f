//! `redirect` of a route: where clients are sent.
//!
//! A location begins with a scheme and a host, or with one slash, and only `{host}` can be a part of the host. Otherwise a
//! client could choose the host with a path like `//evil.example`, and send others there by a link to this site.

use std::ops::Range;

use http::StatusCode;

use crate::config::read::{Field, Wrong, set};
use crate::config::report::{either, nearest, quoted};
use crate::config::{LocationPart, PathPattern, Redirect, Segment, values};

const EXAMPLE: &str = "write a URL or a path, like \"https://{host}{path}\" or \"/new{path}\"";
const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];
/// What `to` can contain besides the captures of the route.
const BUILT_IN: [&str; 4] = ["host", "path", "query", "rest"];

/// Reads it. `path` is that of the route, if it has no error.
pub(super) fn read(field: &Field<'_>, path: Option<&PathPattern>) -> Option<Redirect> {
    if !field.is_table() {
        field.mistyped("a table", "write redirect = { to = \"https://{host}{path}\", status = 308 }");
        return None;
    }
    let section = field.section("`redirect`")?;
    let mut status = StatusCode::PERMANENT_REDIRECT;
    if let Some(field) = section.field("status") {
        set(&mut status, values::status(&field, 300..=399));
        if !STATUSES.contains(&status.as_u16()) {
            field.report(
                format!("{} is not the status of a redirect", status.as_u16()),
                "allowed: 301, 302, 303, 307, 308",
            );
        }
    }
    let to = section.required("to", EXAMPLE);
    section.close(&[]);
    let (to, path) = (to?, path?);
    let parts = to.parse(|text| parts(text, path))?;
    Some(Redirect { text: to.text()?.to_owned(), parts, status })
}

/// A part of a location and its place in the text.
type Placed = (LocationPart, Range<usize>);

fn parts(text: &str, path: &PathPattern) -> Result<Vec<LocationPart>, Wrong> {
    if let Some((at, found)) = text.char_indices().find(|(_, c)| !c.is_ascii_graphic() || "\"<>\\^`|".contains(*c)) {
        let help = "write it percent-encoded, like %20 for a space";
        return Err(Wrong::new(format!("a location cannot contain {found:?}"), help).at(at..at + found.len_utf8()));
    }
    let placed = placed(text, path)?;
    check_beginning(text, &placed)?;
    check_query(text, &placed)?;
    let mut parts: Vec<_> = placed.into_iter().map(|(part, _)| part).collect();
    add_query(text, &mut parts);
    if parts[..] == [LocationPart::Path, LocationPart::QueryIfAny] {
        return Err(Wrong::new("this sends every request to itself again", EXAMPLE));
    }
    Ok(parts)
}

/// Splits a text at its placeholders.
fn placed(text: &str, path: &PathPattern) -> Result<Vec<Placed>, Wrong> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let rest = &text[at..];
        let Some(inner) = rest.strip_prefix('{') else {
            let end = at + rest.find(['{', '}']).unwrap_or(rest.len());
            if end == at {
                let help = "a placeholder is a name in braces; write a brace itself as %7B or %7D";
                return Err(Wrong::new("a `}` without a `{`", help).at(at..at + 1));
            }
            parts.push((LocationPart::Text(text[at..end].to_owned()), at..end));
            at = end;
            continue;
        };
        let Some(length) = inner.find('}') else {
            let help = "a placeholder is a name in braces, like {path}; write a brace itself as %7B";
            return Err(Wrong::new("a `{` without a `}`", help).at(at..text.len()));
        };
        let place = at..at + length + 2;
        at = place.end;
        let part = placeholder(&inner[..length], path).map_err(|wrong| wrong.at(place.clone()))?;
        parts.push((part, place));
    }
    Ok(parts)
}

fn placeholder(name: &str, path: &PathPattern) -> Result<LocationPart, Wrong> {
    let captured = |segment: &Segment| matches!(segment, Segment::Capture(captured) if captured == name);
    let captured = path.segments.iter().position(captured);
    let built_in = match name {
        "host" => LocationPart::Host,
        "path" => LocationPart::Path,
        "query" => LocationPart::Query,
        "rest" if path.rest => LocationPart::Rest(path.segments.len()),
        "rest" if captured.is_none() => {
            let message = format!("{} has no final `*`, so there is no {{rest}}", quoted(&path.text));
            return Err(Wrong::new(message, "{path} is the whole path"));
        }
        _ => {
            return captured.map(LocationPart::Segment).ok_or_else(|| {
                let names = path.segments.iter().filter_map(|segment| match segment {
                    Segment::Capture(name) => Some(name.as_str()),
                    Segment::Literal(_) => None,
                });
                let known: Vec<_> = names.chain(BUILT_IN).collect();
                let help = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean {{{near}}}?"),
                    None => format!("allowed in braces: {}", either(&known)),
                };
                Wrong::new(format!("{} captures no `{name}`", quoted(&path.text)), help)
            });
        }
    };
    match captured {
        None => Ok(built_in),
        Some(_) => {
            let message = format!("{{{name}}} could be the segment of the path or what is built in");
            Err(Wrong::new(message, "give the capture of the path another name"))
        }
    }
}

/// Checks that nothing that a client writes can become the host, or a part of it.
fn check_beginning(text: &str, placed: &[Placed]) -> Result<(), Wrong> {
    let Some(authority) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        let begins_with_path = placed.first().is_some_and(|(part, _)| *part == LocationPart::Path);
        if begins_with_path || (text.starts_with('/') && !text.starts_with("//")) {
            return check_slashes(text, placed);
        }
        return Err(Wrong::new(format!("{} is not a location", quoted(text)), EXAMPLE));
    };
    let start = text.len() - authority.len();
    let path = placed.iter().find(|(part, _)| *part == LocationPart::Path).map_or(text.len(), |(_, place)| place.start);
    let end = authority.find(['/', '?', '#']).map_or(text.len(), |at| start + at).min(path);
    if end == start {
        return Err(Wrong::new("the URL has no host", EXAMPLE).at(0..start));
    }
    for (part, place) in placed.iter().filter(|(_, place)| place.start < end) {
        let wrong = |message: String| Wrong::new(message, "the host is {host} or a name, and perhaps a port");
        match part {
            LocationPart::Host => {}
            LocationPart::Text(_) => {
                let of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
                let text = &text[place.start.max(start)..place.end.min(end)];
                if !text.bytes().all(of_host) {
                    return Err(wrong(format!("{} is not a part of a host", quoted(text))).at(place.clone()));
                }
            }
            _ => return Err(wrong(format!("{} cannot be a part of the host", &text[place.clone()])).at(place.clone())),
        }
    }
    check_slashes(text, placed)
}

/// Checks that no slash is in front of `{path}`, which begins with one.
fn check_slashes(text: &str, placed: &[Placed]) -> Result<(), Wrong> {
    for (part, place) in placed {
        if *part == LocationPart::Path && text[..place.start].ends_with('/') {
            let wrong = Wrong::new("{path} begins with a slash", "remove the slash in front of it");
            return Err(wrong.at(place.start - 1..place.end));
        }
    }
    Ok(())
}

/// Checks that the query of a request becomes nothing but a part of the query.
fn check_query(text: &str, placed: &[Placed]) -> Result<(), Wrong> {
    let query = placed.iter().find(|(part, _)| *part == LocationPart::Query);
    match query {
        Some((_, place)) if !text[..place.start].contains('?') => {
            let help = "write it behind a question mark; without any, the query of the request is added anyway";
            Err(Wrong::new("{query} is not in the query of the location", help).at(place.clone()))
        }
        _ => Ok(()),
    }
}

/// Adds the query of the request, unless the location says itself what follows the path. A question mark at the end drops
/// the query.
fn add_query(text: &str, parts: &mut Vec<LocationPart>) {
    match text.find(['?', '#']) {
        None => parts.push(LocationPart::QueryIfAny),
        Some(at) if text[at..] == *"?" => {
            if let Some(LocationPart::Text(last)) = parts.last_mut() {
                last.pop();
            }
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> PathPattern {
        let segments = vec![Segment::Literal("v1".to_owned()), Segment::Capture("tenant".to_owned())];
        PathPattern { text: "/v1/{tenant}/*".to_owned(), segments, rest: true }
    }

    fn text(text: &str) -> LocationPart {
        LocationPart::Text(text.to_owned())
    }

    #[test]
    fn reads_locations() {
        use LocationPart::{Host, Path, Query, QueryIfAny, Rest, Segment};
        for (to, expected) in [
            ("https://{host}{path}", vec![text("https://"), Host, Path, QueryIfAny]),
            ("https://www.{host}:8443/x", vec![text("https://www."), Host, text(":8443/x"), QueryIfAny]),
            ("http://[::1]:80", vec![text("http://[::1]:80"), QueryIfAny]),
            ("/new{path}", vec![text("/new"), Path, QueryIfAny]),
            ("{path}/", vec![Path, text("/"), QueryIfAny]),
            ("/{tenant}/{rest}", vec![text("/"), Segment(1), text("/"), Rest(2), QueryIfAny]),
            ("/a?", vec![text("/a")]),
            ("/a?b=1&{query}", vec![text("/a?b=1&"), Query]),
            ("/a?next={path}", vec![text("/a?next="), Path]),
            ("/a#{tenant}", vec![text("/a#"), Segment(1)]),
        ] {
            assert_eq!(parts(to, &route()), Ok(expected), "{to}");
        }
    }

    #[test]
    fn the_host_of_a_location_is_not_left_to_clients() {
        for to in [
            "",
            "new",
            "//{host}/",
            "//evil.example/",
            "/{path}",
            "{tenant}/x",
            "{rest}",
            "{query}",
            "{host}/x",
            "https://",
            "https:///x",
            "https://{path}",
            "https://{tenant}/",
            "https://{tenant}.example.com/",
            "https://example.com{rest}",
            "https://example.com{tenant}",
            "https://u@{host}/",
            "https://{host}/{path}",
            "/{query}",
            "javascript:x",
            "ftp://a/",
            "/a b",
            "/\\evil.example",
            "/é",
            "/\r\nset-cookie:a=b",
            "/{tenan}",
            "/{tenant",
            "/tenant}",
            "/{}",
            "{path}",
        ] {
            assert!(parts(to, &route()).is_err(), "{to}");
        }
    }
}
