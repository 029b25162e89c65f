//! Tokens that are valid, and all ways in which others are not.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header, encode};
use proptest::prelude::*;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use super::*;
use crate::base::clock::Time;

const NOW: u64 = 1_000_000;

fn at(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

/// A signing key of the curve P-256, with its public half.
struct Signer {
    key: EncodingKey,
    pair: KeyPair,
    jwk: Value,
}

impl Signer {
    fn new(id: &str) -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap()).unwrap();
        jwk["kid"] = json!(id);
        Self { key, pair, jwk }
    }

    fn sign(&self, id: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn keys(list: &[&Value], origin: KeyOrigin) -> Result<KeySet, String> {
    KeySet::parse(json!({ "keys": list }).to_string().as_bytes(), origin)
}

fn claims() -> Value {
    json!({ "iss": "me", "aud": "api", "exp": NOW + 600, "sub": "alice" })
}

/// The claims with one changed, or removed by `null`.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

fn verifier(algorithms: &[Algorithm]) -> Verifier {
    Verifier::new("me", &["api".to_owned(), "web".to_owned()], algorithms, vec!["sub".to_owned()])
}

/// The claim `sub` of a valid token, or why the token is not valid.
fn subject(token: &str, keys: &KeySet) -> Result<Option<String>, Rejection> {
    let claims = verifier(&[Algorithm::ES256]).verify(token.as_bytes(), keys, at(NOW))?;
    Ok(claims.get("sub").map(str::to_owned))
}

#[test]
fn every_claim_that_has_to_be_there_is_checked() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    let alice = Ok(Some("alice".to_owned()));
    for (name, value, expected) in [
        ("iss", json!("me"), alice.clone()),
        ("iss", json!("other"), Err(Rejection::Issuer)),
        ("iss", json!(["me"]), Err(Rejection::Issuer)),
        ("iss", Value::Null, Err(Rejection::MissingClaim)),
        ("aud", json!(["other", "web"]), alice.clone()),
        ("aud", json!("other"), Err(Rejection::Audience)),
        ("aud", json!([]), Err(Rejection::Audience)),
        ("aud", json!(7), Err(Rejection::MissingClaim)),
        ("aud", Value::Null, Err(Rejection::MissingClaim)),
        ("exp", Value::Null, Err(Rejection::MissingClaim)),
        ("exp", json!("1000600"), Err(Rejection::Malformed)),
        ("exp", json!(-1), Err(Rejection::Malformed)),
        ("exp", json!(1e300), Err(Rejection::MissingClaim)),
        ("exp", json!(1e15), alice.clone()),
        ("exp", json!(u64::MAX), alice.clone()),
        ("nbf", json!(NOW), alice.clone()),
        ("nbf", json!("0"), Err(Rejection::Malformed)),
        ("sub", json!("bob"), Ok(Some("bob".to_owned()))),
        ("sub", json!(42), Ok(Some("42".to_owned()))),
        ("sub", json!(true), Ok(Some("true".to_owned()))),
        // `sub` must be a text (RFC 7519, section 4.1.2).
        ("sub", json!(["alice"]), Err(Rejection::Malformed)),
        ("sub", Value::Null, Ok(None)),
    ] {
        let token = signer.sign(Some("a"), &with(name, value.clone()));
        assert_eq!(subject(&token, &keys), expected, "{name} = {value}");
    }
}

#[test]
fn a_claim_is_a_key_if_it_is_one_value() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    let name = "https://example.com/plan";
    let verifier = Verifier::new("me", &["api".to_owned()], &[Algorithm::ES256], vec![name.to_owned()]);
    for (value, expected) in [
        (json!("gold"), Some("gold")),
        (json!(7), Some("7")),
        (json!(-1.5), Some("-1.5")),
        (json!(u64::MAX), Some("18446744073709551615")),
        (json!(false), Some("false")),
        (json!(["gold"]), None),
        (json!({ "name": "gold" }), None),
        (Value::Null, None),
    ] {
        let token = signer.sign(Some("a"), &with(name, value));
        let claims = verifier.verify(token.as_bytes(), &keys, at(NOW)).unwrap();
        assert_eq!((claims.get(name), claims.get("sub")), (expected, None), "only what is needed is kept");
    }
}

#[test]
fn numbers_of_keys_may_have_zero_bytes_before_them_and_the_text_a_mark() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let signer = Signer::new("a");
    let mut jwk = signer.jwk.clone();
    for number in ["x", "y"] {
        let bytes = URL_SAFE_NO_PAD.decode(jwk[number].as_str().unwrap()).unwrap();
        jwk[number] = json!(URL_SAFE_NO_PAD.encode([&[0, 0], &bytes[..]].concat()));
    }
    let text = format!("\u{feff}{}", json!({ "keys": [jwk] }));
    let keys = KeySet::parse(text.as_bytes(), KeyOrigin::Server).unwrap();
    let token = signer.sign(Some("a"), &claims());
    assert!(verifier(&[Algorithm::ES256]).verify(token.as_bytes(), &keys, at(NOW)).is_ok());
}

