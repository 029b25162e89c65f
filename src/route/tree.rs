//! The routes of one host, as a tree of path segments.

use foldhash::HashMap;
use http::{HeaderMap, HeaderName, Method};

use crate::config::{HeaderMatch, PathPattern, Route, Segment};

/// What may follow one sequence of segments.
#[derive(Debug, Default)]
pub(super) struct Node {
    literals: HashMap<String, Node>,
    capture: Option<Box<Node>>,
    /// Routes whose path ends here, the most specific first.
    ends: Vec<Entry>,
    /// Routes whose final `*` takes all that follows, the most specific first.
    rests: Vec<Entry>,
}

/// What a route wants besides its host and its path.
#[derive(Debug)]
pub(super) struct Entry {
    /// Index into the routes of the configuration.
    pub(super) index: usize,
    /// Empty for all.
    methods: Vec<Method>,
    headers: Vec<(HeaderName, HeaderMatch)>,
}

impl Node {
    /// Entries come the most specific first and stay in that order.
    pub(super) fn insert(&mut self, pattern: &PathPattern, entry: Entry) {
        let node = pattern.segments.iter().fold(self, |node, segment| match segment {
            Segment::Literal(text) => node.literals.entry(text.clone()).or_default(),
            Segment::Capture(_) => node.capture.get_or_insert_default(),
        });
        if pattern.rest { node.rests.push(entry) } else { node.ends.push(entry) }
    }

    /// Shows the entries that are for a path, those of one pattern at a time, until `look` returns something: literals
    /// before captures before the rest. `path` is what follows the slash after this node, `None` if nothing does.
    pub(super) fn walk<'a, T>(
        &'a self,
        path: Option<&str>,
        look: &mut impl FnMut(&'a [Entry]) -> Option<T>,
    ) -> Option<T> {
        let Some(path) = path else { return look(&self.ends).or_else(|| look(&self.rests)) };
        let (segment, rest) = path.split_once('/').map_or((path, None), |(segment, rest)| (segment, Some(rest)));
        if let Some(found) = self.literals.get(segment).and_then(|node| node.walk(rest, look)) {
            return Some(found);
        }
        let capture = self.capture.as_ref().filter(|_| !segment.is_empty());
        capture.and_then(|node| node.walk(rest, look)).or_else(|| look(&self.rests))
    }
}

impl Entry {
    pub(super) fn new(index: usize, route: &Route) -> Self {
        Self { index, methods: route.methods.clone(), headers: route.headers.clone() }
    }
}

/// The first of the entries, which are for the same path, that takes a request.
pub(super) fn choose<'a>(entries: &'a [Entry], method: &Method, headers: &HeaderMap) -> Option<&'a Entry> {
    let fits = |entry: &&Entry| takes(&entry.methods, method) && meets(&entry.headers, headers);
    let first = entries.iter().find(fits)?;
    if *method == Method::HEAD && !first.methods.is_empty() {
        return entries.iter().filter(fits).find(|entry| entry.methods.contains(method)).or(Some(first));
    }
    Some(first)
}

/// The methods that entries take from requests with these headers.
pub(super) fn methods<'a>(entries: &'a [Entry], headers: &HeaderMap) -> impl Iterator<Item = &'a str> {
    let methods = entries.iter().filter(|entry| meets(&entry.headers, headers)).flat_map(|entry| &entry.methods);
    methods.flat_map(|method| {
        let head = (*method == Method::GET).then_some(Method::HEAD.as_str());
        std::iter::once(method.as_str()).chain(head)
    })
}

/// Whether a route for these methods takes this one.
pub(super) fn takes(methods: &[Method], method: &Method) -> bool {
    methods.is_empty() || methods.contains(method) || (*method == Method::HEAD && methods.contains(&Method::GET))
}

/// Whether the headers of a request are as a route wants them.
fn meets(wanted: &[(HeaderName, HeaderMatch)], headers: &HeaderMap) -> bool {
    wanted.iter().all(|(name, wanted)| has(headers, name, wanted))
}

/// Whether one of the lines of a header is as a route wants it.
pub(super) fn has(headers: &HeaderMap, name: &HeaderName, wanted: &HeaderMatch) -> bool {
    match wanted {
        HeaderMatch::Present => headers.contains_key(name),
        HeaderMatch::Exact(value) => headers.get_all(name).iter().any(|found| found.as_bytes() == value.as_bytes()),
    }
}
