//! Which route a request takes: the most specific one that matches, whatever the order in the file.
//!
//! More specific is, in this order: an exact host before `*.host` (the longer first) before none; in the path,
//! segment by segment, a literal before a capture before the final `*`; more conditions on method and headers
//! before fewer; fewer methods before more; and last the order of the file.

pub mod host;
pub mod path;
mod mismatch;

use std::cmp::Reverse;

use foldhash::HashMap;
use http::{HeaderMap, HeaderName, Method};

use crate::config::{Host, PathPattern, Route, Segment};

pub use mismatch::{Mismatch, mismatch};

/// All routes, ready to be searched.
#[derive(Debug, Default)]
pub struct Routes {
    exact: HashMap<String, Table>,
    /// The longest first.
    under: Vec<(String, Table)>,
    any: Table,
}

/// The routes of one host, as a tree of path segments.
type Table = Node;

/// What may follow one sequence of segments.
#[derive(Debug, Default)]
struct Node {
    literals: HashMap<String, Node>,
    capture: Option<Box<Node>>,
    /// Routes whose path ends here, the most specific first.
    ends: Vec<Entry>,
    /// Routes whose final `*` takes all that follows, the most specific first.
    rests: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Index into the routes of the configuration.
    index: usize,
    methods: Vec<Method>,
    headers: Vec<(HeaderName, String)>,
}

impl Routes {
    /// Takes in the routes of a configuration.
    pub fn build(routes: &[Route]) -> Self {
        let mut built = Self::default();
        for (index, route) in order(routes) {
            let table = match &route.host {
                Host::Any => &mut built.any,
                Host::Exact(name) => built.exact.entry(name.clone()).or_default(),
                Host::Under(name) => {
                    // In order of specificity, so the last is the one to extend or to follow.
                    if built.under.last().is_none_or(|(last, _)| last != name) {
                        built.under.push((name.clone(), Table::default()));
                    }
                    match built.under.last_mut() {
                        Some((_, table)) => table,
                        None => continue,
                    }
                }
            };
            table.insert(&route.path, Entry { index, methods: route.methods.clone(), headers: route.headers.clone() });
        }
        built
    }

    /// The index of the route that a request takes. `host` is lower case without a port, `path` as [`path::normal`]
    /// returns it.
    pub fn find(&self, host: &str, path: &str, method: &Method, headers: &HeaderMap) -> Option<usize> {
        let path = path.strip_prefix('/')?;
        let wanted = |entry: &&Entry| entry.wants(method, headers);
        self.tables(host).find_map(|table| table.find(Some(path), &wanted)).map(|entry| entry.index)
    }

    /// The tables that are for this host, the most specific first.
    fn tables<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Table> {
        let under = self.under.iter().filter(move |(name, _)| is_under(host, name)).map(|(_, table)| table);
        let exact = if self.exact.is_empty() { None } else { self.exact.get(host) };
        exact.into_iter().chain(under).chain(std::iter::once(&self.any))
    }
}

/// The routes with their indices, the most specific first.
pub fn order(routes: &[Route]) -> Vec<(usize, &Route)> {
    let mut ordered: Vec<_> = routes.iter().enumerate().collect();
    ordered.sort_by_cached_key(|(index, route)| specificity(route, *index));
    ordered
}

/// Sorts the most specific first.
fn specificity(route: &Route, index: usize) -> impl Ord {
    let host = match &route.host {
        Host::Exact(name) => (0, Reverse(0), name.clone()),
        Host::Under(name) => (1, Reverse(name.len()), name.clone()),
        Host::Any => (2, Reverse(0), String::new()),
    };
    let mut path: Vec<u8> =
        route.path.segments.iter().map(|segment| u8::from(matches!(segment, Segment::Capture(_)))).collect();
    if route.path.rest {
        path.push(2);
    }
    let conditions = usize::from(!route.methods.is_empty()) + route.headers.len();
    (host, path, Reverse(conditions), route.methods.len(), index)
}

/// How a route is named in logs and metrics.
pub fn label(route: &Route) -> String {
    let host = match &route.host {
        Host::Any => String::new(),
        Host::Exact(name) => name.clone(),
        Host::Under(name) => format!("*.{name}"),
    };
    let methods = route.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(",");
    let headers =
        route.headers.iter().fold(String::new(), |all, (name, value)| all + " " + name.as_str() + "=" + value);
    let methods = if methods.is_empty() { methods } else { methods + " " };
    format!("{methods}{host}{}{headers}", route.path.text)
}

