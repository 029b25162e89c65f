//! The routes of one host, as a tree of path segments.

use foldhash::HashMap;
use http::{HeaderMap, HeaderName, Method};
use memchr::memchr;

use crate::config::{HeaderMatch, PathMatching, PathPattern, Route, Scheme, Segment};

/// The routes and further segments after one sequence of segments.
#[derive(Debug, Default)]
pub(super) struct Node {
    literals: HashMap<String, Node>,
    capture: Option<Box<Node>>,
    /// Routes whose path ends here, the most specific first.
    ends: Vec<RouteEntry>,
    /// Routes whose final `*` matches everything that follows, the most specific first.
    rests: Vec<RouteEntry>,
}

/// The conditions of a route besides its host and its path.
#[derive(Debug)]
pub(super) struct RouteEntry {
    pub(super) index: usize,
    /// Empty if the route takes all methods.
    methods: Vec<Method>,
    headers: Vec<(HeaderName, HeaderMatch)>,
    scheme: Option<Scheme>,
    /// The segments to compare with case, if the route distinguishes case and the tree is in lower case.
    case_sensitive: Option<Vec<Segment>>,
}

impl Node {
    /// Routes have to be inserted in order of specificity. `is_lower_case` says whether paths are looked up in lower case.
    pub(super) fn insert(&mut self, index: usize, route: &Route, is_lower_case: bool) {
        let PathPattern { segments, rest, .. } = &route.path;
        let node = segments.iter().fold(self, |node, segment| match segment {
            Segment::Literal(text) if is_lower_case => node.literals.entry(text.to_ascii_lowercase()).or_default(),
            Segment::Literal(text) => node.literals.entry(text.clone()).or_default(),
            Segment::Capture(_) => node.capture.get_or_insert_default(),
        });
        let case_sensitive = (is_lower_case && !route.ignore_case).then(|| segments.clone());
        let (methods, headers) = (route.methods.clone(), route.headers.clone());
        let entry = RouteEntry { index, methods, headers, scheme: route.scheme, case_sensitive };
        if *rest { node.rests.push(entry) } else { node.ends.push(entry) }
    }

    /// Visits the entries for a path, those of one pattern at a time, until `visit` returns a value: literals before captures
    /// before the rest. `path` is what follows the slash after this node; `None` if there is no slash.
    ///
    /// If a final slash makes no difference, routes that agree with the path about it come first.
    pub(super) fn walk<'a, T>(
        &'a self,
        path: Option<&str>,
        matching: PathMatching,
        visit: &mut impl FnMut(&'a [RouteEntry]) -> Option<T>,
    ) -> Option<T> {
        let is_forgiving = matching == PathMatching::Forgiving;
        let Some(path) = path else {
            let slashed = self.literals.get("").filter(|_| is_forgiving);
            return visit(&self.ends)
                .or_else(|| slashed.and_then(|node| visit(&node.ends)))
                .or_else(|| visit(&self.rests));
        };
        let (segment, rest) = match memchr(b'/', path.as_bytes()) {
            Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
            None => (path, None),
        };
        if let Some(found) = self.literals.get(segment).and_then(|node| node.walk(rest, matching, visit)) {
            return Some(found);
        }
        let without_slash = if is_forgiving && path.is_empty() { &self.ends[..] } else { &[] };
        let capture = self.capture.as_ref().filter(|_| !segment.is_empty());
        visit(without_slash)
            .or_else(|| capture.and_then(|node| node.walk(rest, matching, visit)))
            .or_else(|| visit(&self.rests))
    }
}

/// What routes are matched against besides the host and the path.
#[derive(Clone, Copy, Debug)]
pub struct RouteConditions<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub scheme: Scheme,
}

/// The parts of a request against which routes are matched, besides the host.
pub(super) struct RouteRequest<'a> {
    /// In its own case, without the first slash.
    pub(super) path: &'a str,
    pub(super) conditions: RouteConditions<'a>,
}

impl RouteRequest<'_> {
    /// The first of the entries for one path that takes the request.
    pub(super) fn choose<'e>(&self, entries: &'e [RouteEntry]) -> Option<&'e RouteEntry> {
        let fits = |entry: &&RouteEntry| takes(&entry.methods, self.conditions.method) && self.meets(entry);
        let first = entries.iter().find(fits)?;
        if *self.conditions.method == Method::HEAD && !first.methods.is_empty() {
            let own = entries.iter().filter(fits).find(|entry| entry.methods.contains(self.conditions.method));
            return own.or(Some(first));
        }
        Some(first)
    }

    pub(super) fn methods<'e>(&self, entries: &'e [RouteEntry]) -> impl Iterator<Item = &'e str> {
        let methods = entries.iter().filter(|entry| self.meets(entry)).flat_map(|entry| &entry.methods);
        methods.flat_map(|method| {
            let head = (*method == Method::GET).then_some(Method::HEAD.as_str());
            std::iter::once(method.as_str()).chain(head)
        })
    }

    /// Ignores the method.
    fn meets(&self, entry: &RouteEntry) -> bool {
        entry.headers.iter().all(|(name, wanted)| has(self.conditions.headers, name, wanted))
            && entry.scheme.is_none_or(|wanted| wanted == self.conditions.scheme)
            && entry.case_sensitive.as_ref().is_none_or(|segments| matches_case(self.path, segments))
    }
}

/// Whether the literals among the segments have the same case in the path.
fn matches_case(path: &str, segments: &[Segment]) -> bool {
    path.split('/').zip(segments).all(|(found, wanted)| match wanted {
        Segment::Literal(text) => text == found,
        Segment::Capture(_) => true,
    })
}

/// Whether a route with these methods takes this one.
pub(super) fn takes(methods: &[Method], method: &Method) -> bool {
    methods.is_empty() || methods.contains(method) || (*method == Method::HEAD && methods.contains(&Method::GET))
}

/// Whether one of a header's values meets the condition of a route.
pub(super) fn has(headers: &HeaderMap, name: &HeaderName, wanted: &HeaderMatch) -> bool {
    match wanted {
        HeaderMatch::Present => headers.contains_key(name),
        HeaderMatch::Exact(value) | HeaderMatch::Secret { value, .. } => {
            headers.get_all(name).iter().any(|found| found == value)
        }
    }
}
