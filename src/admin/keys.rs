//! `/api/limits/{limit}/keys/{key}`: what a key has used, how to forget it, and how to give the key an override.
//!
//! The path says neither which source of the limit the key comes from, nor the tier of its requests. So the gateway looks up
//! all counters that the key may have, and shows the fullest.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use hyper::body::Incoming;
use percent_encoding::{percent_decode, percent_decode_str};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::View;
use super::body;
use super::limits::{self, LimitPath};
use super::overrides::{self, FoundKey, OverrideChange};
use crate::base::clock::{self, Time};
use crate::base::key_mask::KeyMask;
use crate::base::share::share;
use crate::config::overrides::Allowance;
use crate::limit::Limit;
use crate::proxy::respond::{self, LocalResponse};
use crate::proxy::snapshot::Snapshot;
use crate::request::decide::{RateTable, SelectedRates};
use crate::request::identify::{KeyExtractor, WrittenKey, key_text};
use crate::sources::quotas::{CachedQuota, GrantedQuota, QuotaSource};
use crate::store::{Away, KeyUsage};

/// As in a path: percent-encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyPath<'a> {
    pub(super) limit: LimitPath<'a>,
    pub(super) key: &'a str,
}

impl KeyPath<'_> {
    /// A part writes a `|` as `%7C` and a `%` as `%25`. The path may also be all of that percent-encoded once more, as a
    /// program does with a key from a list: then `%7C` separates the parts.
    fn parts(&self, count: usize) -> Vec<Vec<u8>> {
        let decode = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
        if count <= 1 {
            return vec![decode(self.key)];
        }
        let written: Vec<_> = self.key.split('|').map(decode).collect();
        if written.len() == count {
            return written;
        }
        let joined = decode(self.key);
        joined.split(|byte| *byte == b'|').map(|part| percent_decode(part).collect()).collect()
    }
}

pub(super) async fn show(view: &View, path: KeyPath<'_>) -> Result<Value, LocalResponse> {
    with_key(view, path, true, async |key| look_up(view, &key).await).await
}

pub(super) async fn set_override(view: &View, path: KeyPath<'_>, body: Incoming) -> Result<Value, LocalResponse> {
    let body::Members(written) = body::read(body).await?;
    with_key(view, path, false, async |key| overrides::set(&view.overrides, &key, &written).await).await
}

/// Removes an override of the admin API, forgets what the key has used, in the store too, and shows what is left.
pub(super) async fn forget(view: &View, path: KeyPath<'_>) -> Result<Value, LocalResponse> {
    let forgotten = with_key(view, path, true, async |key| {
        let FoundKey { shown, limit, table, source, parts, readings } = key;
        let now = clock::now();
        let has_override =
            |reading: &WrittenKey<'_>| reading.has_override && table.temporary(reading.fingerprint).is_some();
        if readings.iter().any(has_override) {
            overrides::change(&view.overrides, limit, parts, OverrideChange::Remove).await?;
            tracing::info!(limit = table.name(), key = shown, "the admin API has removed an override");
        }
        for reading in readings {
            let cached = source.and_then(|source| source.peek(reading.quota_key)?.quota);
            let of_quota = cached.as_ref().and_then(|quota| table.of_quota(quota)).and_then(SelectedRates::limit);
            for limit in table.in_store().chain(of_quota).filter(|limit| !limit.rates().is_empty()) {
                view.store().reset(limit, reading.fingerprint, now).await.map_err(away)?;
            }
            if let Some(ban) = &table.ban {
                view.shared.forget_ban(table.name(), ban, reading.fingerprint);
            }
        }
        tracing::info!(limit = table.name(), key = shown, "the admin API has reset the counters of a key");
        look_up(view, &key).await
    });
    forgotten.await
}

