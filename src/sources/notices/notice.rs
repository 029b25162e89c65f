//! One notice: what is sent, how it is signed, and what identifies it.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use aws_lc_rs::hmac;
use http::HeaderValue;
use serde::Serialize;
use tokio::time::Instant;

use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::share::WHOLE;
use crate::config::NoticeSecret;
use crate::limit::{Limit, Reached};

pub(super) const SIGNATURE: &str = "x-gateway-signature";

/// The longest name of a machine, in bytes.
const LONGEST_NAME: usize = 255;

#[derive(Debug)]
pub(super) struct Notice {
    limit: String,
    rate: String,
    key: String,
    share: u32,
    used: u64,
    quota: u64,
    pub(super) until: Time,
    /// Of its receiver, limit, rate, key, share and window.
    pub(super) id: Fingerprint,
    pub(super) since: Instant,
    /// Whether no other gateway, and this one no second time, sends it.
    pub(super) is_claimed: AtomicBool,
}

/// In the order of the documentation.
#[derive(Serialize)]
struct Body<'a> {
    limit: &'a str,
    rate: &'a str,
    key: &'a str,
    share: f64,
    used: u64,
    quota: u64,
    reset: String,
    gateway: &'a str,
}

impl Notice {
    /// For the receiver of this name. `text` is the key as it is shown.
    pub(super) fn new(
        receiver: Fingerprint,
        limit: &Limit,
        key: Fingerprint,
        text: String,
        share: u32,
        reached: &Reached,
    ) -> Option<Self> {
        let rate = limit.rates().get(reached.rate)?;
        let Reached { used, capacity, until, .. } = *reached;
        let rate = rate.to_string();
        let window = format!("{} {rate} {share} {}", limit.name(), until.micros());
        // XOR keeps the parts apart only because each is a hash of another text.
        let id = Fingerprint::of(window.as_bytes()).with(key).with(receiver);
        let (limit, since, is_claimed) = (limit.name().to_owned(), Instant::now(), AtomicBool::new(false));
        Some(Self { limit, rate, key: text, share, used, quota: capacity, until, id, since, is_claimed })
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let Self { limit, rate, key, share, used, quota, until, .. } = self;
        let (share, reset) = (f64::from(*share) / f64::from(WHOLE), until.rfc3339());
        let body = Body { limit, rate, key, share, used: *used, quota: *quota, reset, gateway: gateway() };
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

/// `sha256=` and the HMAC of the body.
pub(super) fn signature(secret: &NoticeSecret, body: &[u8]) -> Option<HeaderValue> {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body);
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::try_from(format!("sha256={digits}")).ok()
}

/// The name of this machine.
fn gateway() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        name.chars().take(LONGEST_NAME).collect()
    })
}