fn is_under(host: &str, name: &str) -> bool {
    host.strip_suffix(name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

impl Node {
    /// Entries come the most specific first and stay in that order.
    fn insert(&mut self, pattern: &PathPattern, entry: Entry) {
        let node = pattern.segments.iter().fold(self, |node, segment| match segment {
            Segment::Literal(text) => node.literals.entry(text.clone()).or_default(),
            Segment::Capture(_) => node.capture.get_or_insert_default(),
        });
        if pattern.rest { node.rests.push(entry) } else { node.ends.push(entry) }
    }

    /// The first entry that is wanted, trying literals before captures before the rest. `path` is what follows the
    /// slash after this node, `None` if nothing does.
    fn find<'a>(&'a self, path: Option<&str>, wanted: &impl Fn(&&Entry) -> bool) -> Option<&'a Entry> {
        let Some(path) = path else { return self.ends.iter().find(wanted) };
        let (segment, rest) = path.split_once('/').map_or((path, None), |(segment, rest)| (segment, Some(rest)));
        let literal = self.literals.get(segment).and_then(|node| node.find(rest, wanted));
        let capture = || self.capture.as_ref().filter(|_| !segment.is_empty()).and_then(|node| node.find(rest, wanted));
        literal.or_else(capture).or_else(|| self.rests.iter().find(wanted))
    }
}

impl Entry {
    fn wants(&self, method: &Method, headers: &HeaderMap) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self
                .headers
                .iter()
                .all(|(name, value)| headers.get_all(name).iter().any(|found| found.as_bytes() == value.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, StatusCode};
    use proptest::prelude::*;

    use super::*;
    use crate::config::Action;

    fn pattern(text: &str) -> PathPattern {
        let mut segments: Vec<_> = text[1..].split('/').collect();
        let rest = segments.last() == Some(&"*");
        if rest {
            segments.pop();
        }
        let capture = |text: &str| text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).map(str::to_owned);
        let segment = |text: &str| capture(text).map_or(Segment::Literal(text.to_owned()), Segment::Capture);
        PathPattern { text: text.to_owned(), segments: segments.into_iter().map(segment).collect(), rest }
    }

