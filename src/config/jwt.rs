//! `[jwt.NAME]` as it runs: which issuers are trusted, and where requests have their tokens.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Action, Balance, Config, Route, Source, Upstream};
use crate::base::jwt::{Algorithm, KeySet};
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// Tokens of one issuer.
#[derive(Clone, Debug, PartialEq)]
pub struct Jwt {
    /// For `jwt:NAME:CLAIM` in keys.
    pub name: String,
    /// The `iss` that a token must have.
    pub issuer: String,
    /// The `aud` that a token may have. If empty, a token must have none.
    pub audience: Vec<String>,
    pub jwks: Jwks,
    /// At least one.
    pub algorithms: Vec<Algorithm>,
    /// A header, a cookie or `Authorization: Bearer`.
    pub from: Source,
    /// Whether requests without a valid token are answered 401 on routes that use the tokens.
    pub required: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Jwks {
    /// Read with the configuration.
    File { path: PathBuf, keys: Arc<KeySet> },
    /// Fetched regularly.
    Server {
        url: Url,
        /// `None` without `https`.
        tls: Option<ConnectorTls>,
    },
}

impl Config {
    /// The claims of these tokens that limits and upstreams use, each once.
    pub fn claims_of(&self, token: &str) -> Vec<String> {
        let limits = self.limits.iter().flat_map(|limit| claims(limit.sources(), token));
        let upstreams = self.upstreams.iter().flat_map(|upstream| claims(balanced_by(upstream), token));
        let each: BTreeSet<_> = limits.chain(upstreams).collect();
        each.into_iter().map(str::to_owned).collect()
    }

    /// Whether the limits or the upstream of a route use claims of these tokens.
    pub fn uses_token(&self, route: &Route, token: &str) -> bool {
        let upstream = match route.action {
            Action::Forward { upstream, .. } => self.upstreams.get(upstream),
            Action::Respond { .. } | Action::Redirect(_) => None,
        };
        self.limits_of(route).any(|limit| claims(limit.sources(), token).next().is_some())
            || upstream.is_some_and(|upstream| claims(balanced_by(upstream), token).next().is_some())
    }
}

fn balanced_by(upstream: &Upstream) -> impl Iterator<Item = &Source> {
    let key = match &upstream.balance {
        Balance::Hash(key) => Some(key),
        Balance::RoundRobin | Balance::LeastRequests => None,
    };
    key.into_iter().flat_map(|key| key.parts.iter().flatten())
}

fn claims<'a>(sources: impl Iterator<Item = &'a Source>, token: &str) -> impl Iterator<Item = &'a str> {
    sources.filter_map(move |source| match source {
        Source::Jwt { name, claim } if name == token => Some(claim.as_str()),
        _ => None,
    })
}
