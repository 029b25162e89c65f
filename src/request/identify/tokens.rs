//! Finds the valid tokens of a request, so that limits can count by their claims.
//!
//! Verifying a signature takes longer than all other steps of a request together. So only tokens that limits of the route use
//! are verified, and each worker caches the valid ones by a hash of their text and the settings, with the keys that verified
//! them. After a reload or with new keys, old entries are no longer used. Invalid tokens are not cached, because clients can
//! invent any number of them.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashlink::LruCache;
use http::HeaderMap;
use smallvec::SmallVec;

use super::{bearer, cookie};
use crate::base::clock::Time;
use crate::base::fingerprint::{Domain, Fingerprint};
use crate::base::jwt::{Claims, Rejection, Verifier};
use crate::base::metrics::{Counter, PerWorker};
use crate::config::{Jwt, Source};
use crate::sources::jwks::KeySource;

/// The most valid tokens that a worker caches.
const MAX_CACHED: usize = 10_000;

/// The most bytes of the claims of a cached token, so the cache of a worker takes a few megabytes at most.
const MAX_CACHED_CLAIMS: usize = 512;

/// Reads the tokens of one `[jwt.*]`.
pub struct TokenReader {
    pub name: String,
    /// Where the token is.
    pub from: Source,
    required: bool,
    verifier: Verifier,
    keys: Arc<KeySource>,
    /// Differs for different settings, so no token that was valid under others is found in a cache.
    domain: Domain,
    metrics: Arc<JwtMetrics>,
}

/// Counts over all routes.
pub struct JwtMetrics {
    /// The name of the `[jwt.*]`.
    pub name: String,
    pub workers: PerWorker<TokenCounters>,
}

#[derive(Debug, Default)]
pub struct TokenCounters {
    /// Valid tokens that had to be verified.
    pub verified: Counter,
    /// Valid tokens known from an earlier request.
    pub cached: Counter,
    pub missing: Counter,
    /// Invalid tokens, in the order of [`Rejection::ALL`].
    pub rejected: [Counter; Rejection::ALL.len()],
}

#[derive(Clone, Debug)]
pub struct ValidToken<'a> {
    name: &'a str,
    claims: Rc<Claims>,
}

pub struct CheckedTokens<'a> {
    pub valid: ValidTokens<'a>,
    /// Whether an invalid token is ignored.
    pub ignores_invalid: bool,
}

pub type ValidTokens<'a> = SmallVec<[ValidToken<'a>; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenProblem {
    #[error("The request has no token.")]
    Missing,
    #[error("{}", .0.detail())]
    Invalid(Rejection),
}

pub struct TokenCache {
    entries: LruCache<Fingerprint, CachedToken, RandomState>,
}

struct CachedToken {
    claims: Rc<Claims>,
    keys: Fingerprint,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self { entries: LruCache::with_hasher(MAX_CACHED, RandomState::default()) }
    }
}

impl<'a> ValidToken<'a> {
    pub(super) fn claim(tokens: &'a [Self], name: &str, claim: &str) -> Option<&'a str> {
        tokens.iter().find(|token| token.name == name)?.claims.get(claim)
    }
}

impl TokenReader {
    /// `claims` are those that limits use.
    pub fn new(jwt: &Jwt, claims: Vec<String>, keys: Arc<KeySource>, metrics: Arc<JwtMetrics>) -> Self {
        let Jwt { name, issuer, audience, algorithms, from, required, .. } = jwt;
        let settings = format!("{:?}", (name, issuer, audience, algorithms, &claims));
        Self {
            name: name.clone(),
            from: from.clone(),
            required: *required,
            verifier: Verifier::new(issuer, audience, algorithms, claims),
            keys,
            domain: Domain::new(&settings),
            metrics,
        }
    }

