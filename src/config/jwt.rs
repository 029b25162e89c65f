//! `[jwt.NAME]`: which issuers are trusted, and where requests have their tokens.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use http::header;

use super::key::Source;
use super::kinds::{self, flag, shaped, text, words};
use super::pem_files::SystemAuthorities;
use super::read::{Field, Name, Setting, Shape, Wrong, tables};
use super::regular_file::{self, NamedFile};
use super::report::{did_you_mean, either, quoted};
use super::values::{self, named_section};
use super::{Config, Route, Upstream};
use crate::base::jwt::{ALGORITHMS, Algorithm, KeyOrigin, KeySet, algorithm_name, needs_secret};
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

const FROM: &str = "allowed: \"bearer\", \"header:NAME\" or \"cookie:NAME\"";

/// Tokens of one issuer.
#[derive(Clone, Debug, PartialEq)]
pub struct Jwt {
    /// For `jwt:NAME:CLAIM` in keys.
    pub name: String,
    pub issuer: String,
    pub audience: Vec<String>,
    pub jwks: Jwks,
    /// At least one.
    pub algorithms: Vec<Algorithm>,
    pub from: Source,
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
        self.limits_of(route).any(|limit| claims(limit.sources(), token).next().is_some())
            || self.upstream_of(route).is_some_and(|upstream| claims(balanced_by(upstream), token).next().is_some())
    }
}

fn balanced_by(upstream: &Upstream) -> impl Iterator<Item = &Source> {
    upstream.balance.key().into_iter().flat_map(|key| key.parts.iter().flatten())
}

fn claims<'a>(sources: impl Iterator<Item = &'a Source>, token: &str) -> impl Iterator<Item = &'a str> {
    sources.filter_map(move |source| match source {
        Source::Jwt { name, claim } if name == token => Some(claim.as_str()),
        _ => None,
    })
}

tables! {
    /// An issuer whose tokens the gateway trusts (docs/clients.md).
    keys {
        /// Tokens must have this as `iss`.
        issuer: () = text().required() => "https://login.example.com/";
        /// Tokens must have one of these as `aud`; without this key they must have no `aud`.
        audience: () = shaped(Shape::List(&Shape::Text, 1, values::MOST)) => ["api"];
        /// The issuer's keys: an `https://` URL, an `http://` one on this machine, or a file.
        jwks: () = kinds::secret().required() => "https://login.example.com/.well-known/jwks.json";
        /// The allowed signature algorithms.
        algorithms: Algorithm =
            Setting { shape: Shape::List(&Shape::Words, 1, ALGORITHMS.len()), ..words(&ALGORITHMS) }.required()
            => ["RS256", "ES256"];
        /// Where the token is: `"bearer"` (`Authorization: Bearer`), `"header:NAME"` or `"cookie:NAME"`.
        from: () = shaped(Shape::Pattern("^(bearer|header:.+|cookie:.+)$")), "bearer";
        /// Answers 401 to requests without a valid token, on routes that use the token.
        required: bool = flag(), false;
    }
}

/// `None` if the section has an error.
pub(super) fn read(name: &Name<'_>, field: &Field<'_>, system: &SystemAuthorities) -> Option<Jwt> {
    let section = named_section(name, field, "jwt", "a token", &keys::TABLE)?;
    let issuer = section.needed(&keys::issuer).and_then(|field| field.parse(not_empty));
    let audience = section.list(&keys::audience).unwrap_or_default();
    let audience = audience.iter().filter_map(|field| field.parse(not_empty)).collect();
    let signed = section.needed(&keys::algorithms).and_then(|field| algorithms(&field));
    let located = section.needed(&keys::jwks);
    let jwks = located.as_ref().and_then(|field| jwks(field, system));
    let from = section.read_as(&keys::from, |field| field.parse(from));
    let required = section.read(&keys::required);
    let (jwks, signed) = (jwks?, signed?);
    check_keys(&jwks, &located?, &signed);
    Some(Jwt { name: name.text.to_owned(), issuer: issuer?, audience, jwks, algorithms: signed, from, required })
}

