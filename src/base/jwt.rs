//! JSON Web Tokens (RFC 7519): whether an issuer signed a token for this gateway, and what the token says about its client.
//!
//! The crate jsonwebtoken verifies the signatures. Keys and time are arguments, so nothing here waits.

mod key_set;
mod verifier;

pub use key_set::{KeyOrigin, KeySet, KeySetError, MAX_BYTES};
pub use verifier::{Claims, LEEWAY, Rejection, Verifier};

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

#[cfg(test)]
mod tests;
