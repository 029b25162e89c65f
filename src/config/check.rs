//! From the text to the configuration that runs: what depends on more than one value is checked here.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::file::limits::limit;
use super::file::routes::{WrittenRoute, route};
use super::file::{Listen, admin, log, server, store, upstream};
use super::read::{Findings, Section, Value, suggest};
use super::report::Problem;
use super::{Action, Config, Limit, Route, Segment, Source, Upstream};

/// The smallest file that does something.
const SMALLEST: &str = "the smallest file is: [upstreams.api] servers = [\"http://127.0.0.1:9000\"], \
                        then [[routes]] path = \"/*\" upstream = \"api\"";

/// The configuration, and all problems. Without problems there is a configuration.
pub(super) fn check(text: &str) -> (Option<Config>, Vec<Problem>) {
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What follows from a slip of syntax would only hide it.
        let problem = |error: &toml::de::Error| {
            Problem::plain(error.span().unwrap_or(0..0), format!("not valid TOML: {}", error.message()))
        };
        return (None, errors.iter().map(problem).collect());
    }
    let findings = Findings::default();
    let config = sections(Section::new("", 0..0, root.get_ref(), &findings), &findings);
    (config, findings.into_vec())
}

fn sections<'a>(root: Section<'a>, findings: &'a Findings) -> Option<Config> {
    let section = |key: &'static str| match root.value(key) {
        Some(value) => Section::of(&format!("[{key}]"), value, findings),
        None => Some(Section::absent(findings)),
    };
    let (server, mut listen) = server(section("server")?, findings);
    let log = log(section("log")?);
    let admin = root.value("admin").and_then(|value| Section::of("[admin]", value, findings)).and_then(admin);
    let store = store(section("store")?, findings);
    listen.extend(admin.iter().map(|(_, listen)| listen.clone()));
    listen_once(&listen, findings);

    let upstreams: Vec<Upstream> =
        named(&root, "upstreams", findings, |name, section| upstream(name, section, findings));
    let limits: Vec<Limit> = named(&root, "limits", findings, |name, section| limit(name, section, findings));
    let routes = routes(&root, findings);
    let linked: Vec<_> = routes.iter().filter_map(|route| link(route, &upstreams, &limits, findings)).collect();
    distinct(&routes, findings);
    root.finish();
    Some(Config { server, log, admin: admin.map(|(admin, _)| admin), store, upstreams, limits, routes: linked })
}

/// The sections under `key`, which have names.
fn named<'a, T>(
    root: &Section<'a>,
    key: &'static str,
    findings: &'a Findings,
    mut read: impl FnMut(&str, Section<'a>) -> T,
) -> Vec<T> {
    let Some(section) = root.value(key).and_then(|value| Section::of(&format!("[{key}]"), value, findings)) else {
        return Vec::new();
    };
    // In the order of the file, not of the alphabet.
    let mut entries: Vec<_> = section.entries().collect();
    entries.sort_by_key(|(_, span, _)| span.start);
    let mut all = Vec::new();
    for (name, span, value) in entries {
        let valid = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !valid || !(1..=64).contains(&name.len()) {
            let help = "a name is 1 to 64 of A-Z a-z 0-9 - _ .";
            findings.add(Problem::new(span, format!("`{name}` cannot be a name under [{key}]"), help));
        }
        let section = Section::of(&format!("[{key}.{name}]"), value, findings);
        all.extend(section.map(|section| read(name, section)));
    }
    all
}

fn routes<'a>(root: &Section<'a>, findings: &'a Findings) -> Vec<WrittenRoute<'a>> {
    let Some(value) = root.value("routes") else {
        findings.add(Problem::new(0..0, "the file has no [[routes]]: nothing would be served", SMALLEST));
        return Vec::new();
    };
    match value.get_ref() {
        DeValue::Array(array) if array.is_empty() => {
            findings.add(Problem::new(value.span(), "the list of routes is empty: nothing would be served", SMALLEST));
            Vec::new()
        }
        DeValue::Array(array) => {
            let section = |value: &'a Value<'a>| Section::of("[[routes]]", value, findings);
            array.iter().filter_map(section).map(|section| route(section, findings)).collect()
        }
        _ => {
            findings.add(Problem::new(value.span(), "`routes` is a list of tables", "write [[routes]] before each"));
            Vec::new()
        }
    }
}

fn listen_once(listen: &[Listen], findings: &Findings) {
    for (position, (address, span)) in listen.iter().enumerate() {
        if address.port() != 0 && listen[..position].iter().any(|(other, _)| other == address) {
            findings.add(Problem::plain(span.clone(), format!("{address} is listened on already")));
        }
    }
}

