//! Which trailers of a client the upstream gets.

use std::sync::Arc;

use http::HeaderName;

use super::header_policy::may_trail;
use super::request::{BodyRules, RequestHead};
use crate::base::http::header_spelling::is_same_variable;
use crate::request::identify::ambiguity::SingleSources;

/// Decides which trailers are forwarded.
#[derive(Debug)]
pub(super) struct TrailerFilter {
    /// The sources of keys and costs: some upstreams read trailers as headers, and would use another key than was
    /// counted.
    counted: Arc<SingleSources>,
    /// The headers that Connection names, which may be trailers too (RFC 9110, section 7.6.1).
    named: Vec<HeaderName>,
    /// The headers that the route removes or replaces.
    replaced: Vec<HeaderName>,
}

impl TrailerFilter {
    /// For the trailers of this body of a request, in whose Connection header these headers are `named`.
    pub(super) fn new(head: &RequestHead<'_>, body: BodyRules<'_>, named: &[&[u8]]) -> Self {
        let named = named.iter().filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        let replaced = head.changes.map(|changes| changes.replaced().cloned().collect()).unwrap_or_default();
        Self { counted: body.counted.clone(), named, replaced }
    }

    /// Whether a trailer with this name is forwarded.
    pub(super) fn may_pass(&self, name: &HeaderName) -> bool {
        let is_replaced = self.replaced.iter().any(|other| is_same_variable(other.as_str(), name.as_str()));
        may_trail(name) && !self.counted.has_header(name) && !is_replaced && !self.named.contains(name)
    }
}
