//! Finds the route of a request: the most specific one that matches, regardless of the order in the file.
//!
//! These come first, in this order: an exact host before `*.host` (the longer first) before none; in the path, segment by
//! segment, a literal before a capture before the final `*`; more conditions on method, scheme and headers before fewer; a
//! header with a certain value before one with any; a route that distinguishes the case of the path before one that does not;
//! fewer methods before more; and last the order of the file.
//!
//! HEAD is GET without the content of the response (RFC 9110, section 9.3.2), so it takes the routes of GET and has the same
//! limits. A route for the same host and path that names HEAD takes precedence.

pub mod host;
pub mod path;
pub mod rewrite;
mod tree;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;

use foldhash::HashMap;
use http::{HeaderName, Method};

use crate::config::{HeaderMatch, Host, PathMatching, Route, Segment};

pub use rewrite::{CurrentChanges, PreparedChanges, TemplateInput};
pub use tree::RouteConditions;
use tree::{Node, RouteEntry, RouteRequest};

#[derive(Debug, Default)]
pub struct Routes {
    exact: HashMap<String, Node>,
    /// The longest first.
    under: Vec<(String, Node)>,
    any: Node,
    matching: PathMatching,
    /// Whether the tables are in lower case, because at least one route ignores case.
    is_lower_case: bool,
}

impl Routes {
    pub fn build(routes: &[Route], matching: PathMatching) -> Self {
        let is_lower_case = routes.iter().any(|route| route.ignore_case);
        let mut built = Self { matching, is_lower_case, ..Self::default() };
        for (index, route) in order(routes) {
            let table = match &route.host {
                Host::Any => &mut built.any,
                Host::Exact(name) => built.exact.entry(name.clone()).or_default(),
                Host::Under(name) => {
                    // Routes come in order of specificity, so those of one name are adjacent.
                    if built.under.last().is_none_or(|(last, _)| last != name) {
                        built.under.push((name.clone(), Node::default()));
                    }
                    match built.under.last_mut() {
                        Some((_, table)) => table,
                        None => continue,
                    }
                }
            };
            table.insert(index, route, is_lower_case);
        }
        built
    }

    /// The index of the route that takes a request. `host` is in lower case without a port, `path` is from [`path::normal`].
    pub fn find(&self, host: &str, path: &str, conditions: RouteConditions<'_>) -> Option<usize> {
        let request = RouteRequest { path: path.strip_prefix('/')?, conditions };
        self.walk(host, request.path, |entries| request.choose(entries)).map(|entry| entry.index)
    }

    /// The methods of all routes that match except for the method, in alphabetical order: the value of `Allow` (RFC 9110,
    /// section 10.2.1) if no route takes the method of the request. A route without methods adds none, since [`Routes::find`]
    /// finds it for every method.
    pub fn allowed<'a>(&'a self, host: &'a str, path: &str, conditions: RouteConditions<'_>) -> BTreeSet<&'a str> {
        let mut allowed = BTreeSet::new();
        if let Some(path) = path.strip_prefix('/') {
            let request = RouteRequest { path, conditions };
            self.walk(host, path, |entries| {
                allowed.extend(request.methods(entries));
                None::<()>
            });
        }
        allowed
    }

    /// Visits the entries for a host and a path without its first slash, the most specific first, until `visit` succeeds.
    fn walk<'a, T>(
        &'a self,
        host: &'a str,
        path: &str,
        mut visit: impl FnMut(&'a [RouteEntry]) -> Option<T>,
    ) -> Option<T> {
        let folded = if self.is_lower_case { path::lower(path) } else { Cow::Borrowed(path) };
        self.tables(host).find_map(|table| table.walk(Some(&folded), self.matching, &mut visit))
    }

    /// The tables for this host, the most specific first.
    fn tables<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Node> {
        let under = self.under.iter().filter(move |(name, _)| is_under(host, name)).map(|(_, table)| table);
        let exact = if self.exact.is_empty() { None } else { self.exact.get(host) };
        exact.into_iter().chain(under).chain(std::iter::once(&self.any))
    }
}

pub fn order(routes: &[Route]) -> Vec<(usize, &Route)> {
    let mut ordered: Vec<_> = routes.iter().enumerate().collect();
    ordered.sort_by_cached_key(|(index, route)| specificity(route, *index));
    ordered
}

/// A sort key that puts the most specific route first.
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
    let conditions = usize::from(!route.methods.is_empty()) + usize::from(route.scheme.is_some()) + route.headers.len();
    let exact = route.headers.iter().filter(|(_, wanted)| *wanted != HeaderMatch::Present).count();
    (host, path, Reverse((conditions, exact)), route.ignore_case, route.methods.len(), index)
}

