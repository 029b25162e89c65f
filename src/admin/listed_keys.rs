//! Keys of a limit as the admin API lists them, in full or masked: the most frequent ones, the banned ones
//! (`/api/limits/{limit}/bans`), and those with an override of the API (`/api/limits/{limit}/overrides`).

use std::borrow::Cow;

use blake3::Hash;
use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::json;
use tokio::time::Instant;

use super::View;
use super::dashboard::KeyOverride;
use super::overrides::moment;
use crate::admin::dashboard::{Ban, KeyCount};
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::config::overrides::Allowance;
use crate::config::{Config, Limit, Source};
use crate::proxy::respond::{self, LocalResponse};
use crate::request::decide::heavy_hitters::HeavyHitter;
use crate::request::decide::{KnownBan, KnownBans, LimitMetrics, ListedOverride, TopKeys};

/// Of each kind.
const MOST: usize = 10;

/// How many characters a masked key shows at its beginning, and at its end.
const SHOWN: usize = 2;
/// Shorter keys show no characters, because the rest could be guessed.
const SHORTEST: usize = 8;
/// The hexadecimal digits that identify a masked key.
const DIGITS: usize = 8;

/// Masks keys: a key has the same mask as long as the process runs, and the mask does not tell the key.
pub struct KeyMask {
    /// Without the secret, an attacker could guess keys and compare the guesses with the masks.
    secret: [u8; 32],
}

impl KeyMask {
    /// Has a new secret.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self { secret })
    }

    /// The first and last characters of a key, unless the key is short, and digits that identify it.
    fn of(&self, key: Fingerprint, text: &str) -> String {
        let hash: Hash = blake3::keyed_hash(&self.secret, &key.digits());
        let hash = hash.to_hex();
        let digits = &hash[..DIGITS];
        let characters: Vec<char> = text.chars().collect();
        match characters.len() {
            // Requests without a key.
            0 => String::new(),
            count if count < SHORTEST => format!("\u{2026}#{digits}"),
            count => {
                let [begin, end] = [&characters[..SHOWN], &characters[count - SHOWN..]].map(String::from_iter);
                format!("{begin}\u{2026}{end}#{digits}")
            }
        }
    }
}

/// A limit that no route uses has none.
pub(super) fn most_frequent(counted: Option<&LimitMetrics>, now: Time) -> TopKeys {
    counted.map(|counted| TopKeys::of(&counted.keys, now, MOST)).unwrap_or_default()
}

/// In full or masked.
pub(super) fn describe(limit: &Limit, hitters: &[HeavyHitter], mask: Option<&KeyMask>) -> Vec<KeyCount> {
    let one = |hitter: &HeavyHitter| KeyCount {
        key: shown(limit, hitter.key, &hitter.text, mask),
        count: hitter.count,
        error: hitter.error,
    };
    hitters.iter().map(one).collect()
}

pub(super) fn shown(limit: &Limit, key: Fingerprint, text: &str, mask: Option<&KeyMask>) -> String {
    mask.filter(|_| !is_public(limit)).map_or_else(|| text.to_owned(), |mask| mask.of(key, text))
}

/// Whether the keys of a limit say nothing about a client.
fn is_public(limit: &Limit) -> bool {
    limit.key.parts.iter().flatten().all(|source| matches!(source, Source::Global | Source::Method | Source::Route))
}

pub(super) fn show_bans(view: &View, path: LimitPath<'_>) -> LocalResponse {
    let config = view.config.load_full();
    let Some(limit) = path.find(&config) else { return path.unknown() };
    let bans: Vec<_> = bans(view, limit, clock::now()).into_iter().map(|(_, ban)| ban).collect();
    super::json(&json!({ "bans": bans }))
}

/// The known bans of a limit that last at `now`, each with the fingerprint of its key.
pub(super) fn bans(view: &View, limit: &Limit, now: Time) -> Vec<(Fingerprint, Ban)> {
    let limits = view.shared.limits();
    let counted = limits.iter().find(|counted| counted.name == limit.name);
    // A reload may have removed `ban` from the limit.
    let Some(counted) = counted.filter(|_| limit.ban.is_some()) else { return Vec::new() };
    let shows_keys = view.config.load().admin.as_ref().is_some_and(|admin| admin.show_keys);
    let mask = (!shows_keys).then_some(&view.key_mask);
    let all = KnownBans::all(&counted.bans, now).into_iter();
    let shown = |(key, known): (Fingerprint, KnownBan)| {
        let text = shown(limit, key, &known.text, mask);
        (key, Ban { key: text, until: moment(known.until), times: known.times })
    };
    all.map(shown).collect()
}

/// Finds a banned key by the text that the list shows, percent-encoded.
pub(super) fn banned(view: &View, limit: &Limit, text: &str) -> Option<Fingerprint> {
    let text = percent_decode_str(text).decode_utf8_lossy();
    bans(view, limit, clock::now()).into_iter().find(|(_, ban)| ban.key == text).map(|(key, _)| key)
}

