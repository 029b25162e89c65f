//! Where a route with `redirect` sends clients.

use http::StatusCode;

/// `redirect` of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// `to` as written.
    pub text: String,
    /// The parts of the location in their order.
    pub parts: Vec<LocationPart>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

/// A part of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationPart {
    /// This text, which needs no escapes.
    Text(String),
    /// `{host}`: the host of the request, without the port.
    Host,
    /// `{path}`: the path of the request.
    Path,
    /// `{query}`: the query of the request, without the question mark.
    Query,
    /// The question mark and the query of the request, if it has one. Stands where `to` has no query of its own.
    QueryIfAny,
    /// `{name}`: the segment of the path with this index.
    Segment(usize),
    /// `{rest}`: what follows after so many segments of the path, without the slash before it.
    Rest(usize),
}

impl Redirect {
    /// Whether the location depends on the host of the request.
    pub fn needs_host(&self) -> bool {
        self.parts.contains(&LocationPart::Host)
    }

    /// Whether each request over TLS is sent to its own URL again, so that clients would never arrive.
    pub fn is_same_url_over_tls(&self) -> bool {
        matches!(
            &self.parts[..],
            [LocationPart::Text(scheme), LocationPart::Host, LocationPart::Path, LocationPart::QueryIfAny]
                if scheme == "https://"
        )
    }
}
