//! Checks the paths of routes against other spellings that servers treat as the same path.

use std::cmp::Reverse;

use http::Method;

use super::file::{Answer, RouteDraft};
use super::read::Source;
use super::report::quoted;
use super::{EscapedSlashes, Host, PathMatching, PathPattern, PathRules, Segment};

/// Reports a literal that can never match, because requests with this spelling are refused or read differently.
pub(super) fn unmatchable(route: &RouteDraft<'_>, rules: PathRules, source: &Source<'_>) {
    let Some(path) = &route.path else { return };
    for segment in &path.segments {
        let Segment::Literal(text) = segment else { continue };
        let has_slash = text.contains("%2F") || text.contains("%5C");
        let why = match rules.escaped_slashes {
            EscapedSlashes::Reject if has_slash => "requests with %2F or %5C in their path are refused",
            EscapedSlashes::Decode if has_slash => "%2F and %5C in the path of a request are slashes",
            _ if text.contains(';') && rules.matching == PathMatching::Forgiving => {
                "a `;` and the text after it in a segment are ignored"
            }
            _ => continue,
        };
        let help = if has_slash {
            "write a slash; or set escaped_slashes = \"keep\" in [server], if your upstreams treat it as part of a segment"
        } else {
            "remove it, or set path_matching = \"exact\" in [server]"
        };
        let message = format!("the path {} can never match: {why}", quoted(&path.text));
        source.report(route.path_span.clone(), message, help);
        return;
    }
}

/// Warns if another spelling of a limited exact path matches a wider route to the same upstream that lacks a limit. The
/// upstream may treat both spellings as the same path.
pub(super) fn ways_around(routes: &[RouteDraft<'_>], rules: PathRules, source: &Source<'_>) {
    for route in routes {
        let Some(path) = route.path.as_ref().filter(|path| !path.rest) else { continue };
        let around = spellings(route, path, rules).into_iter().find_map(|spelling| {
            let (taker, wider) = taker(routes, route, &spelling.segments)?;
            let is_there = |name: &str| taker.limits.iter().any(|limit| limit.text == name);
            let missing = route.limits.iter().map(|limit| limit.text).find(|limit| !is_there(limit))?;
            (upstream(taker)? == upstream(route)?).then_some((spelling, wider, missing))
        });
        let Some((spelling, wider, missing)) = around else { continue };
        let written = format!("/{}", spelling.segments.join("/"));
        let (written, wider) = (quoted(&written), quoted(&wider.text));
        let message = format!("{written} matches the route of {wider}, which lacks the limit `{missing}`");
        let help = format!(
            "if the upstream treats it as {}, {}; or add the limit to the other route",
            quoted(&path.text),
            spelling.remedy
        );
        source.warn(route.path_span.clone(), message, help);
    }
}

/// Another spelling of a route's path.
struct Spelling {
    segments: Vec<String>,
    /// The setting that makes it the same path here too.
    remedy: &'static str,
}

/// Spellings that the route does not match, but that some servers treat as its path. If `ignore_case` is set, to either
/// value, the author has decided about the case, and there is no warning about it.
fn spellings(route: &RouteDraft<'_>, path: &PathPattern, rules: PathRules) -> Vec<Spelling> {
    let sample = |segment: &Segment| match segment {
        Segment::Literal(text) => text.clone(),
        Segment::Capture(name) => name.clone(),
    };
    let segments: Vec<_> = path.segments.iter().map(sample).collect();
    let Some((last, before)) = segments.split_last() else { return Vec::new() };
    let mut spellings = Vec::new();
    if rules.matching == PathMatching::Exact && !last.is_empty() {
        let remedy = "set path_matching = \"forgiving\" in [server]";
        spellings.push(Spelling { segments: [&segments[..], &[String::new()]].concat(), remedy });
        spellings.push(Spelling { segments: [before, &[format!("{last};x")]].concat(), remedy });
    }
    if let (EscapedSlashes::Keep, Some((one, before))) = (rules.escaped_slashes, before.split_last()) {
        let remedy = "set escaped_slashes = \"reject\" or \"decode\" in [server]";
        spellings.push(Spelling { segments: [before, &[format!("{one}%2F{last}")]].concat(), remedy });
    }
    if route.ignore_case.is_none() {
        for (at, segment) in path.segments.iter().enumerate().rev() {
            let upper = sample(segment).to_ascii_uppercase();
            if matches!(segment, Segment::Literal(text) if *text != upper) {
                let mut segments = segments.clone();
                segments[at] = upper;
                let remedy = "set ignore_case = true in this route, otherwise ignore_case = false";
                spellings.push(Spelling { segments, remedy });
            }
        }
    }
    spellings
}

/// The route that matches a path instead of `route`, and its pattern: the most specific one for the same host and
/// method.
fn taker<'r, 'a>(
    routes: &'r [RouteDraft<'a>],
    route: &RouteDraft<'_>,
    segments: &[String],
) -> Option<(&'r RouteDraft<'a>, &'r PathPattern)> {
    let candidates = routes.iter().filter_map(|other| Some((other, other.host.as_ref()?, other.path.as_ref()?)));
    let takes = |(other, host, path): &(&RouteDraft<'_>, &Host, &PathPattern)| {
        let is_for_host = route.host.as_ref().is_some_and(|wanted| is_for(host, wanted));
        is_for_host
            && shares_a_method(other, route)
            && shares_a_scheme(other, route)
            && covers(path, other.ignore_case == Some(true), segments)
    };
    let most_specific = candidates.filter(takes).min_by_key(|(_, host, path)| {
        let host = match host {
            Host::Exact(_) => (0, Reverse(0)),
            Host::Under(name) => (1, Reverse(name.len())),
            Host::Any => (2, Reverse(0)),
        };
        let kinds = path.segments.iter().map(|segment| u8::from(matches!(segment, Segment::Capture(_))));
        (host, kinds.chain(path.rest.then_some(2)).collect::<Vec<_>>())
    });
    most_specific.map(|(other, _, path)| (other, path))
}

