//! `/api/limits`: each limit with its rates and decisions, and its keys, in full or masked: the most frequent ones, the banned
//! ones (`/api/limits/{limit}/bans`), and those with an override of the API (`/api/limits/{limit}/overrides`).

use std::cmp::Reverse;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::View;
use super::dashboard::KeyOverride;
use super::history::History;
use crate::admin::dashboard::{Ban, Decisions, KeyCount, LimitDescription, Limits, ModelNumbers, TokenNumbers};
use crate::base::clock::{self, Time};
use crate::base::fingerprint::Fingerprint;
use crate::base::key_mask::KeyMask;
use crate::config::overrides::Allowance;
use crate::config::{Config, Cost, Limit};
use crate::proxy::respond::{self, LocalResponse};
use crate::request::decide::heavy_hitters::HeavyHitter;
use crate::request::decide::{
    DECISIONS, DecisionCounter, KnownBan, KnownBans, LimitMetrics, TemporaryOverride, TokenCounts, TopKeys, shown_since,
};
use crate::request::identify::key_text;
use crate::tokens::Usage;

const MOST_OVERRIDES: usize = 10;
const MOST_BANS: usize = 10;
const MODELS_SHOWN: usize = 10;
/// Of each kind.
const MOST_KEYS: usize = 10;

/// The order of limits everywhere: by refusals in the last hour, then by refusals since the start, which `of` tells with the
/// name.
pub(super) fn sort<T>(limits: &mut [T], history: &History, of: impl Fn(&T) -> (&str, u64)) {
    limits.sort_by_cached_key(|limit| {
        let (name, refused) = of(limit);
        (Reverse(history.refused_in_hour(name)), Reverse(refused), name.to_owned())
    });
}

pub(super) fn describe_all(view: &View, history: &History) -> Limits {
    let (config, snapshot, metrics) = (view.config.load_full(), view.snapshot.load_full(), view.shared.limits.all());
    let now = clock::now();
    let describe = |limit: &Limit| {
        let table = snapshot.limits.iter().find(|table| table.name() == limit.name);
        let counted = metrics.iter().find(|counted| counted.name == limit.name).map(|counted| &**counted);
        // A limit that no route uses has none.
        let top = counted.map(|counted| TopKeys::of(&counted.keys, now, MOST_KEYS)).unwrap_or_default();
        let mask = mask(view, limit);
        LimitDescription {
            name: limit.name.clone(),
            rates: limit.part(&limit.rates).iter().map(ToString::to_string).collect(),
            gateways: limit.gateways.unwrap_or(1),
            on_limit: limit.on_limit.word().to_owned(),
            max_in_flight: limit.max_in_flight,
            ban: limit.ban.as_ref().map(ToString::to_string),
            bans: bans(view, limit, now).into_iter().map(|(_, ban)| ban).take(MOST_BANS).collect(),
            overrides: limit.overrides.len(),
            temporary: overrides(view, limit, MOST_OVERRIDES),
            temporary_overrides: table.map_or(0, |table| table.temporary_count()),
            decisions: decisions(counted),
            tokens: matches!(limit.cost, Cost::Tokens(_)).then(|| counted.map(tokens).unwrap_or_default()),
            most_refused: key_counts(&top.most_refused, mask),
            most_busy: key_counts(&top.most_busy, mask),
        }
    };
    let mut limits: Vec<_> = config.limits.iter().map(describe).collect();
    sort(&mut limits, history, |limit| (&limit.name, limit.decisions.refused()));
    Limits { keys_since: shown_since(now).rfc3339(), limits }
}

/// A limit that no route uses has decided nothing.
pub(super) fn decisions(counted: Option<&LimitMetrics>) -> Decisions {
    let of = |count: DecisionCounter| counted.map_or(0, |counted| counted.decisions(count));
    Decisions(DECISIONS.iter().map(|(name, count)| ((*name).to_owned(), of(*count))).collect())
}

