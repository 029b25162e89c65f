//! A moody ACME authority (RFC 8555), without TLS: it issues certificates, or does what the test wants instead. The tests with
//! Pebble check the gateway's requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{CertificateParams, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use serde_json::{Value, json};
use x509_cert::der::Decode;
use x509_cert::request::CertReq;

use super::clock::unix;
use super::gateway::{Gateway, limited};
use super::tls::Authority;
use super::upstream::{Received, Upstream};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AcmeMood {
    #[default]
    Issues,
    /// Never reports that it has looked at the gateway.
    Looks,
    /// Answers an order with this status, more fields and a body.
    Says(u16, &'static str, &'static str),
    /// Has no directory: answers with this status and a problem document.
    Closes(u16),
    /// Leaves an order pending, and reports that with more fields.
    Defers(&'static str),
    /// Reports that the gateway does not answer.
    Disbelieves,
    /// Forgets all accounts, until another one is made.
    Forgets,
    OtherNames,
    OtherKey,
    Expired,
    /// Issues certificates that have lived for so many seconds, and live for so many more.
    Aged(u64, u64),
    Garbage,
}

pub(crate) struct AcmeServer {
    up: Upstream,
    shared: Arc<Shared>,
}

struct Shared {
    authority: Authority,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    mood: AcmeMood,
    accounts: usize,
    bound_to: Value,
    orders: Vec<Vec<String>>,
    /// The issued chains, by the number of their order.
    issued: BTreeMap<usize, String>,
}

struct PublicKey(Vec<u8>);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl AcmeServer {
    pub(crate) fn start() -> Self {
        let state = Mutex::default();
        let shared = Arc::new(Shared { authority: Authority::new(), state, changed: Condvar::new() });
        let answering = shared.clone();
        let up = Upstream::start(move |request| answering.answer(request));
        Self { up, shared }
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.shared.authority
    }

    pub(crate) fn set(&self, mood: AcmeMood) {
        self.shared.state.lock().unwrap().mood = mood;
    }

    pub(crate) fn requests(&self) -> usize {
        self.up.received().len()
    }

    pub(crate) fn orders(&self) -> Vec<Vec<String>> {
        self.shared.state.lock().unwrap().orders.clone()
    }

    #[track_caller]
    pub(crate) fn wait_orders(&self, count: usize) {
        let state = self.shared.state.lock().unwrap();
        let wait = Duration::from_secs(30);
        let (state, _) =
            self.shared.changed.wait_timeout_while(state, wait, |state| state.orders.len() < count).unwrap();
        assert!(state.orders.len() >= count, "only {:?} were ordered", state.orders);
    }

    pub(crate) fn bound_to(&self) -> Value {
        self.shared.state.lock().unwrap().bound_to.clone()
    }

    pub(crate) fn accounts(&self) -> usize {
        self.shared.state.lock().unwrap().accounts
    }

    /// The whole text of a gateway with a plain and a TLS listener, with a certificate for these names from this authority.
    pub(crate) fn config(&self, names: &[&str], more: &str, rest: &str) -> String {
        gateway_text(&format!("http://{}/directory", self.up.address()), names, more, ["127.0.0.1:0"; 2], rest)
    }
}

/// The text of a gateway with these listeners, the first of which is plain.
pub(crate) fn gateway_text(directory: &str, names: &[&str], more: &str, [plain, tls]: [&str; 2], rest: &str) -> String {
    format!(
        "[server]\nworkers = 2\nlisten = [{{ address = \"{plain}\", tls = false }}, {{ address = \"{tls}\" }}]\n\
         [server.tls.acme]\nnames = {names:?}\nagree = true\ndirectory = \"{directory}\"\n{more}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"info\"\n{rest}\n"
    )
}

pub(crate) fn start(state: &Path, text: &str) -> Gateway {
    let config = state.join("gateway.toml");
    std::fs::write(&config, text).unwrap();
    Gateway::with_source(&["--config", config.to_str().unwrap(), "--state-dir", state.to_str().unwrap()], &[])
}

pub(crate) fn everything() -> String {
    limited("client-ip", "1000/s", "")
}

pub(crate) fn certificate_in(state: &Path) -> PathBuf {
    let entries =
        |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let folder = entries(&state.join("acme")).pop().unwrap();
    entries(&folder).into_iter().find(|path| path.extension().is_some_and(|extension| extension == "pem")).unwrap()
}

impl Shared {
    fn answer(&self, request: &Received) -> Vec<u8> {
        let mut state = self.state.lock().unwrap();
        let base = format!("http://{}", request.headers.must("host"));
        let payload = payload(request);
        let parts: Vec<_> = request.target.trim_start_matches('/').split('/').collect();
        let number = || parts[1].parse::<usize>().unwrap();
        let (status, location, body) = match (parts[0], state.mood) {
            ("directory", AcmeMood::Closes(status)) => {
                (status, None, json!({ "type": "urn:ietf:params:acme:error:serverInternal", "detail": "closed" }))
            }
            ("directory", _) => {
                let at = |path: &str| format!("{base}/{path}");
                (200, None, json!({ "newNonce": at("nonce"), "newAccount": at("account"), "newOrder": at("order") }))
            }
            ("nonce", _) => (200, None, Value::Null),
            ("account", mood) => {
                state.accounts += 1;
                state.bound_to = payload["externalAccountBinding"].clone();
                if mood == AcmeMood::Forgets {
                    state.mood = AcmeMood::Issues;
                }
                (201, Some(format!("{base}/account/{}", state.accounts)), json!({ "status": "valid" }))
            }
            ("order", AcmeMood::Says(status, fields, body)) if parts.len() == 1 => {
                state.orders.push(Vec::new());
                self.changed.notify_all();
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status} Word\r\nReplay-Nonce: n\r\n{fields}Content-Length: {length}\r\n\r\n");
                return (head + body).into_bytes();
            }
            ("order", AcmeMood::Defers(fields)) if parts.len() > 1 => {
                let body = order(&state, &base, number(), "pending").to_string();
                let length = body.len();
                let head = format!("HTTP/1.1 200 Word\r\nReplay-Nonce: n\r\n{fields}Content-Length: {length}\r\n\r\n");
                return (head + &body).into_bytes();
            }
            ("order", AcmeMood::Forgets) => {
                let problem = "urn:ietf:params:acme:error:accountDoesNotExist";
                (400, None, json!({ "type": problem, "detail": "no such account" }))
            }
            ("order", mood) => {
                let number = if parts.len() == 1 {
                    let names = payload["identifiers"].as_array().unwrap().iter();
                    state.orders.push(names.map(|one| one["value"].as_str().unwrap().to_owned()).collect());
                    self.changed.notify_all();
                    state.orders.len()
                } else {
                    number()
                };
                let status = match (mood, state.issued.contains_key(&number)) {
                    (_, true) => "valid",
                    _ if parts.len() == 1 => "pending",
                    (AcmeMood::Disbelieves, _) => "invalid",
                    (AcmeMood::Looks, _) => "pending",
                    _ => "ready",
                };
                (201, Some(format!("{base}/order/{number}")), order(&state, &base, number, status))
            }
            ("authorization", mood) => {
                let name = &state.orders[number() - 1][parts[2].parse::<usize>().unwrap()];
                let status = if mood == AcmeMood::Disbelieves { "invalid" } else { "pending" };
                let challenge = |kind| {
                    let mut challenge = json!({ "type": kind, "url": format!("{base}/challenge"), "token": token(name), "status": status });
                    if mood == AcmeMood::Disbelieves {
                        challenge["error"] = json!({ "detail": "nobody answers there" });
                    }
                    challenge
                };
                let challenges = [challenge("tls-alpn-01"), challenge("http-01")];
                (
                    200,
                    None,
                    json!({ "identifier": { "type": "dns", "value": name }, "status": status, "challenges": challenges }),
                )
            }
            ("challenge", _) => {
                (200, None, json!({ "type": "http-01", "url": base, "token": "t", "status": "processing" }))
            }
            ("finalize", mood) => {
                let csr = URL_SAFE_NO_PAD.decode(payload["csr"].as_str().unwrap()).unwrap();
                let chain = self.issue(mood, &state.orders[number() - 1], &csr);
                state.issued.insert(number(), chain);
                (200, None, order(&state, &base, number(), "valid"))
            }
            ("certificate", _) => return reply(200, None, &state.issued[&number()]),
            other => panic!("an authority is not asked for {other:?}"),
        };
        reply(status, location, &body.to_string())
    }

    fn issue(&self, mood: AcmeMood, names: &[String], csr: &[u8]) -> String {
        let names = if mood == AcmeMood::OtherNames { vec!["other.test".to_owned()] } else { names.to_vec() };
        let mut params = CertificateParams::new(names).unwrap();
        if mood == AcmeMood::Expired {
            params.not_after = (UNIX_EPOCH + unix() - Duration::from_secs(60)).into();
        }
        if let AcmeMood::Aged(lived, lives) = mood {
            params.not_before = (UNIX_EPOCH + unix() - Duration::from_secs(lived)).into();
            params.not_after = (UNIX_EPOCH + unix() + Duration::from_secs(lives)).into();
        }
        let key = CertReq::from_der(csr).unwrap().info.public_key.subject_public_key.raw_bytes().to_vec();
        match mood {
            AcmeMood::Garbage => "-----BEGIN CERTIFICATE-----\nAAAA".to_owned(),
            AcmeMood::OtherKey => self.authority.sign(&params, &rcgen::KeyPair::generate().unwrap()),
            _ => self.authority.sign(&params, &PublicKey(key)),
        }
    }
}