#[test]
fn without_a_configured_audience_a_token_must_have_none() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    let verifier = Verifier::new("me", &[], &[Algorithm::ES256], Vec::new());
    let verify =
        |claims: &Value| verifier.verify(signer.sign(Some("a"), claims).as_bytes(), &keys, at(NOW)).map(|_| ());
    assert_eq!(verify(&with("aud", Value::Null)), Ok(()));
    assert_eq!(verify(&claims()), Err(Rejection::Audience));
}

#[test]
fn times_are_those_of_the_callers_clock_with_a_leeway() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    let token = signer.sign(Some("a"), &json!({ "iss": "me", "aud": "api", "nbf": 1_000, "exp": 2_000 }));
    let verify = |now| verifier(&[Algorithm::ES256]).verify(token.as_bytes(), &keys, at(now));
    for (now, expected) in [
        (0, Err(Rejection::NotYetValid)),
        (1_000 - LEEWAY - 1, Err(Rejection::NotYetValid)),
        (1_000 - LEEWAY, Ok(())),
        (2_000 + LEEWAY - 1, Ok(())),
        (2_000 + LEEWAY, Err(Rejection::Expired)),
    ] {
        assert_eq!(verify(now).map(|_| ()), expected, "at {now}");
    }
    let claims = verify(1_500).unwrap();
    assert!(claims.is_valid(at(2_000 + LEEWAY - 1)) && !claims.is_valid(at(2_000 + LEEWAY)));
}

#[test]
fn a_public_key_is_never_used_as_a_secret() {
    let signer = Signer::new("a");
    let secret = json!({ "kty": "oct", "kid": "s", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0" });
    let keys = keys(&[&signer.jwk, &secret], KeyOrigin::File).unwrap();
    let everything: Vec<_> = ALGORITHMS.iter().map(|(_, algorithm)| *algorithm).collect();
    let forms = [
        signer.pair.public_key_pem().into_bytes(),
        signer.pair.public_key_pem().trim().as_bytes().to_vec(),
        signer.pair.public_key_raw().to_vec(),
        signer.jwk.to_string().into_bytes(),
        signer.jwk["x"].as_str().unwrap().as_bytes().to_vec(),
    ];
    for form in forms {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            for (id, expected) in [(Some("a"), Rejection::Algorithm), (None, Rejection::UnknownKey)] {
                let header = Header { kid: id.map(str::to_owned), ..Header::new(algorithm) };
                let token = encode(&header, &claims(), &EncodingKey::from_secret(&form)).unwrap();
                // Neither without HMAC in the list, nor with it.
                assert_eq!(subject(&token, &keys), Err(Rejection::Algorithm));
                let found = verifier(&everything).verify(token.as_bytes(), &keys, at(NOW));
                assert_eq!(found.map(|_| ()), Err(expected), "{algorithm:?} {id:?}");
            }
        }
    }
}

#[test]
fn a_secret_is_used_from_a_file_only_and_if_it_is_long_enough() {
    let secret = |length: usize| {
        let octets = vec![7; length];
        let key = EncodingKey::from_secret(&octets);
        let jwk = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::HS256).unwrap()).unwrap();
        (encode(&Header::new(Algorithm::HS256), &claims(), &key).unwrap(), jwk)
    };
    let (token, jwk) = secret(32);
    let verify = |keys: &KeySet| verifier(&[Algorithm::HS256]).verify(token.as_bytes(), keys, at(NOW)).map(|_| ());
    assert_eq!(verify(&keys(&[&jwk], KeyOrigin::File).unwrap()), Ok(()));
    let none_usable = "the document has no key that can verify a signature".to_owned();
    assert_eq!(keys(&[&jwk], KeyOrigin::Server), Err(none_usable.clone()));
    assert_eq!(keys(&[&secret(31).1], KeyOrigin::File), Err(none_usable));
}

#[test]
fn the_id_chooses_the_key_and_without_one_some_are_tried() {
    let signers: Vec<_> = (0..6).map(|number| Signer::new(&number.to_string())).collect();
    let all: Vec<_> = signers.iter().map(|signer| &signer.jwk).collect();
    let keys = keys(&all, KeyOrigin::Server).unwrap();
    for (place, signer) in signers.iter().enumerate() {
        assert!(subject(&signer.sign(Some(&place.to_string()), &claims()), &keys).is_ok());
        let wrong = ((place + 1) % 6).to_string();
        assert_eq!(subject(&signer.sign(Some(&wrong), &claims()), &keys), Err(Rejection::Signature));
        assert_eq!(subject(&signer.sign(Some("other"), &claims()), &keys), Err(Rejection::UnknownKey));
        let found = subject(&signer.sign(None, &claims()), &keys).map(|_| ());
        assert_eq!(found, if place < 4 { Ok(()) } else { Err(Rejection::UnknownKey) });
    }
}