fn tokens(counted: &LimitMetrics) -> TokenNumbers {
    let TokenCounts { reserved, settled, estimated, cut, .. } = counted.tokens.total();
    let model = |(model, TokenCounts { used, settled, .. })| {
        let Usage { input, cached, output } = used;
        ModelNumbers { model, input, cached, output, settled }
    };
    let mut models: Vec<_> = counted.tokens.by_model().into_iter().map(model).collect();
    models.sort_by_key(|model| Reverse(model.settled));
    models.truncate(MODELS_SHOWN);
    TokenNumbers { reserved, settled, estimated, cut, models }
}

/// In full or masked.
fn key_counts(hitters: &[HeavyHitter], mask: Option<&KeyMask>) -> Vec<KeyCount> {
    let one = |hitter: &HeavyHitter| KeyCount {
        key: shown(hitter.key, &hitter.text, mask),
        count: hitter.count,
        error: hitter.error,
    };
    hitters.iter().map(one).collect()
}

/// `None` if the keys of the limit are shown in full.
pub(super) fn mask<'v>(view: &'v View, limit: &Limit) -> Option<&'v KeyMask> {
    let shows_keys = view.config.load().admin.as_ref().is_some_and(|admin| admin.show_keys);
    (!shows_keys && !limit.has_public_keys()).then_some(&view.key_mask)
}

fn shown(key: Fingerprint, text: &str, mask: Option<&KeyMask>) -> String {
    mask.map_or_else(|| text.to_owned(), |mask| mask.of(key, text))
}

/// `None` if there is no such limit.
pub(super) fn show_bans(view: &View, path: LimitPath<'_>) -> Option<Value> {
    let config = view.config.load_full();
    let bans = bans(view, path.find(&config)?, clock::now()).into_iter().map(|(_, ban)| ban);
    Some(json!({ "bans": bans.collect::<Vec<_>>() }))
}

/// The known bans of a limit that last at `now`, each with the fingerprint of its key.
fn bans(view: &View, limit: &Limit, now: Time) -> Vec<(Fingerprint, Ban)> {
    let limits = view.shared.limits.all();
    let counted = limits.iter().find(|counted| counted.name == limit.name);
    // A reload may have removed `ban` from the limit.
    let Some(counted) = counted.filter(|_| limit.ban.is_some()) else { return Vec::new() };
    let mask = mask(view, limit);
    let all = KnownBans::all(&counted.bans, now).into_iter();
    let shown = |(key, known): (Fingerprint, KnownBan)| {
        let text = shown(key, &known.text, mask);
        (key, Ban { key: text, until: known.until.rfc3339(), times: known.times })
    };
    all.map(shown).collect()
}

/// Finds a banned key by the text that the list shows.
pub(super) fn banned(view: &View, limit: &Limit, text: &str) -> Option<Fingerprint> {
    bans(view, limit, clock::now()).into_iter().find(|(_, ban)| ban.key == text).map(|(key, _)| key)
}

/// `None` if there is no such limit.
pub(super) fn show_overrides(view: &View, path: LimitPath<'_>) -> Option<Value> {
    let config = view.config.load_full();
    Some(json!({ "overrides": overrides(view, path.find(&config)?, usize::MAX) }))
}

fn overrides(view: &View, limit: &Limit, most: usize) -> Vec<KeyOverride> {
    let temporary = view.temporary.lock();
    let shown = |one: &TemporaryOverride| {
        let rates = match one.allowance() {
            Allowance::Rates(rates) => rates.iter().map(ToString::to_string).collect(),
            Allowance::Exempt | Allowance::Block => Vec::new(),
        };
        KeyOverride {
            key: shown_key(view, limit, one.fingerprint(), &one.key),
            rates,
            exempt: *one.allowance() == Allowance::Exempt,
            block: *one.allowance() == Allowance::Block,
            // The override ends by the monotonic clock.
            until: clock::now().after(one.ends.saturating_duration_since(Instant::now())).rfc3339(),
        }
    };
    temporary.listed(&limit.name).into_iter().take(most).map(shown).collect()
}