pub(crate) fn token(name: &str) -> String {
    URL_SAFE_NO_PAD.encode(name)
}

fn order(state: &State, base: &str, number: usize, status: &str) -> Value {
    let authorization = |index| format!("{base}/authorization/{number}/{index}");
    let authorizations: Vec<_> = (0..state.orders[number - 1].len()).map(authorization).collect();
    json!({
        "status": status,
        "authorizations": authorizations,
        "finalize": format!("{base}/finalize/{number}"),
        "certificate": format!("{base}/certificate/{number}"),
    })
}

fn payload(request: &Received) -> Value {
    let Ok(envelope) = serde_json::from_slice::<Value>(&request.body) else { return Value::Null };
    let payload = URL_SAFE_NO_PAD.decode(envelope["payload"].as_str().unwrap()).unwrap();
    serde_json::from_slice(&payload).unwrap_or_default()
}

fn reply(status: u16, location: Option<String>, body: &str) -> Vec<u8> {
    let location = location.map_or(String::new(), |url| format!("Location: {url}\r\n"));
    let body = if body == "null" { "" } else { body };
    format!("HTTP/1.1 {status} Word\r\nReplay-Nonce: n\r\n{location}Content-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// The path that an authority asks on a plain listener.
pub(crate) fn challenge_path(name: &str) -> String {
    format!("/.well-known/acme-challenge/{}", token(name))
}
