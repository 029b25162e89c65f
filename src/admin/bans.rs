//! `/api/limits/{limit}/bans`: the banned keys of a limit, as far as this gateway knows.

use percent_encoding::percent_decode_str;
use serde_json::json;

use super::View;
use super::limit_path::LimitPath;
use super::overrides::moment;
use super::top_keys;
use crate::admin::dashboard::Ban;
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::config::Limit as ConfiguredLimit;
use crate::proxy::respond::LocalResponse;
use crate::request::decide::{KnownBan, KnownBans};

pub(super) fn show(view: &View, path: LimitPath<'_>) -> LocalResponse {
    let config = view.config.load_full();
    let Some(limit) = path.find(&config) else { return path.unknown() };
    let bans: Vec<_> = known(view, limit, clock::now()).into_iter().map(|(_, ban)| ban).collect();
    super::json(&json!({ "bans": bans }))
}

/// The known bans of a limit that last at `now`, each with the fingerprint of its key.
pub(super) fn known(view: &View, limit: &ConfiguredLimit, now: Time) -> Vec<(Fingerprint, Ban)> {
    let limits = view.shared.limits();
    let counted = limits.iter().find(|counted| counted.name == limit.name);
    // A reload may have removed `ban` from the limit.
    let Some(counted) = counted.filter(|_| limit.ban.is_some()) else { return Vec::new() };
    let shows_keys = view.config.load().admin.as_ref().is_some_and(|admin| admin.show_keys);
    let mask = (!shows_keys).then_some(&view.key_mask);
    let all = KnownBans::all(&counted.bans, now).into_iter();
    let shown = |(key, known): (Fingerprint, KnownBan)| {
        let text = top_keys::shown(limit, key, &known.text, mask);
        (key, Ban { key: text, until: moment(known.until), times: known.times })
    };
    all.map(shown).collect()
}

/// Finds a banned key by the text that the list shows, percent-encoded.
pub(super) fn named(view: &View, limit: &ConfiguredLimit, text: &str) -> Option<Fingerprint> {
    let text = percent_decode_str(text).decode_utf8_lossy();
    known(view, limit, clock::now()).into_iter().find(|(_, ban)| ban.key == text).map(|(key, _)| key)
}