/// Finds the parts of a key by the text that the list shows.
pub(super) fn overridden(view: &View, limit: &Limit, text: &str) -> Option<Vec<Vec<u8>>> {
    let temporary = view.temporary.lock();
    let mut all = temporary.listed(&limit.name).into_iter();
    let found = all.find(|one| shown_key(view, limit, one.fingerprint(), &one.key) == text);
    found.map(|one| one.key.clone())
}

pub(super) fn shown_key(view: &View, limit: &Limit, key: Fingerprint, parts: &[Vec<u8>]) -> String {
    let values = limit.key.counted_values(parts, limit.forms).unwrap_or_default();
    let part = |values: &Vec<Vec<u8>>| String::from_utf8_lossy(values.first().map_or(&[], Vec::as_slice)).into_owned();
    shown(key, &key_text::joined(&values.iter().map(part).collect::<Vec<_>>()), mask(view, limit))
}

/// The name of a limit in a path: percent-encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitPath<'a>(pub(super) &'a str);

impl LimitPath<'_> {
    pub(super) fn find(self, config: &Config) -> Option<&Limit> {
        let name = percent_decode_str(self.0).decode_utf8_lossy();
        config.limits.iter().find(|limit| limit.name == name)
    }

    pub(super) fn unknown(self) -> LocalResponse {
        let name = percent_decode_str(self.0).decode_utf8_lossy();
        respond::problem(StatusCode::NOT_FOUND, &format!("There is no limit {name:?}."))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::clock::Time;

    #[test]
    fn the_dearest_models_are_shown_first() {
        let limit = LimitMetrics::new("l", 1);
        for number in 0..12_u64 {
            let used = Usage { input: number, cached: 1, output: 2 };
            let counts = TokenCounts { used, reserved: 100, settled: number, estimated: 1, ..TokenCounts::default() };
            limit.tokens.record(Some(format!("m-{number}").as_bytes()), counts);
        }
        let shown = tokens(&limit);
        assert_eq!((shown.reserved, shown.settled, shown.estimated, shown.cut), (1_200, 66, 12, 0));
        assert_eq!(shown.models.len(), MODELS_SHOWN);
        let first = ModelNumbers { model: "m-11".to_owned(), input: 11, cached: 1, output: 2, settled: 11 };
        assert_eq!(shown.models[0], first);
        assert_eq!(shown.models[9].model, "m-2");
    }

    #[test]
    fn what_refuses_most_comes_first() {
        let mut history = History::default();
        let at = |minutes: u64| Time::from_micros(minutes * 60_000_000);
        let mut record = |minutes, counts: [u64; 5]| {
            let limits = ["a", "b", "old", "older", "z"].into_iter().zip(counts);
            history.record(at(minutes), std::iter::empty(), limits);
        };
        // Refusals of more than an hour ago count less than any later ones.
        record(1, [0, 0, 0, 0, 0]);
        record(2, [0, 0, 50, 90, 0]);
        record(100, [0, 1, 50, 90, 7]);
        let refused = [("z", 7), ("old", 50), ("b", 1), ("older", 90), ("a", 0), ("0", 0)];
        let mut limits = refused;
        sort(&mut limits, &history, |limit| *limit);
        assert_eq!(limits.map(|(name, _)| name), ["z", "b", "older", "old", "0", "a"]);
    }

    #[test]
    fn each_decision_is_shown_by_its_name() {
        let limit = LimitMetrics::new("l", 1);
        for ((_, count), times) in DECISIONS.iter().zip(1..) {
            count(limit.workers.of(0)).add(times);
        }
        let shown = decisions(Some(&limit));
        assert_eq!(json!(shown)["not_charged"], json!(shown.of("not_charged")));
        let refused = ["rejected", "shadowed", "silenced", "blocked", "banned", "keyless"].map(|name| shown.of(name));
        assert!(refused.iter().all(|count| *count > 0), "{shown:?}");
        assert_eq!(shown.refused(), refused.iter().sum::<u64>());
        assert_eq!(decisions(None).0.values().sum::<u64>(), 0);
    }
}