    fn route(host: &str, path: &str, methods: &[Method], headers: &[(&'static str, &str)]) -> Route {
        let host = match host.strip_prefix("*.") {
            Some(name) => Host::Under(name.to_owned()),
            None if host.is_empty() => Host::Any,
            None => Host::Exact(host.to_owned()),
        };
        Route {
            host,
            path: pattern(path),
            methods: methods.to_vec(),
            headers: headers.iter().map(|(n, v)| (HeaderName::from_static(n), (*v).to_owned())).collect(),
            action: Action::Respond { status: StatusCode::OK, body: String::new() },
            limits: Vec::new(),
        }
    }

    fn find(routes: &[Route], host: &str, path: &str, method: &Method, beta: Option<&'static str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(beta) = beta {
            headers.insert("x-beta", HeaderValue::from_static(beta));
        }
        Routes::build(routes).find(host, path, method, &headers).map(|index| label(&routes[index]))
    }

    #[test]
    fn the_most_specific_route_wins_in_every_order() {
        let mut routes = vec![
            route("", "/*", &[], &[]),
            route("", "/v1/*", &[], &[]),
            route("", "/v1/{tenant}", &[], &[]),
            route("", "/v1/login", &[], &[]),
            route("", "/v1/login", &[Method::POST], &[]),
            route("", "/v1/login", &[Method::POST], &[("x-beta", "1")]),
            route("", "/{any}/users", &[], &[]),
            route("api.example.com", "/*", &[], &[]),
            route("*.example.com", "/v1/login", &[], &[]),
            route("*.eu.example.com", "/*", &[], &[]),
        ];
        for _ in 0..routes.len() {
            routes.rotate_left(1);
            let on = |path, method, beta| find(&routes, "h", path, method, beta).unwrap();
            assert_eq!(on("/v1/login", &Method::GET, None), "/v1/login");
            assert_eq!(on("/v1/login", &Method::POST, None), "POST /v1/login");
            assert_eq!(on("/v1/login", &Method::POST, Some("1")), "POST /v1/login x-beta=1");
            assert_eq!(on("/v1/login", &Method::POST, Some("2")), "POST /v1/login");
            assert_eq!(on("/v1/acme", &Method::GET, None), "/v1/{tenant}");
            assert_eq!(on("/v1/users", &Method::GET, None), "/v1/{tenant}");
            assert_eq!(on("/v2/users", &Method::GET, None), "/{any}/users");
            assert_eq!(on("/v1/a/b", &Method::GET, None), "/v1/*");
            assert_eq!(on("/v1/", &Method::GET, None), "/v1/*");
            assert_eq!(on("/v1", &Method::GET, None), "/*");
            assert_eq!(on("/", &Method::GET, None), "/*");
            let at = |host, path| find(&routes, host, path, &Method::GET, None).unwrap();
            assert_eq!(at("api.example.com", "/v1/login"), "api.example.com/*");
            assert_eq!(at("www.example.com", "/v1/login"), "*.example.com/v1/login");
            assert_eq!(at("www.example.com", "/v1/other"), "/v1/{tenant}");
            assert_eq!(at("a.eu.example.com", "/v1/login"), "*.eu.example.com/*");
            assert_eq!(at("example.com", "/v1/login"), "/v1/login");
        }
    }

    #[test]
    fn a_route_whose_conditions_fail_leaves_the_request_to_the_next() {
        let routes = [route("", "/v1/users", &[Method::POST], &[]), route("", "/{a}/users", &[Method::PUT], &[])];
        assert_eq!(find(&routes, "h", "/v1/users", &Method::PUT, None).unwrap(), "PUT /{a}/users");
        assert_eq!(find(&routes, "h", "/v1/users", &Method::GET, None), None);
        assert_eq!(find(&routes, "h", "*", &Method::OPTIONS, None), None);
    }

    #[test]
    fn a_mismatch_names_the_first_thing_that_differs() {
        let wanted = route("*.example.com", "/v1/{a}", &[Method::POST], &[("x-beta", "1")]);
        let beta = HeaderMap::from_iter([("x-beta".parse().unwrap(), HeaderValue::from_static("1"))]);
        let why = |host, path, method: Method, headers| mismatch(&wanted, host, path, &method, headers);
        let none = HeaderMap::new();
        assert_eq!(why("example.com", "/v1/x", Method::POST, &beta), Some(Mismatch::Host));
        assert_eq!(why("a.example.com", "/v1/", Method::POST, &beta), Some(Mismatch::Path));
        assert_eq!(why("a.example.com", "/v1/x", Method::GET, &beta), Some(Mismatch::Method));
        assert_eq!(why("a.example.com", "/v1/x", Method::POST, &none), Some(Mismatch::Header("x-beta".into())));
        assert_eq!(why("a.example.com", "/v1/x", Method::POST, &beta), None);
    }

    /// Whether the pattern is for this path, read off its definition.
    fn covers(pattern: &PathPattern, path: &str) -> bool {
        let mut segments = path[1..].split('/');
        let matched = pattern.segments.iter().all(|wanted| match (wanted, segments.next()) {
            (Segment::Literal(text), Some(segment)) => text == segment,
            (Segment::Capture(_), Some(segment)) => !segment.is_empty(),
            (_, None) => false,
        });
        matched && (pattern.rest == segments.next().is_some())
    }

    proptest! {
        #[test]
        fn finds_what_walking_the_ordered_list_finds(
            patterns in prop::collection::vec("(/([ab]|\\{x\\})){0,3}(/|/\\*|/a)", 1..8),
            path in "(/[abc]?){1,4}",
        ) {
            let routes: Vec<_> = patterns.iter().map(|path| route("", path, &[], &[])).collect();
            let path = path::normal(&path).unwrap();
            let walked = order(&routes).into_iter().find(|(_, route)| covers(&route.path, &path)).map(|(index, _)| index);
            let found = Routes::build(&routes).find("h", &path, &Method::GET, &HeaderMap::new());
            prop_assert_eq!(found, walked);
            for (index, route) in routes.iter().enumerate() {
                let fits = mismatch(route, "h", &path, &Method::GET, &HeaderMap::new()).is_none();
                prop_assert_eq!(fits, covers(&route.path, &path));
                prop_assert!(fits || found != Some(index));
            }
        }
    }
}
