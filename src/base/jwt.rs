//! JSON Web Tokens (RFC 7519): whether an issuer signed a token for this gateway, and what the token says about its client.
//!
//! The crate jsonwebtoken verifies the signatures. It would read the clock itself, so this file compares `exp` and `nbf`.
//! Keys and time are arguments, so nothing here waits.

mod key_set;

use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::clock::Time;
use super::named::named;

pub use key_set::{KeyOrigin, KeySet, MAX_BYTES};

/// How far the clocks of issuers may differ from ours, in seconds: tokens are valid this much earlier and later.
pub const LEEWAY: u64 = 60;
/// In bytes. For most servers, longer tokens do not fit into a request head.
const MAX_TOKEN: usize = 16 << 10;

/// RFC 7518, section 3.1.
pub type Algorithm = jsonwebtoken::Algorithm;

/// By name. `none` is not among them.
pub const ALGORITHMS: [(&str, Algorithm); 12] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
];

pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(_, listed)| *listed == algorithm).map_or("?", |(name, _)| name)
}

/// Whether the key that verifies a signature could also make one.
pub fn needs_secret(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}

/// The most keys to try for a token that names no key: each costs the check of a signature.
const MAX_TRIED: usize = 4;

/// The requirements for the tokens of one issuer, and the needed claims.
pub struct Verifier {
    issuer: String,
    /// By the algorithm of the token.
    validations: Vec<(Algorithm, Validation)>,
    claims: Vec<String>,
}

/// The needed claims of a valid token.
#[derive(Debug, PartialEq, Eq)]
pub struct Claims {
    values: Vec<(String, String)>,
    expires: u64,
}

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Rejection {
        /// Not a signed JSON Web Token, or its algorithm is not known.
        Malformed = "malformed",
        /// An algorithm that the configuration or the key does not allow.
        Algorithm = "algorithm",
        /// The token names an unknown key, or names none and no key has signed it.
        UnknownKey = "unknown_key",
        /// The named key has not signed the token.
        Signature = "signature",
        MissingClaim = "missing_claim",
        Issuer = "issuer",
        Audience = "audience",
        Expired = "expired",
        NotYetValid = "not_yet_valid",
    }
}

impl Rejection {
    /// A sentence for the client.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Malformed => "The token is not a signed JSON Web Token.",
            Self::Algorithm => "The token is signed with an algorithm that is not accepted.",
            Self::UnknownKey => "The token is signed with a key that is not known.",
            Self::Signature => "The signature of the token is not valid.",
            Self::MissingClaim => "The token lacks a claim that is required.",
            Self::Issuer => "The token is from an issuer that is not accepted.",
            Self::Audience => "The token is for another audience.",
            Self::Expired => "The token has expired.",
            Self::NotYetValid => "The token is not valid yet.",
        }
    }
}

impl Claims {
    /// `None` if the token lacks the claim, or the claim is no text, number or boolean.
    pub fn get(&self, claim: &str) -> Option<&str> {
        self.values.iter().find(|(name, _)| name == claim).map(|(_, value)| value.as_str())
    }

    pub fn is_valid(&self, now: Time) -> bool {
        !is_expired(self.expires, now)
    }

    /// The size of the values in bytes.
    pub fn size(&self) -> usize {
        self.values.iter().map(|(_, value)| value.len()).sum()
    }
}

impl Verifier {
    /// For tokens of `issuer` for one of `audience`, signed with one of `algorithms`. If `audience` is empty, tokens must
    /// have none (RFC 7519, section 4.1.3). Only these `claims` of a token are kept.
    pub fn new(issuer: &str, audience: &[String], algorithms: &[Algorithm], claims: Vec<String>) -> Self {
        let validation = |algorithm: &Algorithm| {
            let mut validation = Validation::new(*algorithm);
            validation.set_issuer(&[issuer]);
            let mut required = vec!["exp", "iss"];
            if !audience.is_empty() {
                validation.set_audience(audience);
                required.push("aud");
            }
            validation.set_required_spec_claims(&required);
            // The library would read the clock itself: see `check_times`.
            (validation.validate_exp, validation.validate_nbf) = (false, false);
            (*algorithm, validation)
        };
        Self { issuer: issuer.to_owned(), validations: algorithms.iter().map(validation).collect(), claims }
    }