    /// Finds and verifies the token of the request. Fails when there is none, or it is not valid.
    pub fn read(
        &self,
        headers: &HeaderMap,
        now: Time,
        worker: usize,
        cache: &mut TokenCache,
    ) -> Result<ValidToken<'_>, TokenProblem> {
        let counters = self.metrics.workers.of(worker);
        let Some(token) = self.find(headers) else {
            counters.missing.one();
            return Err(TokenProblem::Missing);
        };
        if let Some(known) = self.known(&token, now, cache) {
            counters.cached.one();
            return Ok(known);
        }
        let keys = self.keys.keys();
        match self.verifier.verify(&token, &keys, now) {
            Ok(claims) => {
                counters.verified.one();
                let claims = Rc::new(claims);
                if claims.size() <= MAX_CACHED_CLAIMS {
                    let entry = CachedToken { claims: claims.clone(), keys: keys.fingerprint() };
                    cache.entries.insert(self.domain.fingerprint(&token), entry);
                }
                Ok(ValidToken { name: &self.name, claims })
            }
            Err(rejection) => {
                if rejection == Rejection::UnknownKey {
                    self.keys.is_outdated();
                }
                if let Some(counter) = counters.rejected.get(rejection as usize) {
                    counter.one();
                }
                Err(TokenProblem::Invalid(rejection))
            }
        }
    }

    /// The token, if it was verified before and is still valid.
    fn known(&self, token: &[u8], now: Time, cache: &mut TokenCache) -> Option<ValidToken<'_>> {
        let entry = cache.entries.get(&self.domain.fingerprint(token))?;
        let is_valid = entry.keys == self.keys.keys().fingerprint() && entry.claims.is_valid(now);
        is_valid.then(|| ValidToken { name: &self.name, claims: entry.claims.clone() })
    }

    fn find<'h>(&self, headers: &'h HeaderMap) -> Option<Cow<'h, [u8]>> {
        let token = match &self.from {
            Source::Header(name) => headers.get(name)?.as_bytes().trim_ascii().into(),
            Source::Cookie(name) => cookie(headers, name)?,
            _ => bearer(headers)?.into(),
        };
        (!token.is_empty()).then_some(token)
    }
}

/// The valid tokens of a request that needs no verification: all are cached, and no required one is missing.
pub fn known_tokens<'a>(
    readers: &'a [Arc<TokenReader>],
    headers: &HeaderMap,
    now: Time,
    worker: usize,
    cache: &mut TokenCache,
) -> Option<ValidTokens<'a>> {
    let mut valid = ValidTokens::new();
    for reader in readers {
        match reader.find(headers) {
            Some(token) => valid.push(reader.known(&token, now, cache)?),
            None if reader.required => return None,
            None => {}
        }
    }
    for reader in readers {
        let counters = reader.metrics.workers.of(worker);
        let is_known = valid.iter().any(|token| token.name == reader.name);
        if is_known { counters.cached.one() } else { counters.missing.one() }
    }
    Some(valid)
}

/// Verifies those tokens of a request that are not known to be valid. Fails when a token is required and not valid. One place
/// in a request has one token, so if there are several readers of the same place, it is enough if one of them accepts it.
pub fn verify_tokens<'a>(
    readers: &'a [Arc<TokenReader>],
    headers: &HeaderMap,
    now: Time,
    worker: usize,
    cache: &mut TokenCache,
) -> Result<CheckedTokens<'a>, TokenProblem> {
    let mut valid = ValidTokens::new();
    let mut problems: SmallVec<[(&TokenReader, TokenProblem); 1]> = SmallVec::new();
    for reader in readers {
        match reader.read(headers, now, worker, cache) {
            Ok(token) => valid.push(token),
            Err(problem) => problems.push((reader, problem)),
        }
    }
    let has_valid = |from: &Source| {
        readers.iter().any(|reader| reader.from == *from && valid.iter().any(|token| token.name == reader.name))
    };
    problems.retain(|(reader, _)| !has_valid(&reader.from));
    match problems.iter().find(|(reader, _)| reader.required) {
        Some((_, problem)) => Err(*problem),
        None => {
            let ignores_invalid = problems.iter().any(|(_, problem)| *problem != TokenProblem::Missing);
            Ok(CheckedTokens { valid, ignores_invalid })
        }
    }
}
