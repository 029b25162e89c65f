//! Checks the paths of routes against other spellings that servers treat as the same path.

use std::collections::HashMap;

use http::Method;

use super::read::Source;
use super::report::quoted;
use super::route::{Answer, Draft as RouteDraft};
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
    let index = Index::new(routes);
    for route in routes {
        let Some(path) = route.path.as_ref().filter(|path| !path.rest) else { continue };
        let around = spellings(route, path, rules).into_iter().find_map(|spelling| {
            let (taker, wider) = index.taker(route, &spelling.segments)?;
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

struct Spelling {
    segments: Vec<String>,
    /// The setting that makes the gateway treat both spellings as the same path.
    remedy: &'static str,
}

/// Spellings that the route does not match, but that some servers treat as its path. If `ignore_case` is written at all, the
/// author has decided about the case, so there is no warning about case.
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

type Candidate<'r, 'a> = (&'r RouteDraft<'a>, &'r PathPattern);

/// A tree of the routes by host and path segments: comparing each of ten thousand routes with each other would take many seconds.
#[derive(Default)]
struct Index<'r, 'a> {
    hosts: HashMap<&'r Host, usize>,
    /// The child of a node for a segment, which is a literal in lower case or `None` for a capture.
    next: HashMap<(usize, Option<String>), usize>,
    /// The routes whose paths end at each node.
    routes: Vec<Vec<Candidate<'r, 'a>>>,
}

impl<'r, 'a> Index<'r, 'a> {
    fn new(routes: &'r [RouteDraft<'a>]) -> Self {
        let mut index = Self::default();
        for route in routes {
            let (Some(host), Some(path)) = (&route.host, &route.path) else { continue };
            let Self { hosts, next, routes } = &mut index;
            let mut new_node = || {
                routes.push(Vec::new());
                routes.len() - 1
            };
            let start = *hosts.entry(host).or_insert_with(&mut new_node);
            let end = path.segments.iter().fold(start, |node, segment| {
                let literal = match segment {
                    Segment::Literal(text) => Some(text.to_ascii_lowercase()),
                    Segment::Capture(_) => None,
                };
                *next.entry((node, literal)).or_insert_with(&mut new_node)
            });
            routes[end].push((route, path));
        }
        index
    }

    /// The most specific route for the same host and method that matches a path instead of `route`, and its pattern.
    fn taker(&self, route: &RouteDraft<'_>, segments: &[String]) -> Option<Candidate<'r, 'a>> {
        covering(route.host.as_ref()?).find_map(|host| self.most_specific(&host, route, segments))
    }

    fn most_specific(&self, host: &Host, route: &RouteDraft<'_>, segments: &[String]) -> Option<Candidate<'r, 'a>> {
        let mut nodes = vec![*self.hosts.get(host)?];
        let mut candidates = self.routes[nodes[0]].clone();
        for segment in segments {
            let steps = [Some(segment.to_ascii_lowercase()), None];
            let after = nodes.iter().flat_map(|node| steps.iter().map(|step| (*node, step.clone())));
            nodes = after.filter_map(|step| self.next.get(&step).copied()).collect();
            candidates.extend(nodes.iter().flat_map(|node| &self.routes[*node]));
        }
        let takes = |(other, path): &Candidate<'_, '_>| {
            shares_a_method(other, route)
                && shares_a_scheme(other, route)
                && covers(path, other.ignore_case == Some(true), segments)
        };
        candidates.into_iter().filter(takes).min_by_key(|(_, path)| {
            let kinds = path.segments.iter().map(|segment| u8::from(matches!(segment, Segment::Capture(_))));
            kinds.chain(path.rest.then_some(2)).collect::<Vec<_>>()
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
        let text = include_str!("../../tests/warned/path-around-case.toml");
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
