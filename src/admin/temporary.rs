//! `/api/limits/{limit}/overrides`: the overrides of the admin API that have not ended.

use percent_encoding::percent_decode_str;
use serde_json::json;
use tokio::time::Instant;

use super::View;
use super::key_override::KeyOverride;
use super::limit_path::LimitPath;
use super::overrides::moment;
use super::top_keys;
use crate::base::clock;
use crate::base::fingerprint::Fingerprint;
use crate::config::Limit as ConfiguredLimit;
use crate::config::overrides::Allowance;
use crate::proxy::respond::LocalResponse;
use crate::request::decide::ListedOverride;

pub(super) fn show(view: &View, path: LimitPath<'_>) -> LocalResponse {
    let config = view.config.load_full();
    let Some(limit) = path.find(&config) else { return path.unknown() };
    super::json(&json!({ "overrides": known(view, limit, usize::MAX) }))
}

pub(super) fn known(view: &View, limit: &ConfiguredLimit, most: usize) -> Vec<KeyOverride> {
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
pub(super) fn named(view: &View, limit: &ConfiguredLimit, text: &str) -> Option<Vec<Vec<u8>>> {
    let text = percent_decode_str(text).decode_utf8_lossy();
    let temporary = view.temporary.lock();
    let mut all = temporary.listed(&limit.name).into_iter();
    let found = all.find(|one| shown_key(view, limit, one.fingerprint, one.key) == text);
    found.map(|one| one.key.to_vec())
}

pub(super) fn shown_key(view: &View, limit: &ConfiguredLimit, key: Fingerprint, parts: &[Vec<u8>]) -> String {
    let shows_keys = view.config.load().admin.as_ref().is_some_and(|admin| admin.show_keys);
    let text = parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join("|");
    top_keys::shown(limit, key, &text, (!shows_keys).then_some(&view.key_mask))
}
