//! Advice about limited paths: other spellings that servers treat as the same path.

use std::collections::HashMap;
use std::fmt::Display;

use http::Method;

use super::Advised;
use crate::config::report::quoted;
use crate::config::{Config, EscapedSlashes, Host, PathMatching, PathPattern, PathRules, Route, Segment};

/// Another spelling of a limited exact path that matches a wider route to the same upstream, which lacks a limit. The upstream
/// may treat both spellings as the same path.
pub(super) fn ways_around(advised: &Advised<'_>) {
    let Config { routes, server, limits, .. } = advised.config;
    let hosts = by_host(routes);
    for (at, route) in routes.iter().enumerate().filter(|(_, route)| !route.path.rest) {
        // If `ignore_case` is written at all, the author has decided about the case.
        let path: [&dyn Display; 3] = [&"routes", &at, &"ignore_case"];
        let is_decided = advised.written(&path).is_some();
        let around = spellings(&route.path, server.paths, is_decided).into_iter().find_map(|spelling| {
            let taker = covering(&route.host).find_map(|host| hosts.get(&host)?.taker(route, &spelling.segments))?;
            let missing = route.limits.iter().find(|limit| !taker.limits.contains(limit))?;
            (taker.action.upstream()? == route.action.upstream()?).then_some((spelling, taker, &limits[*missing].name))
        });
        let Some((spelling, taker, missing)) = around else { continue };
        let written = format!("/{}", spelling.segments.join("/"));
        let (written, wider) = (quoted(&written), quoted(&taker.path.text));
        let message = format!("{written} matches the route of {wider}, which lacks the limit `{missing}`");
        let help = format!(
            "if the upstream treats it as {}, {}; or add the limit to the other route",
            quoted(&route.path.text),
            spelling.remedy
        );
        advised.warn(&[&"routes", &at, &"path"], message, help);
    }
}

struct Spelling {
    segments: Vec<String>,
    /// The setting that makes the gateway treat both spellings as the same path.
    remedy: &'static str,
}

/// Spellings that the path does not match, but that some servers treat as the same path.
fn spellings(path: &PathPattern, rules: PathRules, is_case_decided: bool) -> Vec<Spelling> {
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
    if !is_case_decided {
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

/// A part of a tree of routes by their path segments: to compare each of ten thousand routes with each other would take many
/// seconds.
#[derive(Default)]
struct Node<'r> {
    /// By the next segment, which is a literal in lower case or `None` for a capture.
    next: HashMap<Option<String>, Node<'r>>,
    /// Whose paths end here.
    routes: Vec<&'r Route>,
}

fn by_host(routes: &[Route]) -> HashMap<&Host, Node<'_>> {
    let mut hosts: HashMap<_, Node<'_>> = HashMap::new();
    for route in routes {
        let start = hosts.entry(&route.host).or_default();
        let end = route.path.segments.iter().fold(start, |node, segment| {
            let literal = match segment {
                Segment::Literal(text) => Some(text.to_ascii_lowercase()),
                Segment::Capture(_) => None,
            };
            node.next.entry(literal).or_default()
        });
        end.routes.push(route);
    }
    hosts
}

impl<'r> Node<'r> {
    /// The most specific route for the same method that matches a path instead of `route`.
    fn taker(&self, route: &Route, segments: &[String]) -> Option<&'r Route> {
        let (mut nodes, mut candidates) = (vec![self], self.routes.clone());
        for segment in segments {
            let steps = [Some(segment.to_ascii_lowercase()), None];
            nodes = nodes.iter().flat_map(|node| steps.iter().filter_map(|step| node.next.get(step))).collect();
            candidates.extend(nodes.iter().flat_map(|node| &node.routes));
        }
        let takes =
            |other: &&Route| shares_a_method(other, route) && shares_a_scheme(other, route) && covers(other, segments);
        candidates.into_iter().filter(takes).min_by_key(|route| {
            let segments = route.path.segments.iter();
            let kinds = segments.map(|segment| u8::from(matches!(segment, Segment::Capture(_))));
            kinds.chain(route.path.rest.then_some(2)).collect::<Vec<_>>()
        })
    }
}

/// The hosts that include all names that `wanted` matches, the most specific first.
fn covering(wanted: &Host) -> impl Iterator<Item = Host> {
    let name = match wanted {
        Host::Any => "",
        Host::Under(name) | Host::Exact(name) => name.as_str(),
    };
    let above = name.match_indices('.').map(|(at, _)| Host::Under(name[at + 1..].to_owned()));
    let any = (*wanted != Host::Any).then_some(Host::Any);
    [wanted.clone()].into_iter().chain(above).chain(any)
}

fn shares_a_method(one: &Route, other: &Route) -> bool {
    let takes = |method: &Method| other.methods.contains(method);
    one.methods.is_empty() || other.methods.is_empty() || one.methods.iter().any(takes)
}

fn shares_a_scheme(one: &Route, other: &Route) -> bool {
    one.scheme.is_none() || other.scheme.is_none() || one.scheme == other.scheme
}

fn covers(Route { path, ignore_case, .. }: &Route, segments: &[String]) -> bool {
    let length_fits = segments.len() == path.segments.len() || (path.rest && segments.len() > path.segments.len());
    length_fits
        && path.segments.iter().zip(segments).all(|(wanted, segment)| match wanted {
            Segment::Literal(text) if *ignore_case => text.eq_ignore_ascii_case(segment),
            Segment::Literal(text) => text == segment,
            Segment::Capture(_) => !segment.is_empty(),
        })
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
        let text = include_str!("../../../tests/warned/path-around-case.toml");
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
            // A more specific route has the limit.
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

    #[test]
    fn a_wider_host_is_a_way_around() {
        let text = include_str!("../../../tests/warned/path-around-case.toml");
        let on = |host: &str, path: &str| format!("host = \"{host}\"\npath = \"{path}\"\n");
        for (limited, wider, is_around) in [
            ("api.a.test", "api.a.test", true),
            ("api.a.test", "*.a.test", true),
            ("api.a.test", "*.test", true),
            ("*.a.test", "*.test", true),
            ("*.a.test", "api.a.test", false),
            ("a.test", "*.a.test", false),
            ("ba.test", "*.a.test", false),
            ("*.a.test", "a.test", false),
        ] {
            let text = text.replace("path = \"/v1/login\"\n", &on(limited, "/v1/login"));
            let text = text.replace("path = \"/*\"\n", &on(wider, "/*"));
            assert_eq!(!warnings(&text).is_empty(), is_around, "{limited} {wider}");
        }
    }
}