    /// The claims of a token that is valid now. The error says why the token is not valid.
    pub fn verify(&self, token: &[u8], keys: &KeySet, now: Time) -> Result<Claims, Rejection> {
        if token.len() > MAX_TOKEN {
            return Err(Rejection::Malformed);
        }
        let header = decode_header(token).map_err(|_| Rejection::Malformed)?;
        if header.crit.is_some() {
            // A reader that does not know these extensions must not accept the token (RFC 7515, section 4.1.11).
            return Err(Rejection::Malformed);
        }
        let validation = self.validations.iter().find(|(algorithm, _)| *algorithm == header.alg);
        let (algorithm, validation) = validation.ok_or(Rejection::Algorithm)?;
        self.check_cheaply(token, now)?;

        let id = header.kid.as_deref();
        // A token without a key id may be signed with a key that is too new to be known.
        let mut rejection = match id {
            Some(id) if keys.has_id(id) => Rejection::Algorithm,
            _ => Rejection::UnknownKey,
        };
        for key in keys.candidates(id, *algorithm).take(MAX_TRIED) {
            match decode::<Map<String, Value>>(token, key, validation) {
                Ok(valid) => return self.claims(&valid.claims, now),
                Err(error) => match error.kind() {
                    ErrorKind::InvalidSignature if id.is_some() => rejection = Rejection::Signature,
                    ErrorKind::InvalidSignature => {}
                    ErrorKind::MissingRequiredClaim(_) => return Err(Rejection::MissingClaim),
                    ErrorKind::InvalidIssuer => return Err(Rejection::Issuer),
                    ErrorKind::InvalidAudience => return Err(Rejection::Audience),
                    ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => return Err(Rejection::Algorithm),
                    _ => return Err(Rejection::Malformed),
                },
            }
        }
        Err(rejection)
    }

    /// Rejects tokens that are not worth the check of a signature: expired ones, which clients may send again and again,
    /// and those of other issuers, whose keys cannot be known. Tokens that pass are not trusted yet.
    fn check_cheaply(&self, token: &[u8], now: Time) -> Result<(), Rejection> {
        let claims: Map<String, Value> = insecure_decode_claims(token).map_err(|_| Rejection::Malformed)?;
        match claims.get("iss") {
            Some(Value::String(issuer)) if *issuer == self.issuer => {}
            Some(_) => return Err(Rejection::Issuer),
            None => return Err(Rejection::MissingClaim),
        }
        check_times(&claims, now).map(|_| ())
    }

    fn claims(&self, claims: &Map<String, Value>, now: Time) -> Result<Claims, Rejection> {
        let expires = check_times(claims, now)?;
        let needed = self.claims.iter().filter_map(|name| Some((name.clone(), text(claims.get(name)?)?)));
        Ok(Claims { values: needed.collect(), expires })
    }
}

/// Checks `exp`, which is required, and `nbf`. Returns when the token expires, in seconds since 1970.
fn check_times(claims: &Map<String, Value>, now: Time) -> Result<u64, Rejection> {
    let seconds = |name| claims.get(name).map(|value: &Value| seconds(value).ok_or(Rejection::Malformed)).transpose();
    let expires = seconds("exp")?.ok_or(Rejection::MissingClaim)?;
    if is_expired(expires, now) {
        return Err(Rejection::Expired);
    }
    if seconds("nbf")?.is_some_and(|begins| begins > now.seconds().saturating_add(LEEWAY)) {
        return Err(Rejection::NotYetValid);
    }
    Ok(expires)
}

fn is_expired(expires: u64, now: Time) -> bool {
    now.seconds() >= expires.saturating_add(LEEWAY)
}

/// Seconds since 1970, without the fraction (RFC 7519, section 2, "NumericDate").
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|seconds| *seconds >= 0.0).map(|seconds| seconds as u64))
}

/// `None` if the claim is not a single value.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests;