/// The name of a route in logs and metrics.
pub fn label(route: &Route) -> String {
    let host = match &route.host {
        Host::Any => String::new(),
        host => host.to_string(),
    };
    let methods = route.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(",");
    let headers = route.headers.iter().fold(String::new(), |all, (name, value)| format!("{all} {name}={value}"));
    let methods = if methods.is_empty() { methods } else { methods + " " };
    let scheme = route.scheme.map_or(String::new(), |scheme| format!(" scheme={}", scheme.name()));
    format!("{methods}{host}{}{scheme}{headers}", route.path.text)
}

fn is_under(host: &str, name: &str) -> bool {
    host.strip_suffix(name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// Why a route does not match a request, for `gateway explain`; `None` if it does. Host and path are as [`Routes::find`] takes
/// them.
pub fn mismatch(
    route: &Route,
    matching: PathMatching,
    host: &str,
    path: &str,
    conditions: RouteConditions<'_>,
) -> Option<String> {
    let host_fits = match &route.host {
        Host::Any => true,
        Host::Exact(name) => name == host,
        Host::Under(name) => is_under(host, name),
    };
    if !host_fits {
        return Some("is for another host".to_owned());
    }
    let anyhow = Route { methods: Vec::new(), headers: Vec::new(), scheme: None, ..route.clone() };
    if Routes::build(&[anyhow], matching).find(host, path, conditions).is_none() {
        return Some("is for other paths".to_owned());
    }
    if !tree::takes(&route.methods, conditions.method) {
        return Some("is for other methods".to_owned());
    }
    if route.scheme.is_some_and(|wanted| wanted != conditions.scheme) {
        return Some("is for the other scheme".to_owned());
    }
    let differs = |(name, wanted): &&(HeaderName, HeaderMatch)| !tree::has(conditions.headers, name, wanted);
    route.headers.iter().find(differs).map(|(name, _)| format!("needs another value of {name}"))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, StatusCode};
    use proptest::prelude::*;

    use super::*;
    use crate::config::{Action, HeaderChanges, PathPattern, PathRules, Scheme, UNLIMITED};

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
            priority: 5,
            host,
            path: pattern(path),
            ignore_case: false,
            methods: methods.to_vec(),
            headers: headers.iter().map(|(n, v)| (HeaderName::from_static(n), wanted(v))).collect(),
            action: Action::Respond {
                status: StatusCode::OK,
                body: String::new(),
                content_type: HeaderValue::from_static("text/plain"),
            },
            scheme: None,
            limits: Vec::new(),
            pools: Vec::new(),
            inspect_body: 0,
            max_body_size: UNLIMITED,
            body_timeout: None,
            timeout: None,
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            cors: None,
        }
    }

    fn plain<'a>(method: &'a Method, headers: &'a HeaderMap) -> RouteConditions<'a> {
        RouteConditions { method, headers, scheme: Scheme::Http }
    }

    fn wanted(value: &str) -> HeaderMatch {
        if value == "*" { HeaderMatch::Present } else { HeaderMatch::Exact(value.parse().unwrap()) }
    }

    fn find(routes: &[Route], host: &str, path: &str, method: &Method, beta: Option<&'static str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(beta) = beta {
            headers.insert("x-beta", HeaderValue::from_static(beta));
        }
        Routes::build(routes, PathMatching::Exact)
            .find(host, path, plain(method, &headers))
            .map(|index| label(&routes[index]))
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
            assert_eq!(on("/v1", &Method::GET, None), "/v1/*");
            assert_eq!(on("/v", &Method::GET, None), "/*");
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
    fn head_takes_the_routes_of_get_unless_one_names_it() {
        let mut routes = vec![
            route("", "/a", &[Method::GET], &[]),
            route("", "/a", &[], &[]),
            route("", "/b", &[Method::GET], &[]),
            route("", "/b", &[Method::GET], &[("x-beta", "1")]),
            route("", "/b", &[Method::HEAD, Method::PUT], &[]),
            route("", "/c", &[Method::GET], &[]),
            route("", "/c", &[Method::HEAD], &[("x-beta", "1")]),
            route("", "/{any}", &[Method::HEAD], &[]),
            route("", "/*", &[], &[]),
        ];
        for _ in 0..routes.len() {
            routes.rotate_left(1);
            let head = |path, beta| find(&routes, "h", path, &Method::HEAD, beta).unwrap();
            assert_eq!(head("/a", None), "GET /a");
            assert_eq!(head("/b", None), "HEAD,PUT /b");
            assert_eq!(head("/b", Some("1")), "HEAD,PUT /b");
            assert_eq!(head("/c", None), "GET /c", "a wider route that names HEAD is no way around");
            assert_eq!(head("/c", Some("1")), "HEAD /c x-beta=1");
            assert_eq!(head("/d", None), "HEAD /{any}");
            assert_eq!(find(&routes, "h", "/a", &Method::POST, None).unwrap(), "/a");
            assert_eq!(find(&routes, "h", "/b", &Method::GET, Some("1")).unwrap(), "GET /b x-beta=1");
        }
    }

    #[test]
    fn the_methods_that_a_path_takes_are_known() {
        let routes = [
            route("", "/v1/users", &[Method::POST], &[]),
            route("", "/{a}/users", &[Method::GET], &[]),
            route("", "/v1/*", &[Method::PUT, Method::POST], &[("x-beta", "1")]),
            route("other.test", "/v1/users", &[Method::DELETE], &[]),
        ];
        let routes = Routes::build(&routes, PathMatching::Exact);
        let allowed = |host, path, headers: &HeaderMap| {
            routes.allowed(host, path, plain(&Method::GET, headers)).into_iter().collect::<Vec<_>>().join(" ")
        };
        let none = HeaderMap::new();
        let beta = HeaderMap::from_iter([("x-beta".parse().unwrap(), HeaderValue::from_static("1"))]);
        assert_eq!(allowed("h", "/v1/users", &none), "GET HEAD POST");
        assert_eq!(allowed("h", "/v1/users", &beta), "GET HEAD POST PUT");
        assert_eq!(allowed("h", "/v2/users", &none), "GET HEAD");
        assert_eq!(allowed("h", "/v1/more", &none), "", "another value of a header would do, not another method");
        assert_eq!(allowed("other.test", "/v1/users", &none), "DELETE GET HEAD POST");
        assert_eq!(allowed("h", "/other", &none), "");
        assert_eq!(allowed("h", "*", &none), "");
    }

    #[test]
    fn a_header_with_any_value_is_less_specific_than_one_with_a_certain_one() {
        let routes = [route("", "/*", &[], &[("x-beta", "*")]), route("", "/*", &[], &[("x-beta", "1")])];
        assert_eq!(find(&routes, "h", "/", &Method::GET, Some("1")).unwrap(), "/* x-beta=1");
        assert_eq!(find(&routes, "h", "/", &Method::GET, Some("")).unwrap(), "/* x-beta=*");
        assert_eq!(find(&routes, "h", "/", &Method::GET, None), None);
    }

    #[test]
    fn a_route_for_one_scheme_leaves_the_others_to_the_next() {
        let redirects = Route { scheme: Some(Scheme::Http), ..route("", "/*", &[], &[]) };
        let routes = [route("", "/*", &[], &[]), redirects];
        let (get, none) = (Method::GET, HeaderMap::new());
        for (scheme, index) in [(Scheme::Http, 1), (Scheme::Https, 0)] {
            let conditions = RouteConditions { method: &get, headers: &none, scheme };
            let found = Routes::build(&routes, PathMatching::Forgiving).find("h", "/a", conditions);
            assert_eq!(found, Some(index));
            let other = mismatch(&routes[1], PathMatching::Forgiving, "h", "/a", conditions);
            assert_eq!(other, (scheme == Scheme::Https).then(|| "is for the other scheme".to_owned()));
        }
        assert_eq!(label(&routes[1]), "/* scheme=http");
    }

    #[test]
    fn a_mismatch_names_the_first_thing_that_differs() {
        let wanted = route("*.example.com", "/v1/{a}", &[Method::POST], &[("x-beta", "1")]);
        let beta = HeaderMap::from_iter([("x-beta".parse().unwrap(), HeaderValue::from_static("1"))]);
        let why =
            |host, path, method, headers| mismatch(&wanted, PathMatching::Exact, host, path, plain(&method, headers));
        let none = HeaderMap::new();
        assert_eq!(why("example.com", "/v1/x", Method::POST, &beta).as_deref(), Some("is for another host"));
        assert_eq!(why("a.example.com", "/v1/", Method::POST, &beta).as_deref(), Some("is for other paths"));
        assert_eq!(why("a.example.com", "/v1/x", Method::GET, &beta).as_deref(), Some("is for other methods"));
        assert_eq!(
            why("a.example.com", "/v1/x", Method::POST, &none).as_deref(),
            Some("needs another value of x-beta")
        );
        assert_eq!(why("a.example.com", "/v1/x", Method::POST, &beta).as_deref(), None);
    }

    /// Whether the pattern matches this path in this spelling, by definition.
    fn covers(route: &Route, path: &str) -> bool {
        let mut segments = path[1..].split('/');
        let matched = route.path.segments.iter().all(|wanted| match (wanted, segments.next()) {
            (Segment::Literal(text), Some(segment)) if route.ignore_case => text.eq_ignore_ascii_case(segment),
            (Segment::Literal(text), Some(segment)) => text == segment,
            (Segment::Capture(_), Some(segment)) => !segment.is_empty(),
            (_, None) => false,
        });
        // `/v1/*` also matches `/v1`.
        matched && (route.path.rest || segments.next().is_none())
    }

    /// Adds a final slash, or removes it.
    fn turned(path: &str) -> String {
        path.strip_suffix('/').map_or(format!("{path}/"), str::to_owned)
    }

    fn is_for(route: &Route, path: &str, matching: PathMatching) -> bool {
        let turned = turned(path);
        covers(route, path) || (matching == PathMatching::Forgiving && !turned.is_empty() && covers(route, &turned))
    }

    /// The kinds of the segments, without a final slash: 0 literal, 1 capture, 2 rest.
    fn kinds(route: &Route) -> Vec<u8> {
        let (segments, rest) = (&route.path.segments[..], &route.path.rest);
        let segments = segments.strip_suffix(&[Segment::Literal(String::new())]).unwrap_or(segments);
        let kinds = segments.iter().map(|segment| u8::from(matches!(segment, Segment::Capture(_))));
        kinds.chain(rest.then_some(2)).collect()
    }

    fn methods() -> impl Strategy<Value = Vec<Method>> {
        let sets = [vec![], vec![Method::GET], vec![Method::HEAD], vec![Method::HEAD, Method::GET], vec![Method::PUT]];
        prop::sample::select(sets.to_vec())
    }

    fn takes(methods: &[Method], method: &Method) -> bool {
        let named =
            if *method == Method::HEAD { &[Method::HEAD, Method::GET][..] } else { std::slice::from_ref(method) };
        methods.is_empty() || named.iter().any(|named| methods.contains(named))
    }

    proptest! {
        #[test]
        fn finds_what_walking_the_ordered_list_finds(
            patterns in prop::collection::vec(("(/([aAb]|\\{x\\})){0,3}(/|/\\*|/a)", methods(), any::<bool>()), 1..8),
            folds in any::<bool>(),
            path in "(/[abcA]?){1,4}",
            method in prop::sample::select(vec![Method::GET, Method::HEAD, Method::PUT]),
            matching in prop::sample::select(vec![PathMatching::Exact, PathMatching::Forgiving]),
        ) {
            let made = |(path, methods, ignore_case): &(String, Vec<Method>, bool)| {
                Route { ignore_case: *ignore_case && folds, ..route("", path, methods, &[]) }
            };
            let routes: Vec<_> = patterns.iter().map(made).collect();
            let folds = routes.iter().any(|route| route.ignore_case);
            let path = path::normal(&path, PathRules { matching, ..PathRules::default() }).unwrap();
            let none = HeaderMap::new();
            let fits = |route: &Route| is_for(route, &path, matching) && takes(&route.methods, &method);
            let mut fitting: Vec<_> = order(&routes).into_iter().filter(|(_, route)| fits(route)).collect();
            fitting.sort_by_key(|(_, route)| (kinds(route), !covers(route, &path)));
            let names_head = |route: &Route| route.methods.contains(&Method::HEAD);
            let place = |route: &Route| if folds { route.path.text.to_lowercase() } else { route.path.text.clone() };
            let walked = fitting.first().map(|(index, first)| {
                let by_get = method == Method::HEAD && !first.methods.is_empty() && !names_head(first);
                let same = |(_, route): &&(usize, &Route)| place(route) == place(first) && names_head(route);
                fitting.iter().find(same).filter(|_| by_get).map_or(*index, |(index, _)| *index)
            });
            let built = Routes::build(&routes, matching);
            let found = built.find("h", &path, plain(&method, &none));
            prop_assert_eq!(found, walked);
            for (index, route) in routes.iter().enumerate() {
                let matches = mismatch(route, matching, "h", &path, plain(&method, &none)).is_none();
                prop_assert_eq!(matches, fits(route));
                prop_assert!(matches || found != Some(index));
            }
            if found.is_none() {
                for method in built.allowed("h", &path, plain(&Method::GET, &none)) {
                    prop_assert!(built.find("h", &path, plain(&method.parse().unwrap(), &none)).is_some());
                }
                let covered = routes.iter().any(|route| is_for(route, &path, matching));
                prop_assert_eq!(covered, !built.allowed("h", &path, plain(&Method::GET, &none)).is_empty());
            }
        }
    }
}