/// Calls `act` with the key in the path. If `may_be_listed`, the path may also name a key as the list of bans or of overrides
/// shows it, so that operators can lift them although keys are masked; otherwise, a masked key is refused. The error is the
/// response if there is no such key, or that of `act`.
async fn with_key(
    view: &View,
    path: KeyPath<'_>,
    may_be_listed: bool,
    act: impl AsyncFnOnce(FoundKey<'_>) -> Result<Value, LocalResponse>,
) -> Result<Value, LocalResponse> {
    let (config, snapshot) = (view.config.load_full(), view.snapshot.load_full());
    let limit = path.limit.find(&config).ok_or_else(|| path.limit.unknown())?;
    let name = &limit.name;
    let (table, source) = in_force(&snapshot, name).ok_or_else(|| changing(name))?;
    let extractor = KeyExtractor::of_written(limit);
    let written = path.parts(extractor.part_count());
    let mask = limits::mask(view, limit);
    let text = match mask {
        Some(_) => percent_decode_str(path.key).decode_utf8_lossy().into_owned(),
        None => key_text::joined(&written.iter().map(|part| String::from_utf8_lossy(part).into()).collect::<Vec<_>>()),
    };
    if !may_be_listed && mask.is_some() && KeyMask::is_masked(&text) {
        let why = "This is a masked key: nothing has changed. Send the key itself, which is in the lists with show_keys = true.";
        return Err(respond::problem(StatusCode::CONFLICT, why));
    }
    // To compare the text with all masked keys takes long, and each of these has a `#`.
    let may_be_listed = may_be_listed && (mask.is_none() || text.contains('#'));
    let listed = may_be_listed.then(|| limits::overridden(view, limit, &text)).flatten();
    let parts = listed.unwrap_or(written);
    let values = limit.key.counted_values(&parts, limit.forms);
    let mut readings = values.as_ref().map_or(Vec::new(), |values| extractor.written(values));
    let banned = may_be_listed.then(|| limits::banned(view, limit, &text)).flatten();
    let banned = banned.filter(|fingerprint| !readings.iter().any(|reading| reading.fingerprint == *fingerprint));
    if let Some(fingerprint) = banned {
        readings = vec![WrittenKey { fingerprint, quota_key: fingerprint, subject: None, has_override: false }];
    }
    let Some(first) = readings.first() else {
        let (status, why) = match (&values, extractor.part_count()) {
            (Err(why), _) => (StatusCode::BAD_REQUEST, format!("{name:?} has no such key: {why}.")),
            (_, count) if count != parts.len() => {
                (StatusCode::NOT_FOUND, format!("A key of {name:?} has {count} parts, joined by |."))
            }
            _ => (StatusCode::NOT_FOUND, format!("{name:?} has no such key: it is not one of known_keys.")),
        };
        return Err(respond::problem(status, &why));
    };
    let shown = banned.map_or_else(|| limits::shown_key(view, limit, first.fingerprint, &parts), |_| text);
    act(FoundKey { shown: &shown, limit, table, source, parts: &parts, readings: &readings }).await
}

/// The rates of a limit in this snapshot, and its source of quotas. `None` while a reload changes the limit.
fn in_force<'s>(snapshot: &'s Snapshot, name: &str) -> Option<(&'s RateTable, Option<&'s QuotaSource>)> {
    let table = snapshot.limits.iter().find(|table| table.name() == name)?;
    Some((table, snapshot.quota_sources.iter().find(|one| one.limit.name == name).map(|one| &*one.source)))
}

fn changing(name: &str) -> LocalResponse {
    respond::problem(StatusCode::SERVICE_UNAVAILABLE, &format!("A reload is changing {name:?}."))
}

/// Shows what a key has used. A change of overrides has replaced the snapshot in which the key was found.
async fn look_up(view: &View, key: &FoundKey<'_>) -> Result<Value, LocalResponse> {
    let snapshot = view.snapshot.load_full();
    let name = &key.limit.name;
    let (table, source) = in_force(&snapshot, name).ok_or_else(|| changing(name))?;
    fullest(view, table, source, key.readings, clock::now()).await
}

fn away(Away: Away) -> LocalResponse {
    respond::problem(StatusCode::SERVICE_UNAVAILABLE, "The store of the counters does not answer.")
}

