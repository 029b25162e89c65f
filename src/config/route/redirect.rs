//! `redirect` of a route: where clients are sent.
//!
//! A location begins with a scheme and a host, or with one slash, and only `{host}` can be a part of the host. Otherwise an
//! attacker could choose the host by a path like `//evil.example`, and send others there with a link to this site.

use http::StatusCode;

use super::path_pattern::PathPattern;
use super::template::{Placed, Placeholders, Template, TemplatePart, check_characters, check_host};
use crate::config::kinds::{status_code, text};
use crate::config::read::{Section, Wrong, tables};

const EXAMPLE: &str = "write a URL or a path, like \"https://{host}{path}\" or \"/new{path}\"";
const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];
const PLACEHOLDERS: Placeholders = Placeholders { built_in: &["host", "path", "query", "rest"], braces: "%7B or %7D" };

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The location. Its texts need no escapes.
    pub to: Template,
    pub status: StatusCode,
}

impl Redirect {
    /// Whether each request over TLS is redirected to its own URL, in an endless loop.
    pub fn is_same_url_over_tls(&self) -> bool {
        matches!(
            &self.to.parts[..],
            [TemplatePart::Text(scheme), TemplatePart::Host, TemplatePart::Path, TemplatePart::QueryIfAny]
                if scheme == "https://"
        )
    }
}

tables! {
    /// Where the gateway redirects clients.
    keys "`redirect`" {
        /// A URL or a path, with placeholders.
        to: () = text().required() => "https://{host}{path}";
        /// 301, 302, 303, 307 or 308.
        status: StatusCode = status_code(300, 399), 308;
    }
}

/// `path` is that of the route, if it has no error.
pub(super) fn read(section: &Section<'_>, path: Option<&PathPattern>) -> Option<Redirect> {
    let status = section.read(&keys::status);
    if let Some(field) = section.field(&keys::status).filter(|_| !STATUSES.contains(&status.as_u16())) {
        let message = format!("{} is not the status of a redirect", status.as_u16());
        field.report(message, "allowed: 301, 302, 303, 307, 308");
    }
    let to = section.needed(&keys::to);
    let (to, path) = (to?, path?);
    let parts = to.parse(|text| parts(text, path))?;
    Some(Redirect { to: Template { text: to.text()?.to_owned(), parts }, status })
}

fn parts(text: &str, path: &PathPattern) -> Result<Vec<TemplatePart>, Wrong> {
    check_characters(text, "a location")?;
    let placed = PLACEHOLDERS.split(text, path)?;
    check_beginning(text, &placed)?;
    check_query(text, &placed)?;
    let mut parts: Vec<_> = placed.into_iter().map(|(part, _)| part).collect();
    add_query(text, &mut parts);
    if parts[..] == [TemplatePart::Path, TemplatePart::QueryIfAny] {
        return Err(Wrong::new("this redirects every request to the same URL again", EXAMPLE));
    }
    Ok(parts)
}

/// Checks that nothing that a client writes can become a part of the host, except `{host}`.
fn check_beginning(text: &str, placed: &[Placed]) -> Result<(), Wrong> {
    let Some(authority) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        let begins_with_path = placed.first().is_some_and(|(part, _)| *part == TemplatePart::Path);
        if begins_with_path || (text.starts_with('/') && !text.starts_with("//")) {
            return check_slashes(text, placed);
        }
        return Err(Wrong::not(text, "a location", EXAMPLE));
    };
    let start = text.len() - authority.len();
    let path = placed.iter().find(|(part, _)| *part == TemplatePart::Path).map_or(text.len(), |(_, place)| place.start);
    let end = authority.find(['/', '?', '#']).map_or(text.len(), |at| start + at).min(path);
    if end == start {
        return Err(Wrong::new("the URL has no host", EXAMPLE).at(0..start));
    }
    check_host(text, placed, &(start..end))?;
    check_slashes(text, placed)
}

/// Checks that no slash precedes `{path}`, which begins with one.
fn check_slashes(text: &str, placed: &[Placed]) -> Result<(), Wrong> {
    for (part, place) in placed {
        if *part == TemplatePart::Path && text[..place.start].ends_with('/') {
            let wrong = Wrong::new("{path} begins with a slash", "remove the slash in front of it");
            return Err(wrong.at(place.start - 1..place.end));
        }
    }
    Ok(())
}

/// Checks that the query of a request can only become a part of the query.
fn check_query(text: &str, placed: &[Placed]) -> Result<(), Wrong> {
    let query = placed.iter().find(|(part, _)| *part == TemplatePart::Query);
    match query {
        Some((_, place)) if !text[..place.start].contains('?') => {
            let help = "write it after a question mark; without one, the query of the request is added anyway";
            Err(Wrong::new("{query} is not in the query of the location", help).at(place.clone()))
        }
        _ => Ok(()),
    }
}

/// Adds the query of the request, unless the location has a query or a fragment. A question mark at the end drops the query.
fn add_query(text: &str, parts: &mut Vec<TemplatePart>) {
    match text.find(['?', '#']) {
        None => parts.push(TemplatePart::QueryIfAny),
        Some(at) if text[at..] == *"?" => {
            if let Some(TemplatePart::Text(last)) = parts.last_mut() {
                last.pop();
            }
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Segment;

    fn route() -> PathPattern {
        let segments = vec![Segment::Literal("v1".to_owned()), Segment::Capture("tenant".to_owned())];
        PathPattern { text: "/v1/{tenant}/*".to_owned(), segments, rest: true }
    }

    fn text(text: &str) -> TemplatePart {
        TemplatePart::Text(text.to_owned())
    }

    #[test]
    fn reads_locations() {
        use TemplatePart::{Host, Path, Query, QueryIfAny, Rest, Segment};
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