fn not_empty(text: &str) -> Result<String, Wrong> {
    let wrong = || Wrong::new("the text is empty", "write what tokens have here");
    Some(text.to_owned()).filter(|text| !text.is_empty()).ok_or_else(wrong)
}

fn algorithms(field: &Field<'_>) -> Option<Vec<Algorithm>> {
    let read = |field: &Field<'_>| {
        if field.value.is_str() && field.text()?.eq_ignore_ascii_case("none") {
            let help = format!("write how tokens are signed: {}", keys::algorithms.example);
            field.report("tokens without a signature are never accepted", help);
            return None;
        }
        field.parse(algorithm)
    };
    let algorithms = field.distinct(&keys::algorithms, "this algorithm", read);
    algorithms.filter(|algorithms| !algorithms.is_empty())
}

fn algorithm(text: &str) -> Result<Algorithm, Wrong> {
    let found = ALGORITHMS.iter().find(|(name, _)| *name == text).map(|(_, algorithm)| *algorithm);
    let names = ALGORITHMS.map(|(name, _)| name);
    let help = || did_you_mean(text, &names, &format!("allowed: {}", either(&names)));
    found.ok_or_else(|| Wrong::not(text, "an algorithm of signatures", help()))
}

fn from(text: &str) -> Result<Source, Wrong> {
    match text.split_once(':') {
        None if text == "bearer" => Ok(Source::Bearer),
        Some(("header", name)) => match values::header(name)? {
            header::AUTHORIZATION => {
                let help = "write \"bearer\", which reads Authorization: Bearer";
                Err(Wrong::new("this header contains more than a token", help))
            }
            name => Ok(Source::Header(name)),
        },
        Some(("cookie", name)) if values::header(name).is_ok() => Ok(Source::Cookie(name.to_owned())),
        Some(("cookie", name)) => Err(Wrong::not(name, "the name of a cookie", "like `cookie:session`")),
        _ => Err(Wrong::not(text, "where a token can be", FROM)),
    }
}

/// A file, which is read here, or a URL, which is not asked yet.
fn jwks(field: &Field<'_>, system: &SystemAuthorities) -> Option<Jwks> {
    if field.text()?.contains("://") {
        let url = field.hiding_query().parse(values::document)?;
        return Some(Jwks::Server { tls: system.tls_of(&url, field)?, url });
    }
    let file = NamedFile::new(field)?;
    let bytes = regular_file::read(&file.path).map_err(|error| file.unreadable(&error)).ok()?;
    let help = "a JWK Set is {\"keys\": [...]}; a key for HS256 is of the type oct and has at least 32 bytes";
    let keys = KeySet::parse(&bytes, KeyOrigin::File);
    let keys = keys.map_err(|error| field.report(format!("{}: {error}", quoted(file.name)), help)).ok()?;
    Some(Jwks::File { path: file.path, keys: Arc::new(keys) })
}

/// Checks that these keys can verify tokens of each algorithm.
fn check_keys(jwks: &Jwks, field: &Field<'_>, algorithms: &[Algorithm]) {
    for algorithm in algorithms {
        let name = algorithm_name(*algorithm);
        match jwks {
            Jwks::Server { .. } if needs_secret(*algorithm) => {
                let help =
                    "the key would be a secret that a server tells everybody: use jwks = \"FILE\", or RS256 or ES256";
                field.report(format!("`{name}` needs keys from a file"), help);
            }
            Jwks::File { keys, .. } if !keys.has_key_for(*algorithm) => {
                let help = "add such a key to the file, or remove the algorithm; RS and PS need a key of the type RSA, \
                            ES256 one of the curve P-256, ES384 of P-384, EdDSA of Ed25519, HS256 a secret of the type \
                            oct of at least 32 bytes";
                field.report(format!("the file has no key for `{name}`"), help);
            }
            Jwks::Server { .. } | Jwks::File { .. } => {}
        }
    }
}
