//! One notice: what is sent, how it is signed, and what identifies it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_lc_rs::hmac;
use http::{HeaderName, HeaderValue};
use serde::Serialize;
use tokio::time::Instant;

use crate::base::fingerprint::Fingerprint;
use crate::base::hex;
use crate::base::hidden::Hidden;
use crate::base::share::WHOLE;
use crate::limit::{Limit, Reached};

pub(super) const SIGNATURE: HeaderName = HeaderName::from_static("x-gateway-signature");

/// How long a notice is tried.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What is sent, in the order of the documentation, and what it takes to send it.
#[derive(Debug, Serialize)]
pub(super) struct Notice {
    limit: String,
    rate: String,
    /// As it is shown.
    key: String,
    share: f64,
    used: u64,
    quota: u64,
    reset: String,
    gateway: &'static str,
    /// Of the rate.
    #[serde(skip)]
    pub(super) window: Duration,
    /// Of its receiver, limit, rate, key, share and window.
    #[serde(skip)]
    pub(super) id: Fingerprint,
    #[serde(skip)]
    since: Instant,
    /// Whether no other gateway, and this one no second time, sends it.
    #[serde(skip)]
    is_claimed: AtomicBool,
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
        let Reached { used, capacity: quota, until, window, .. } = *reached;
        let (rate, length) = (rate.to_string(), rate.window());
        let named = format!("{} {rate} {share} {window}", limit.name());
        // XOR keeps the parts apart only because each is a hash of another text.
        let id = Fingerprint::of(named.as_bytes()).with(key).with(receiver);
        let (limit, share) = (limit.name().to_owned(), f64::from(share) / f64::from(WHOLE));
        let (reset, gateway) = (until.rfc3339(), gateway());
        let (since, is_claimed) = (Instant::now(), AtomicBool::new(false));
        Some(Self { limit, rate, key: text, share, used, quota, reset, gateway, window: length, id, since, is_claimed })
    }

    pub(super) fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Relaxed)
    }

    pub(super) fn set_claimed(&self) {
        self.is_claimed.store(true, Ordering::Relaxed);
    }

    /// Whether it has been tried for long enough.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= LONGEST
    }

    pub(super) fn body(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// `sha256=` and the HMAC of the body.
pub(super) fn signature(secret: &Hidden<String>, body: &[u8]) -> Option<HeaderValue> {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.0.as_bytes()), body);
    HeaderValue::try_from(format!("sha256={}", hex::text(tag.as_ref()))).ok()
}

/// The name of this machine.
fn gateway() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Time;

    fn notice(share: u32, window: u64, key: &[u8], receiver: &[u8]) -> Notice {
        let limit = Limit::new("l", &["10/d".parse().unwrap()]);
        let reached = Reached { rate: 0, used: 8, capacity: 10, share, until: Time::from_micros(1_000_001), window };
        let [key, receiver] = [key, receiver].map(Fingerprint::of);
        Notice::new(receiver, &limit, key, "a\"\n\u{0}é".to_owned(), share, &reached).unwrap()
    }

    #[test]
    fn each_receiver_key_share_and_window_has_its_own() {
        let ids = [
            notice(1, 1, b"a", b"b"),
            notice(2, 1, b"a", b"b"),
            notice(1, 2, b"a", b"b"),
            notice(1, 1, b"c", b"b"),
            notice(1, 1, b"a", b"c"),
        ]
        .map(|notice| notice.id);
        assert!((0..ids.len()).all(|at| !ids[..at].contains(&ids[at])), "{ids:?}");
        assert_eq!(ids[0], notice(1, 1, b"a", b"b").id);
    }

    #[test]
    fn any_key_is_valid_json() {
        let body: serde_json::Value = serde_json::from_slice(&notice(800_000, 1, b"a", b"b").body()).unwrap();
        assert_eq!(body["key"], "a\"\n\u{0}é");
        assert_eq!((&body["share"], &body["reset"]), (&0.8.into(), &"1970-01-01T00:00:02Z".into()));
    }

    #[test]
    fn it_is_tried_for_an_hour() {
        let notice = notice(1, 1, b"a", b"b");
        assert!(!notice.is_expired(notice.since) && !notice.is_expired(notice.since + Duration::from_secs(3_599)));
        assert!(notice.is_expired(notice.since + Duration::from_secs(3_600)));
    }

    /// The example of RFC 4231, section 4.3.
    #[test]
    fn the_signature_is_hmac_sha256() {
        let signed = signature(&Hidden("Jefe".to_owned()), b"what do ya want for nothing?").unwrap();
        let tag = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signed.to_str().unwrap(), format!("sha256={tag}"));
    }
}
