//! Which trailers pass: those of a request to the server, and those of a response to the client. No other file decides that.
//!
//! Headers that Connection names may be trailers, too, and belong to the connection as well (RFC 9110, section 7.6.1).

use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use super::header_policy::may_trail;
use super::request::{BodyRules, RequestHead, UpstreamRequest};
use crate::base::http::header_rules::{Rule, is_any};
use crate::base::http::header_spelling::is_same_variable;
use crate::request::identify::ambiguity::SingleSources;

#[derive(Debug)]
pub(super) struct RequestTrailers {
    /// The sources of keys and costs: some upstreams read trailers as headers, and would use another key than was counted.
    counted: Arc<SingleSources>,
    /// The headers that Connection names.
    named: Vec<HeaderName>,
    /// The headers that the route removes or replaces.
    replaced: Vec<HeaderName>,
}

#[derive(Debug, Default)]
pub(super) struct ResponseTrailers {
    /// The headers that Connection names, and those that the route removes or replaces.
    hidden: Box<[HeaderName]>,
}

impl RequestTrailers {
    /// `named` are the headers that the request's Connection names.
    pub(super) fn new(head: &RequestHead<'_>, body: BodyRules<'_>, named: &[&[u8]]) -> Self {
        let named = named.iter().filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        let replaced = head.changes.map(|changes| changes.replaced().cloned().collect()).unwrap_or_default();
        Self { counted: body.counted.clone(), named, replaced }
    }

    /// `None` if the server gets none.
    pub(super) fn passing(&self, trailers: HeaderMap) -> Option<HeaderMap> {
        let is_replaced =
            |name: &HeaderName| self.replaced.iter().any(|other| is_same_variable(other.as_str(), name.as_str()));
        passing(trailers, |name| {
            may_trail(name) && !self.counted.has_header(name) && !is_replaced(name) && !self.named.contains(name)
        })
    }
}

impl ResponseTrailers {
    /// `named` are the headers that the response's Connection names.
    pub(super) fn new(request: &UpstreamRequest<'_>, named: Box<[HeaderName]>) -> Self {
        let Some(changes) = request.response_changes else { return Self { hidden: named } };
        Self { hidden: named.into_iter().chain(changes.replaced().cloned()).collect() }
    }

    /// `None` if the client gets none.
    pub(super) fn passing(&self, trailers: HeaderMap) -> Option<HeaderMap> {
        const NONE: [Rule; 3] = [Rule::HopByHop, Rule::OwnInResponses, Rule::BeforeContent];
        passing(trailers, |name| !is_any(name, &NONE) && !self.hidden.contains(name))
    }
}

/// `None` if none passes.
fn passing(mut trailers: HeaderMap, may_pass: impl Fn(&HeaderName) -> bool) -> Option<HeaderMap> {
    let others: Vec<_> = trailers.keys().filter(|name| !may_pass(name)).cloned().collect();
    others.iter().for_each(|name| _ = trailers.remove(name));
    Some(trailers).filter(|trailers| !trailers.is_empty())
}
