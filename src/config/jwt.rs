//! `[jwt.NAME]` as it runs: whose tokens are believed, and where they are in a request.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Action, Balance, Config, Route, Source, Upstream};
use crate::base::jwt::{Algorithm, KeySet};
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// `[jwt.NAME]`: tokens of one issuer.
#[derive(Clone, Debug, PartialEq)]
pub struct Jwt {
    /// The name that sources of keys use.
    pub name: String,
    /// What a token names as its issuer.
    pub issuer: String,
    /// What a token may name as its audience. If it is empty, tokens must have none.
    pub audience: Vec<String>,
    /// Where the keys of the issuer are.
    pub jwks: Jwks,
    /// How tokens may be signed, at least one.
    pub algorithms: Vec<Algorithm>,
    /// Where a request has its token: a header, a cookie or `Authorization: Bearer`.
    pub from: Source,
    /// Whether requests without a valid token are answered 401, on routes that use the tokens.
    pub required: bool,
}

/// Where the keys of an issuer are.
#[derive(Clone, Debug, PartialEq)]
pub enum Jwks {
    /// In a file, which is read with the configuration.
    File { path: PathBuf, keys: Arc<KeySet> },
    /// On a server, which is asked again and again.
    Server {
        url: Url,
        /// How the server is connected to with `https`.
        tls: Option<ConnectorTls>,
    },
}

impl Config {
    /// The claims that limits and upstreams use of the tokens with this name, each once.
    pub fn claims_of(&self, token: &str) -> Vec<String> {
        let limits = self.limits.iter().flat_map(|limit| claims(limit.sources(), token));
        let upstreams = self.upstreams.iter().flat_map(|upstream| claims(balanced_by(upstream), token));
        let each: BTreeSet<_> = limits.chain(upstreams).collect();
        each.into_iter().map(str::to_owned).collect()
    }

    /// Whether the limits of a route, or its upstream, use the tokens with this name.
    pub fn uses_token(&self, route: &Route, token: &str) -> bool {
        let upstream = match route.action {
            Action::Forward { upstream, .. } => self.upstreams.get(upstream),
            Action::Respond { .. } | Action::Redirect(_) => None,
        };
        self.limits_of(route).any(|limit| claims(limit.sources(), token).next().is_some())
            || upstream.is_some_and(|upstream| claims(balanced_by(upstream), token).next().is_some())
    }
}

/// The sources of the key by which an upstream chooses a server.
fn balanced_by(upstream: &Upstream) -> impl Iterator<Item = &Source> {
    let key = match &upstream.balance {
        Balance::Hash(key) => Some(key),
        Balance::RoundRobin | Balance::LeastRequests => None,
    };
    key.into_iter().flat_map(|key| key.parts.iter().flatten())
}

/// The claims among `sources` of the tokens with this name.
fn claims<'a>(sources: impl Iterator<Item = &'a Source>, token: &str) -> impl Iterator<Item = &'a str> {
    sources.filter_map(move |source| match source {
        Source::Jwt { name, claim } if name == token => Some(claim.as_str()),
        _ => None,
    })
}
