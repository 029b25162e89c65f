//! The keys of an issuer, a JWK Set (RFC 7517), and which of them may have signed a token.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use crate::base::byte_order_mark::without_mark;
use crate::base::fingerprint::Fingerprint;

/// The largest document. Issuers have some kilobytes, certificates included.
pub const MAX_BYTES: usize = 1 << 20;

/// In one document. Issuers have two or three, large ones with many tenants some dozens.
const MAX_KEYS: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// May contain secret keys (type `oct`).
    File,
    /// Whoever can read the server's answer would know its secret keys, so they are not used.
    Server,
}

/// The keys that can verify signatures. Two sets are equal if they come from the same document.
#[derive(Clone)]
pub struct KeySet {
    keys: Vec<Key>,
    fingerprint: Fingerprint,
}

#[derive(Clone)]
struct Key {
    /// `kid`
    id: Option<String>,
    /// At least one.
    algorithms: Vec<Algorithm>,
    decoding: DecodingKey,
}

/// Only the number of keys, because some may be secret.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl PartialEq for KeySet {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl KeySet {
    pub fn empty() -> Self {
        Self { keys: Vec::new(), fingerprint: Fingerprint::of(b"") }
    }

    /// Skips keys that are not understood or have another purpose (RFC 7517, section 5). Fails when the document is no set of
    /// keys, or no key can be used. The message contains no part of the document, which may be secret.
    pub fn parse(json: &[u8], origin: KeyOrigin) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        if json.len() > MAX_BYTES {
            return Err(format!("the document has more than {} KiB", MAX_BYTES >> 10));
        }
        let document: Document =
            serde_json::from_slice(without_mark(json)).map_err(|error| match error.classify() {
                serde_json::error::Category::Data => "the document is not a JWK Set: it has no list `keys`".to_owned(),
                _ => format!("the document is not JSON (line {}, column {})", error.line(), error.column()),
            })?;
        if document.keys.len() > MAX_KEYS {
            return Err(format!("the document has {} keys, and at most {MAX_KEYS} are allowed", document.keys.len()));
        }
        let keys: Vec<_> = document.keys.into_iter().filter_map(|key| Key::read(key, origin)).collect();
        if keys.is_empty() {
            return Err("the document has no key that can verify a signature".to_owned());
        }
        Ok(Self { keys, fingerprint: Fingerprint::of(json) })
    }

    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// Differs for sets from different documents.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub fn has_key_for(&self, algorithm: Algorithm) -> bool {
        self.keys.iter().any(|key| key.algorithms.contains(&algorithm))
    }

    pub(super) fn has_id(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// The keys that may have signed a token with this algorithm: those with the id, if the token names one.
    pub(super) fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &DecodingKey> {
        let fits = move |key: &&Key| key.algorithms.contains(&algorithm) && (id.is_none() || key.id.as_deref() == id);
        self.keys.iter().filter(fits).map(|key| &key.decoding)
    }
}

impl Key {
    /// `None` if the key cannot verify a signature.
    fn read(key: Value, origin: KeyOrigin) -> Option<Self> {
        let mut jwk: Jwk = serde_json::from_value(key).ok()?;
        trim(&mut jwk.algorithm);
        let common = &jwk.common;
        let is_for_signatures =
            common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
                && common.key_operations.as_ref().is_none_or(|allowed| allowed.contains(&KeyOperations::Verify));
        let mut algorithms = algorithms(&jwk.algorithm, origin);
        if let Some(only) = common.key_algorithm {
            algorithms.retain(|algorithm| Algorithm::try_from(only).is_ok_and(|only| *algorithm == only));
        }
        let is_useful = is_for_signatures && !algorithms.is_empty();
        let decoding = DecodingKey::from_jwk(&jwk).ok().filter(|_| is_useful)?;
        Some(Self { id: jwk.common.key_id, algorithms, decoding })
    }
}

/// Gives the numbers of a public key their required length. Some issuers write a zero byte before them, as ASN.1 does, or omit
/// zero bytes (RFC 7518, sections 2 and 6.2.1.2).
fn trim(parameters: &mut AlgorithmParameters) {
    let trimmed = |number: &mut String, length: usize| {
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(&*number) else { return };
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let significant = &bytes[zeros..];
        let padding = vec![0; length.saturating_sub(significant.len())];
        *number = URL_SAFE_NO_PAD.encode([&padding[..], significant].concat());
    };
    match parameters {
        AlgorithmParameters::RSA(key) => [&mut key.n, &mut key.e].into_iter().for_each(|number| trimmed(number, 0)),
        AlgorithmParameters::EllipticCurve(key) => {
            let length = match key.curve {
                EllipticCurve::P256 => 32,
                EllipticCurve::P384 => 48,
                _ => return,
            };
            [&mut key.x, &mut key.y].into_iter().for_each(|number| trimmed(number, length));
        }
        _ => {}
    }
}

/// The algorithms that a key with these parameters can be used with.
fn algorithms(parameters: &AlgorithmParameters, origin: KeyOrigin) -> Vec<Algorithm> {
    match parameters {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => Vec::new(),
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
        AlgorithmParameters::OctetKey(key) if origin == KeyOrigin::File => {
            // A secret must not be shorter than the hash (RFC 7518, section 3.2).
            let length = URL_SAFE_NO_PAD.decode(&key.value).map_or(0, |secret| secret.len());
            let hashes = [(32, Algorithm::HS256), (48, Algorithm::HS384), (64, Algorithm::HS512)];
            hashes.into_iter().filter(|(least, _)| length >= *least).map(|(_, algorithm)| algorithm).collect()
        }
        _ => Vec::new(),
    }
}