/// Whether a route for `host` matches all names that `wanted` matches.
fn is_for(host: &Host, wanted: &Host) -> bool {
    match (host, wanted) {
        (Host::Any, _) => true,
        (Host::Under(name), Host::Exact(inner) | Host::Under(inner))
            if inner.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')) =>
        {
            true
        }
        _ => host == wanted,
    }
}

fn shares_a_method(one: &RouteDraft<'_>, other: &RouteDraft<'_>) -> bool {
    let (Some(one), Some(other)) = (&one.methods, &other.methods) else { return false };
    let takes = |method: &Method| other.contains(method);
    one.is_empty() || other.is_empty() || one.iter().any(takes)
}

fn shares_a_scheme(one: &RouteDraft<'_>, other: &RouteDraft<'_>) -> bool {
    one.scheme.is_none() || other.scheme.is_none() || one.scheme == other.scheme
}

fn covers(path: &PathPattern, ignore_case: bool, segments: &[String]) -> bool {
    let length_fits = segments.len() == path.segments.len() || (path.rest && segments.len() > path.segments.len());
    length_fits
        && path.segments.iter().zip(segments).all(|(wanted, segment)| match wanted {
            Segment::Literal(text) if ignore_case => text.eq_ignore_ascii_case(segment),
            Segment::Literal(text) => text == segment,
            Segment::Capture(_) => !segment.is_empty(),
        })
}

fn upstream<'a>(route: &RouteDraft<'a>) -> Option<&'a str> {
    match &route.answer {
        Some(Answer::Forward { upstream, .. }) => Some(upstream.text),
        Some(Answer::Respond { .. } | Answer::Redirect(_)) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{Problems, parse};

    fn warnings(text: &str) -> Problems {
        parse(text.as_bytes(), "gateway.toml", Path::new("")).unwrap().warnings
    }

    #[test]
    fn a_way_around_a_limit_is_warned_about_where_there_is_one() {
        let text = include_str!("../../tests/warned/path-around-case.toml");
        assert!(!warnings(text).is_empty());
        let (login, rest) = ("path = \"/v1/login\"\n", "path = \"/*\"\nupstream = \"api\"\nlimits = [\"all\"]");
        for (written, instead) in [
            (login, "path = \"/v1/login\"\nignore_case = true\n"),
            // An explicit setting is intended.
            (login, "path = \"/v1/login\"\nignore_case = false\n"),
            (login, "path = \"/1/{x}\"\n"),
            (rest, "path = \"/*\"\nupstream = \"api\"\nlimits = [\"logins\", \"all\"]"),
            (rest, "path = \"/v2/*\"\nupstream = \"api\"\nlimits = [\"all\"]"),
            (rest, "path = \"/*\"\nrespond = { status = 404 }\nlimits = [\"all\"]"),
            (rest, "path = \"/*\"\nmethods = [\"GET\"]\nupstream = \"api\"\nlimits = [\"all\"]"),
            (rest, "path = \"/*\"\nhost = \"other.test\"\nupstream = \"api\"\nlimits = [\"all\"]"),
            // A nearer route has the limit.
            (
                rest,
                &format!(
                    "path = \"/v1/*\"\nupstream = \"api\"\nlimits = [\"logins\", \"all\"]\n\n[[routes]]\n\
                path = \"/{{a}}/login\"\nignore_case = true\nupstream = \"api\"\nlimits = [\"logins\", \"all\"]\n\n[[routes]]\n{rest}"
                ),
            ),
        ] {
            assert!(text.contains(written));
            assert_eq!(warnings(&text.replace(written, instead)).to_string(), "", "{instead}");
        }
    }
}
