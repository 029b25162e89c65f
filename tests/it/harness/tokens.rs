//! Issuers of JSON Web Tokens: signing keys, and their public halves.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData, RsaKeySize,
};
use serde_json::{Value, json};

use super::clock::unix;

/// A key that signs tokens of one algorithm.
pub(crate) struct Signer {
    algorithm: Algorithm,
    id: String,
    key: EncodingKey,
    pair: Option<KeyPair>,
    /// What others need to verify its tokens.
    pub(crate) jwk: Value,
}

impl Signer {
    pub(crate) fn new(algorithm: Algorithm, id: &str) -> Self {
        use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512};
        let (key, pair) = match algorithm {
            HS256 | HS384 | HS512 => (EncodingKey::from_secret(format!("{id:064}").as_bytes()), None),
            ES256 | ES384 => {
                let curve = if algorithm == ES256 { &PKCS_ECDSA_P256_SHA256 } else { &PKCS_ECDSA_P384_SHA384 };
                let pair = KeyPair::generate_for(curve).unwrap();
                (EncodingKey::from_ec_der(&pair.serialize_der()), Some(pair))
            }
            EdDSA => {
                let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
                (EncodingKey::from_ed_der(&pair.serialize_der()), Some(pair))
            }
            _ => {
                let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
                // The key itself is the last part of the PKCS#8 document, whose head has this size for 2048 bits.
                (EncodingKey::from_rsa_der(&pair.serialize_der()[26..]), Some(pair))
            }
        };
        let mut jwk = match &pair {
            Some(pair) if algorithm == EdDSA => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(pair.der_bytes()) })
            }
            _ => serde_json::to_value(Jwk::from_encoding_key(&key, algorithm).unwrap()).unwrap(),
        };
        jwk["kid"] = json!(id);
        Self { algorithm, id: id.to_owned(), key, pair, jwk }
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }

    /// A token of this HMAC algorithm, whose secret is the public key as a text.
    pub(crate) fn confuse(&self, algorithm: Algorithm, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(algorithm) };
        let public = self.pair.as_ref().unwrap().public_key_pem();
        encode(&header, claims, &EncodingKey::from_secret(public.as_bytes())).unwrap()
    }
}

/// The claims of a valid token for `api` from `https://login.test/`.
pub(crate) fn claims(subject: &str) -> Value {
    let now = unix().as_secs();
    json!({ "iss": "https://login.test/", "aud": "api", "sub": subject, "iat": now, "exp": now + 600 })
}

pub(crate) fn key_set(signers: &[&Signer]) -> String {
    json!({ "keys": signers.iter().map(|signer| &signer.jwk).collect::<Vec<_>>() }).to_string()
}