pub(super) fn show_overrides(view: &View, path: LimitPath<'_>) -> LocalResponse {
    let config = view.config.load_full();
    let Some(limit) = path.find(&config) else { return path.unknown() };
    super::json(&json!({ "overrides": overrides(view, limit, usize::MAX) }))
}

pub(super) fn overrides(view: &View, limit: &Limit, most: usize) -> Vec<KeyOverride> {
    let temporary = view.temporary.lock();
    let shown = |one: ListedOverride<'_>| {
        let rates = match one.allowance {
            Allowance::Rates(rates) => rates.iter().map(ToString::to_string).collect(),
            Allowance::Exempt | Allowance::Block => Vec::new(),
        };
        KeyOverride {
            key: shown_key(view, limit, one.fingerprint, one.key),
            rates,
            exempt: *one.allowance == Allowance::Exempt,
            block: *one.allowance == Allowance::Block,
            // The override ends by the monotonic clock.
            until: moment(clock::now().after(one.ends.saturating_duration_since(Instant::now()))),
        }
    };
    temporary.listed(&limit.name).into_iter().take(most).map(shown).collect()
}

/// Finds the parts of a key by the text that the list shows, percent-encoded.
pub(super) fn overridden(view: &View, limit: &Limit, text: &str) -> Option<Vec<Vec<u8>>> {
    let text = percent_decode_str(text).decode_utf8_lossy();
    let temporary = view.temporary.lock();
    let mut all = temporary.listed(&limit.name).into_iter();
    let found = all.find(|one| shown_key(view, limit, one.fingerprint, one.key) == text);
    found.map(|one| one.key.to_vec())
}

pub(super) fn shown_key(view: &View, limit: &Limit, key: Fingerprint, parts: &[Vec<u8>]) -> String {
    let shows_keys = view.config.load().admin.as_ref().is_some_and(|admin| admin.show_keys);
    let text = parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("|");
    shown(limit, key, &text, (!shows_keys).then_some(&view.key_mask))
}

/// The name of a limit in a path: percent-encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitPath<'a>(&'a str);

impl<'a> LimitPath<'a> {
    /// Reads `{limit}/{list}`.
    pub(super) fn with_list(path: &'a str, list: &str) -> Option<Self> {
        let (limit, named) = path.split_once('/')?;
        (named == list).then_some(Self(limit))
    }

    /// Reads `{limit}/keys/{key}`, where the key may be any text.
    pub(super) fn with_key(path: &'a str) -> Option<(Self, &'a str)> {
        let (limit, key) = path.split_once("/keys/")?;
        Some((Self(limit), key))
    }

    pub(super) fn find(self, config: &Config) -> Option<&Limit> {
        let name = self.name();
        config.limits.iter().find(|limit| limit.name == name)
    }

    pub(super) fn unknown(self) -> LocalResponse {
        respond::problem(StatusCode::NOT_FOUND, &format!("There is no limit {:?}.", self.name()))
    }

    fn name(self) -> Cow<'a, str> {
        percent_decode_str(self.0).decode_utf8_lossy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(mask: &KeyMask, text: &str) -> String {
        mask.of(Fingerprint::of(text.as_bytes()), text)
    }

    #[test]
    fn a_mask_tells_keys_apart_but_not_what_they_are() {
        let mask = KeyMask::new().unwrap();
        let first = masked(&mask, "partner-7");
        assert_eq!(first, masked(&mask, "partner-7"));
        let (shown, digits) = first.split_once('#').unwrap();
        assert_eq!((shown, digits.len()), ("pa\u{2026}-7", DIGITS));
        assert_ne!(first, masked(&mask, "partner-17"));
        assert_ne!(first, masked(&KeyMask::new().unwrap(), "partner-7"), "it cannot be computed from the key");
        assert!(masked(&mask, "secret7").starts_with("\u{2026}#"), "{}", masked(&mask, "secret7"));
        assert!(masked(&mask, "\u{e4}\u{f6}\u{fc}45678").starts_with("\u{e4}\u{f6}\u{2026}78#"));
        assert_eq!(masked(&mask, ""), "");
    }

    #[test]
    fn a_path_names_a_limit_and_what_is_asked_of_it() {
        let list = |path| LimitPath::with_list(path, "bans").map(|LimitPath(limit)| limit);
        assert_eq!(
            ["l/bans", "a%2Fb/bans", "l/ban", "l/bans/", "l/x/bans", "bans"].map(list),
            [Some("l"), Some("a%2Fb"), None, None, None, None]
        );
        assert_eq!(LimitPath::with_key("l/keys/a/keys/bans"), Some((LimitPath("l"), "a/keys/bans")));
        assert_eq!(LimitPath::with_key("l/bans"), None);
    }
}
