//! Where the configuration comes from, whether its newest version is in force, and the state of a server that has it: as
//! JSON and as metrics.

use std::time::Duration;

use prometheus::proto::MetricFamily;
use serde_json::{Value, json};

use super::View;
use super::families::{counted_by, gauged, gauges, whole};
use crate::base::clock::Time;

/// The state of a source that is a server.
#[derive(Clone, Debug, Default)]
pub struct RemoteStatus {
    /// The pause between two fetches.
    pub every: Duration,
    /// Fetches that brought another document than the previous one.
    pub changed: u64,
    pub unchanged: u64,
    pub failed: u64,
    /// When the last fetch succeeded.
    pub last_fetch: Option<Time>,
    /// Why the last fetch failed; `None` if it did not.
    pub error: Option<String>,
    /// When the copy was saved, if it is in force.
    pub copy_saved: Option<Time>,
}

pub(super) fn describe(view: &View, now: Time) -> Value {
    let remote = view.remote.as_ref().map(|status| {
        let RemoteStatus { every, changed, unchanged, failed, last_fetch, error, copy_saved } = status.lock().clone();
        let copy = copy_saved.map(|saved| {
            let age = now.micros_since(saved) / 1_000_000;
            json!({ "saved": saved.seconds(), "age_seconds": age })
        });
        json!({
            "every_seconds": every.as_secs(),
            "last_fetch": last_fetch.map(Time::seconds),
            "error": error,
            "fetches": { "changed": changed, "unchanged": unchanged, "failed": failed },
            "copy_in_force": copy,
        })
    });
    json!({
        "source": view.source,
        "current": view.reloads_so_far.numbers().current,
        "problems": view.reloads_so_far.problems(),
        "certificates": {
            "current": view.certificate_reloads.numbers().current,
            "problems": view.certificate_reloads.problems(),
        },
        "remote": remote,
    })
}

/// Empty if the source is no server.
pub(super) fn metrics(view: &View) -> Vec<MetricFamily> {
    let Some(status) = &view.remote else { return Vec::new() };
    let RemoteStatus { changed, unchanged, failed, last_fetch, copy_saved, .. } = status.lock().clone();
    let fetches = [("changed", changed), ("unchanged", unchanged), ("failed", failed)];
    let seconds = |time: Option<Time>| whole(time.map_or(0, Time::seconds));
    vec![
        counted_by("gateway_config_fetches_total", "result", fetches),
        gauges("gateway_config_last_fetch_timestamp_seconds", [seconds(last_fetch)]),
        gauged("gateway_config_copy_in_force", usize::from(copy_saved.is_some())),
        gauges("gateway_config_copy_timestamp_seconds", [seconds(copy_saved)]),
    ]
}
