//! The routes of one host, as a tree of path segments.

use foldhash::HashMap;
use http::{HeaderMap, HeaderName, Method};

use crate::config::{HeaderMatch, PathMatching, PathPattern, Route, Segment};

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
    /// The segments where case matters and the tree does not tell it apart.
    spelled: Option<Vec<Segment>>,
}

impl Node {
    /// Entries come the most specific first and stay in that order. `folds` if the tree is looked through in lower case.
    pub(super) fn insert(&mut self, index: usize, route: &Route, folds: bool) {
        let PathPattern { segments, rest, .. } = &route.path;
        let node = segments.iter().fold(self, |node, segment| match segment {
            Segment::Literal(text) if folds => node.literals.entry(text.to_ascii_lowercase()).or_default(),
            Segment::Literal(text) => node.literals.entry(text.clone()).or_default(),
            Segment::Capture(_) => node.capture.get_or_insert_default(),
        });
        let spelled = (folds && !route.ignore_case).then(|| segments.clone());
        let entry = Entry { index, methods: route.methods.clone(), headers: route.headers.clone(), spelled };
        if *rest { node.rests.push(entry) } else { node.ends.push(entry) }
    }

    /// Shows the entries that are for a path, those of one pattern at a time, until `look` returns something: literals
    /// before captures before the rest. `path` is what follows the slash after this node, `None` if nothing does.
    ///
    /// Where a final slash makes no other path, a route that is written as the request is goes before one that is not.
    pub(super) fn walk<'a, T>(
        &'a self,
        path: Option<&str>,
        matching: PathMatching,
        look: &mut impl FnMut(&'a [Entry]) -> Option<T>,
    ) -> Option<T> {
        let is_forgiving = matching == PathMatching::Forgiving;
        let Some(path) = path else {
            let slashed = self.literals.get("").filter(|_| is_forgiving);
            return look(&self.ends)
                .or_else(|| slashed.and_then(|node| look(&node.ends)))
                .or_else(|| look(&self.rests));
        };
        let (segment, rest) = path.split_once('/').map_or((path, None), |(segment, rest)| (segment, Some(rest)));
        if let Some(found) = self.literals.get(segment).and_then(|node| node.walk(rest, matching, look)) {
            return Some(found);
        }
        let without_slash = if is_forgiving && path.is_empty() { &self.ends[..] } else { &[] };
        let capture = self.capture.as_ref().filter(|_| !segment.is_empty());
        look(without_slash)
            .or_else(|| capture.and_then(|node| node.walk(rest, matching, look)))
            .or_else(|| look(&self.rests))
    }
}

/// What routes look at besides the host.
pub(super) struct Asked<'a> {
    /// In its own case, without the first slash.
    pub(super) path: &'a str,
    pub(super) method: &'a Method,
    pub(super) headers: &'a HeaderMap,
}

impl Asked<'_> {
    /// The first of the entries, which are for the same path, that takes a request.
    pub(super) fn choose<'e>(&self, entries: &'e [Entry]) -> Option<&'e Entry> {
        let fits = |entry: &&Entry| takes(&entry.methods, self.method) && self.meets(entry);
        let first = entries.iter().find(fits)?;
        if *self.method == Method::HEAD && !first.methods.is_empty() {
            return entries.iter().filter(fits).find(|entry| entry.methods.contains(self.method)).or(Some(first));
        }
        Some(first)
    }

    /// The methods that entries take from requests for the same, whatever the method of this one is.
    pub(super) fn methods<'e>(&self, entries: &'e [Entry]) -> impl Iterator<Item = &'e str> {
        let methods = entries.iter().filter(|entry| self.meets(entry)).flat_map(|entry| &entry.methods);
        methods.flat_map(|method| {
            let head = (*method == Method::GET).then_some(Method::HEAD.as_str());
            std::iter::once(method.as_str()).chain(head)
        })
    }

    /// Whether all but the method is as the route wants it.
    fn meets(&self, entry: &Entry) -> bool {
        entry.headers.iter().all(|(name, wanted)| has(self.headers, name, wanted))
            && entry.spelled.as_ref().is_none_or(|segments| is_spelled(self.path, segments))
    }
}

/// Whether the literals among the segments are the path's in its own case.
fn is_spelled(path: &str, segments: &[Segment]) -> bool {
    path.split('/').zip(segments).all(|(found, wanted)| match wanted {
        Segment::Literal(text) => text == found,
        Segment::Capture(_) => true,
    })
}

/// Whether a route for these methods takes this one.
pub(super) fn takes(methods: &[Method], method: &Method) -> bool {
    methods.is_empty() || methods.contains(method) || (*method == Method::HEAD && methods.contains(&Method::GET))
}

/// Whether one of the lines of a header is as a route wants it.
pub(super) fn has(headers: &HeaderMap, name: &HeaderName, wanted: &HeaderMatch) -> bool {
    match wanted {
        HeaderMatch::Present => headers.contains_key(name),
        HeaderMatch::Exact(value) => headers.get_all(name).iter().any(|found| found.as_bytes() == value.as_bytes()),
    }
}
