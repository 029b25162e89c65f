//! Finds out why a route does not match a request, for `gateway explain`.

use std::fmt;

use http::HeaderName;

use super::{RouteConditions, Routes, is_under, tree};
use crate::config::{HeaderMatch, Host, PathMatching, Route};

/// The first condition of a route that a request does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Host,
    Path,
    Method,
    Scheme,
    /// This header has another value or is missing.
    Header(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("is for another host"),
            Self::Path => f.write_str("is for other paths"),
            Self::Method => f.write_str("is for other methods"),
            Self::Scheme => f.write_str("is for the other scheme"),
            Self::Header(name) => write!(f, "needs another value of {name}"),
        }
    }
}

/// `None` if the route matches. Host and path are as [`Routes::find`] takes them.
pub fn mismatch(
    route: &Route,
    matching: PathMatching,
    host: &str,
    path: &str,
    conditions: RouteConditions<'_>,
) -> Option<Mismatch> {
    let host_fits = match &route.host {
        Host::Any => true,
        Host::Exact(name) => name == host,
        Host::Under(name) => is_under(host, name),
    };
    if !host_fits {
        return Some(Mismatch::Host);
    }
    let anyhow = Route { methods: Vec::new(), headers: Vec::new(), scheme: None, ..route.clone() };
    if Routes::build(&[anyhow], matching).find(host, path, conditions).is_none() {
        return Some(Mismatch::Path);
    }
    if !tree::takes(&route.methods, conditions.method) {
        return Some(Mismatch::Method);
    }
    if route.scheme.is_some_and(|wanted| wanted != conditions.scheme) {
        return Some(Mismatch::Scheme);
    }
    let differs = |(name, wanted): &&(HeaderName, HeaderMatch)| !tree::has(conditions.headers, name, wanted);
    route.headers.iter().find(differs).map(|(name, _)| Mismatch::Header(name.to_string()))
}
