//! `PUT /api/limits/{limit}/keys/{key}`: an override for one key until a moment, which the control thread sets.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::reload;
use crate::base::clock;
use crate::config::overrides::Allowance;
use crate::config::{self, Limit as ConfiguredLimit};
use crate::proxy::respond::{self, LocalResponse};
use crate::request::decide::{MAX_TEMPORARY, NotSet, RateTable};
use crate::request::identify::WrittenKey;
use crate::sources::quotas::QuotaSource;

/// A key of a limit, as the configuration in force reads it.
pub(super) struct FoundKey<'a> {
    /// As lists and logs show it.
    pub(super) shown: &'a str,
    pub(super) limit: &'a ConfiguredLimit,
    pub(super) table: &'a RateTable,
    pub(super) source: Option<&'a QuotaSource>,
    pub(super) parts: &'a [Vec<u8>],
    /// At least one.
    pub(super) readings: &'a [WrittenKey<'a>],
}

pub struct OverrideRequest {
    pub limit: String,
    pub key: Vec<Vec<u8>>,
    pub change: OverrideChange,
    /// Gets the result when the change is in force, or why nothing changed.
    pub answer: oneshot::Sender<Result<(), NotSet>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum OverrideChange {
    /// Grants this until the moment.
    Set(Allowance, Instant),
    Remove,
}

/// In bytes; longer than any header of a client needs.
const LONGEST_KEY: usize = 4096;

/// Sets an override of a key as `written`, and shows it. The error is the response if it is not set.
pub(super) async fn set(
    requests: &mpsc::Sender<OverrideRequest>,
    key: &FoundKey<'_>,
    written: &Map<String, Value>,
) -> Result<Value, LocalResponse> {
    let FoundKey { shown, limit, table, parts, readings, .. } = *key;
    let (allowance, lasts) = config::temporary_override(written, limit).map_err(|problems| {
        let list = problems.located().map(|(_, found)| reload::problem(None, &found.message, found.help.as_deref()));
        let detail = "The override is not valid, so nothing has changed.";
        respond::problem_with(StatusCode::UNPROCESSABLE_ENTITY, detail, &list.collect::<Vec<_>>())
    })?;
    if parts.iter().map(Vec::len).sum::<usize>() > LONGEST_KEY {
        let why = format!("The key is longer than {LONGEST_KEY} bytes.");
        return Err(respond::problem(StatusCode::UNPROCESSABLE_ENTITY, &why));
    }
    let mut meant = readings.iter().filter(|reading| reading.has_override).filter_map(|reading| reading.subject);
    if meant.any(|subject| table.granted(subject).is_some()) {
        let why = "The file has an override for this key, which precedes one of the admin API: nothing has changed.";
        return Err(respond::problem(StatusCode::CONFLICT, why));
    }
    let ends = Instant::now() + lasts;
    change(requests, limit, parts, OverrideChange::Set(allowance.clone(), ends)).await?;
    let period = humantime::format_duration(lasts);
    tracing::info!(limit = limit.name, key = shown, override = %allowance, "for" = %period, "the admin API has set an override");
    Ok(json!({ "override": describe(&allowance, ends) }))
}

/// Asks the control thread for the change, and waits until it is in force. The error is the response if nothing has changed.
pub(super) async fn change(
    requests: &mpsc::Sender<OverrideRequest>,
    limit: &ConfiguredLimit,
    parts: &[Vec<u8>],
    change: OverrideChange,
) -> Result<(), LocalResponse> {
    let request = |answer| OverrideRequest { limit: limit.name.clone(), key: parts.to_vec(), change, answer };
    let changed = reload::ask(requests, request, "changes of overrides").await?;
    changed.map_err(|not_set| {
        let why = match not_set {
            NotSet::Full => format!(
                "There are {MAX_TEMPORARY} overrides of the admin API, which is the maximum. Remove some with DELETE, or \
                 write them into the file."
            ),
            NotSet::Changed => {
                "A reload has changed the limit meanwhile, so the override is no longer valid.".to_owned()
            }
        };
        respond::problem(StatusCode::CONFLICT, &why)
    })
}

pub(super) fn describe(allowance: &Allowance, ends: Instant) -> Value {
    let left = ends.saturating_duration_since(Instant::now());
    let mut shown = match allowance {
        Allowance::Rates(rates) => json!({ "rates": rates.iter().map(ToString::to_string).collect::<Vec<_>>() }),
        Allowance::Exempt => json!({ "exempt": true }),
        Allowance::Block => json!({ "block": true }),
    };
    // The override itself ends by the monotonic clock.
    shown["until"] = json!(clock::now().after(left).rfc3339());
    shown["seconds"] = json!(left.as_millis().div_ceil(1000));
    shown
}