#[test]
fn keys_for_other_purposes_are_not_used() {
    let signer = Signer::new("a");
    for (name, value, is_used) in [
        ("use", json!("sig"), true),
        ("use", json!("enc"), false),
        ("key_ops", json!(["verify"]), true),
        ("key_ops", json!(["encrypt"]), false),
        ("alg", json!("ES256"), true),
        ("alg", json!("ES384"), false),
        ("alg", json!("RSA-OAEP"), false),
        ("alg", json!("new"), false),
        ("crv", json!("P-521"), false),
        ("kty", json!("new"), false),
        ("x", json!("not base64!"), false),
        ("kid", json!(7), false),
    ] {
        let mut jwk = signer.jwk.clone();
        jwk[name] = value.clone();
        let other = Signer::new("b");
        let keys = keys(&[&jwk, &json!(7), &json!({}), &other.jwk], KeyOrigin::Server).unwrap();
        let found = subject(&signer.sign(Some("a"), &claims()), &keys);
        assert_eq!(found.is_ok(), is_used, "{name} = {value}: {found:?}");
        assert!(subject(&other.sign(Some("b"), &claims()), &keys).is_ok(), "{name} = {value}");
    }
}

#[test]
fn documents_that_are_no_keys_are_refused_without_repeating_them() {
    let large = format!("{{\"keys\": [], \"x\": \"{}\"}}", "x".repeat(MAX_BYTES));
    let many = json!({ "keys": vec![json!({}); 201] }).to_string();
    for (text, expected) in [
        ("", "the document is not JSON (line 1, column 0)"),
        ("<html>", "the document is not JSON (line 1, column 1)"),
        ("\n{\"keys\": [", "the document is not JSON (line 2, column 10)"),
        ("[]", "the document is not a JWK Set: it has no list `keys`"),
        ("{}", "the document is not a JWK Set: it has no list `keys`"),
        ("{\"keys\": \"hunter2\"}", "the document is not a JWK Set: it has no list `keys`"),
        ("{\"keys\": []}", "the document has no key that can verify a signature"),
        ("{\"keys\": [\"hunter2\"]}", "the document has no key that can verify a signature"),
        (&many, "the document has 201 keys, and at most 200 are allowed"),
        (&large, "the document has more than 1024 KiB"),
    ] {
        let error = KeySet::parse(text.as_bytes(), KeyOrigin::Server).unwrap_err();
        assert_eq!(error, expected);
    }
    let deep = format!("{{\"keys\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(KeySet::parse(deep.as_bytes(), KeyOrigin::Server).is_err());
}

fn unsigned(head: &str, signature: &str) -> String {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.{signature}", encode(head), encode(&claims().to_string()))
}

#[test]
fn tokens_without_a_signature_are_not_valid() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    for algorithm in ["none", "None", "NONE", "", "ES256K", "RS1"] {
        let token = unsigned(&json!({ "alg": algorithm }).to_string(), "");
        assert_eq!(subject(&token, &keys), Err(Rejection::Malformed), "{algorithm}");
    }
    assert_eq!(subject(&unsigned("{\"alg\":\"ES256\",\"kid\":\"a\"}", ""), &keys), Err(Rejection::Signature));
    assert_eq!(subject(&unsigned("{\"kid\":\"a\"}", "AAAA"), &keys), Err(Rejection::Malformed));
    let valid = signer.sign(Some("a"), &claims());
    assert!(subject(&valid, &keys).is_ok());
    for token in ["", ".", "..", "...", &format!("{valid}."), &valid[1..], valid.rsplit_once('.').unwrap().0] {
        assert_eq!(subject(token, &keys), Err(Rejection::Malformed), "{token}");
    }
    let long = signer.sign(Some("a"), &with("x", json!("x".repeat(16 << 10))));
    assert_eq!(subject(&long, &keys), Err(Rejection::Malformed));
}

#[test]
fn extensions_that_must_be_understood_are_refused() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    let mut header = Header { kid: Some("a".to_owned()), ..Header::new(Algorithm::ES256) };
    header.crit = Some(vec!["exp".to_owned()]);
    let token = encode(&header, &claims(), &signer.key).unwrap();
    assert_eq!(subject(&token, &keys), Err(Rejection::Malformed));
}

#[test]
fn no_byte_of_a_token_can_be_changed() {
    let signer = Signer::new("a");
    let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
    let token = signer.sign(Some("a"), &claims());
    for place in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(subject(&changed, &keys).is_err(), "{place}: {changed}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>, head: String, json in "[{}\\[\\]\",:a-z0-9]{0,40}") {
        let signer = Signer::new("a");
        let keys = keys(&[&signer.jwk], KeyOrigin::Server).unwrap();
        for token in [bytes.clone(), unsigned(&head, "AAAA").into_bytes(), unsigned(&json, "").into_bytes()] {
            prop_assert!(verifier(&[Algorithm::ES256]).verify(&token, &keys, at(NOW)).is_err());
        }
        let _ = KeySet::parse(&bytes, KeyOrigin::File);
        let _ = KeySet::parse(format!("{{\"keys\":[{json}]}}").as_bytes(), KeyOrigin::File);
    }
}