/// The fullest counters among all readings, with the origin of their rates: an override in the file or of the admin API, the
/// source of quotas, or the limit with its tiers.
async fn fullest(
    view: &View,
    table: &RateTable,
    source: Option<&QuotaSource>,
    readings: &[WrittenKey<'_>],
    now: Time,
) -> Result<Value, LocalResponse> {
    let mut fullest: Option<(u32, KeyUsage, &str)> = None;
    let (mut exempted_by, mut temporary, mut shown_quota) = (None, None, None);
    // In microseconds until the last ban ends.
    let mut banned: Option<u64> = None;
    for reading in readings {
        let of_file = reading.subject.and_then(|subject| table.granted(subject));
        if of_file.is_none() {
            temporary = temporary.or_else(|| table.temporary(reading.fingerprint));
        }
        let of_admin = || Some((table.temporarily_granted(reading.fingerprint)?, "admin"));
        let overridden = of_file.map(|granted| (granted, "file")).or_else(of_admin);
        let cached = source.and_then(|source| source.peek(reading.quota_key));
        let quota = cached.as_ref().and_then(|cached| cached.quota.as_deref());
        let of_source = quota.and_then(|quota| Some((table.of_quota(quota)?, "source")));
        if let Some(cached) = &cached {
            let holds = overridden.is_none() && of_source.is_some();
            shown_quota = shown_quota.or_else(|| Some(describe_quota(cached, holds, now)));
        }
        let limits: Vec<(&Arc<Limit>, _)> = match overridden.or(of_source) {
            Some((SelectedRates::Rates(_, limit), from)) => vec![(limit, from)],
            Some((SelectedRates::Exempt, from)) => {
                exempted_by = exempted_by.or(Some(from));
                continue;
            }
            Some((SelectedRates::Block, from)) => {
                let blocked = json!({ "rates": [], "from": from, "admitted": false, "retry_after": null, "block": true, "banned_until": null });
                return Ok(with_exceptions(blocked, temporary, shown_quota));
            }
            None => table.without_override().map(|limit| (limit, "limit")).collect(),
        };
        if let Some(ban) = &table.ban {
            let usage = view.store().peek(&ban.bans, reading.fingerprint, now).await.map_err(away)?;
            banned = banned.max(usage.rates.first().filter(|usage| usage.used > 0).and_then(|usage| usage.wait));
        }
        for (limit, from) in limits.into_iter().filter(|(limit, _)| !limit.rates().is_empty()) {
            let usage = view.store().peek(limit, reading.fingerprint, now).await.map_err(away)?;
            let level = usage.rates.iter().map(|rate| share(rate.used, rate.capacity)).max().unwrap_or(0);
            if fullest.as_ref().is_none_or(|(most, ..)| level > *most) {
                fullest = Some((level, usage, from));
            }
        }
    }
    let mut shown = match (fullest.filter(|(level, ..)| *level > 0 || exempted_by.is_none()), exempted_by) {
        (Some((_, usage, from)), _) => describe(&usage, from),
        (None, Some(from)) => {
            json!({ "rates": [], "from": from, "admitted": true, "retry_after": null, "exempt": true })
        }
        // The limit has no rates, only a maximum of requests in flight.
        (None, None) => json!({ "rates": [], "from": "limit", "admitted": true, "retry_after": null }),
    };
    if let Some(wait) = banned {
        let (own, ban) = (shown["retry_after"].as_u64(), wait.div_ceil(1_000_000));
        shown["admitted"] = json!(false);
        shown["retry_after"] = json!(own.unwrap_or(0).max(ban));
    }
    shown["banned_until"] = json!(banned.map(|wait| now.after(Duration::from_micros(wait)).rfc3339()));
    Ok(with_exceptions(shown, temporary, shown_quota))
}

fn with_exceptions(mut shown: Value, temporary: Option<(&Allowance, Instant)>, quota: Option<Value>) -> Value {
    if let Some(quota) = quota {
        shown["quota"] = quota;
    }
    if let Some((allowance, ends)) = temporary {
        shown["override"] = overrides::describe(allowance, ends);
    }
    shown
}

/// What is cached of a source of quotas. `holds` if the cached quota applies to the key.
fn describe_quota(cached: &CachedQuota, holds: bool, now: Time) -> Value {
    let mut shown = json!({
        "holds": holds,
        "known": cached.quota.is_some(),
        "age": cached.answered.map(|answered| now.micros_since(answered) / 1_000_000),
        "due": cached.is_due(now),
        "failures": cached.failures,
    });
    if let Some(quota) = &cached.quota {
        let answer = &quota.answer;
        match &quota.granted {
            GrantedQuota::Rates(_) => shown["rates"] = json!(answer.rates),
            GrantedQuota::Tier(name) => shown["tier"] = json!(name),
            GrantedQuota::Exempt => shown["exempt"] = json!(true),
            GrantedQuota::Block => shown["block"] = json!(true),
        }
    }
    shown
}

fn describe(usage: &KeyUsage, from: &str) -> Value {
    let seconds = |micros: u64| micros.div_ceil(1_000_000);
    let rates = usage.limit.rates().iter().zip(&usage.rates).map(|(rate, usage)| {
        json!({
            "rate": rate.to_string(),
            "used": usage.used,
            "remaining": usage.remaining,
            "reset": seconds(usage.wait.unwrap_or(0)),
        })
    });
    let refusing = usage.rates.iter().filter(|usage| usage.remaining == 0);
    let retry_after = refusing.clone().filter_map(|usage| usage.wait).max().map(seconds);
    json!({
        "rates": rates.collect::<Vec<_>>(),
        "from": from,
        "admitted": refusing.count() == 0,
        "retry_after": retry_after,
    })
}