/// Looks up the names of a route and checks what belongs together.
fn link(route: &WrittenRoute<'_>, upstreams: &[Upstream], limits: &[Limit], findings: &Findings) -> Option<Route> {
    let segments = route.path.as_ref().map_or(&[][..], |path| &path.segments);
    let mut indices = Vec::new();
    for (name, span) in &route.limits {
        let found = limits.iter().position(|limit| limit.name == *name);
        match found {
            None => findings.add(unknown("limit", name, span, limits.iter().map(|limit| limit.name.as_str()))),
            Some(index) if indices.contains(&index) => {
                findings.add(Problem::plain(span.clone(), format!("the limit `{name}` is there twice")));
            }
            Some(index) => {
                if route.path.is_some() {
                    captures(&limits[index], segments, span, findings);
                }
                indices.push(index);
            }
        }
    }
    let action = action(route, segments, upstreams, findings);
    let (host, methods, headers) = (route.host.clone(), route.methods.clone(), route.headers.clone());
    Some(Route { host, path: route.path.clone()?, methods, headers, action: action?, limits: indices })
}

fn unknown<'a>(what: &str, name: &str, span: &Range<usize>, names: impl Iterator<Item = &'a str>) -> Problem {
    let help = suggest(name, &names.collect::<Vec<_>>());
    Problem::new(span.clone(), format!("there is no {what} `{name}`"), help)
}

/// A limit that counts by a captured segment needs a route that captures it.
fn captures(limit: &Limit, segments: &[Segment], span: &Range<usize>, findings: &Findings) {
    for source in limit.key.parts.iter().flatten() {
        if let Source::Capture(name) = source
            && !segments.contains(&Segment::Capture(name.clone()))
        {
            let message =
                format!("the limit `{}` counts by {source}, which this route's path does not capture", limit.name);
            findings.add(Problem::new(span.clone(), message, format!("write {{{name}}} for a segment of the path")));
        }
    }
}

fn action(
    route: &WrittenRoute<'_>,
    segments: &[Segment],
    upstreams: &[Upstream],
    findings: &Findings,
) -> Option<Action> {
    match (&route.upstream, &route.respond) {
        (Some(_), Some((_, span))) => {
            findings.add(Problem::plain(span.clone(), "a route has an `upstream` or a `respond`, not both"));
            None
        }
        (None, None) => {
            let help = "add upstream = \"NAME\" or respond = { status = 200, body = \"hello\\n\" }";
            findings.add(Problem::new(route.span.clone(), "this route has neither `upstream` nor `respond`", help));
            None
        }
        (None, Some(((status, body), _))) => {
            let misplaced = [
                ("strip_prefix", route.strip_prefix.as_ref().map(|(_, span)| span)),
                ("preserve_host", route.preserve_host.as_ref().map(|(_, span)| span)),
            ];
            for (key, span) in misplaced.into_iter().filter_map(|(key, span)| Some((key, span?))) {
                findings.add(Problem::plain(span.clone(), format!("`{key}` is for routes with an `upstream`")));
            }
            Some(Action::Respond { status: *status, body: body.clone() })
        }
        (Some((name, span)), None) => {
            let strip = route
                .strip_prefix
                .as_ref()
                .filter(|_| route.path.is_some())
                .and_then(|prefix| strip(prefix, segments, findings));
            let upstream = upstreams.iter().position(|upstream| upstream.name == *name);
            if upstream.is_none() {
                findings.add(unknown("upstream", name, span, upstreams.iter().map(|upstream| upstream.name.as_str())));
            }
            let preserve_host = route.preserve_host.as_ref().is_some_and(|(preserve, _)| *preserve);
            Some(Action::Forward { upstream: upstream?, strip: strip.unwrap_or(0), preserve_host })
        }
    }
}

/// How many segments a prefix takes off, which must be literal ones at the beginning of the path.
fn strip((prefix, span): &(&str, Range<usize>), segments: &[Segment], findings: &Findings) -> Option<usize> {
    let written: Vec<&str> = prefix.trim_end_matches('/').split('/').skip(1).collect();
    let literal = |(wanted, segment): (&&str, &Segment)| matches!(segment, Segment::Literal(text) if text == wanted);
    let fits = prefix.starts_with('/')
        && !written.is_empty()
        && written.len() <= segments.len()
        && written.iter().zip(segments).all(literal);
    if !fits {
        let help = "strip_prefix is the beginning of the route's path, in whole segments without {name} and *";
        findings.add(Problem::new(span.clone(), format!("the path does not begin with `{prefix}`"), help));
    }
    fits.then_some(written.len())
}

/// Two routes for the same requests: the second would never be taken.
fn distinct(routes: &[WrittenRoute<'_>], findings: &Findings) {
    let shape = |route: &WrittenRoute<'_>| {
        let path = route.path.clone()?;
        let nameless = |segment| match segment {
            Segment::Capture(_) => Segment::Capture(String::new()),
            literal @ Segment::Literal(_) => literal,
        };
        let mut methods: Vec<_> = route.methods.iter().map(ToString::to_string).collect();
        let mut headers: Vec<_> = route.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        methods.sort();
        headers.sort();
        let segments: Vec<Segment> = path.segments.into_iter().map(nameless).collect();
        Some((route.host.clone(), segments, path.rest, methods, headers))
    };
    let shapes: Vec<_> = routes.iter().map(shape).collect();
    for (position, (route, shape)) in routes.iter().zip(&shapes).enumerate() {
        if shape.is_some() && shapes[..position].contains(shape) {
            let help = "an earlier route is for the same host, path, methods and headers";
            findings.add(Problem::new(route.span.clone(), "this route is never taken", help));
        }
    }
}
