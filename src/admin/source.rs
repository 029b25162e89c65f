//! Where the configuration comes from, whether what is there now is in force, and how a server that has it does: as JSON and
//! as metrics.

use prometheus::proto::{MetricFamily, MetricType};
use serde_json::{Value, json};

use super::View;
use super::families::{counter, family, gauged, whole};
use super::reload::as_json;
use crate::base::clock::Time;
use crate::config::RemoteStatus;

/// The source, and how it does at `now`.
pub(super) fn describe(view: &View, now: Time) -> Value {
    let remote = view.source.remote().map(|remote| {
        let RemoteStatus { changed, unchanged, failed, last_fetch, error, copy_saved, .. } = remote.status();
        let copy = copy_saved.map(|saved| {
            let age = now.micros_since(saved) / 1_000_000;
            json!({ "saved": saved.seconds(), "age_seconds": age })
        });
        json!({
            "every_seconds": remote.every().as_secs(),
            "last_fetch": last_fetch.map(Time::seconds),
            "error": error,
            "fetches": { "changed": changed, "unchanged": unchanged, "failed": failed },
            "copy_in_force": copy,
        })
    });
    json!({
        "source": view.source.to_string(),
        "current": view.reloads_so_far.is_last_good(),
        "problems": as_json(view.reloads_so_far.problems()),
        "certificates": {
            "current": view.certificate_reloads.is_last_good(),
            "problems": as_json(view.certificate_reloads.problems()),
        },
        "remote": remote,
    })
}

/// The metrics; none if the source is no server.
pub(super) fn metrics(view: &View) -> Vec<MetricFamily> {
    let Some(remote) = view.source.remote() else { return Vec::new() };
    let RemoteStatus { changed, unchanged, failed, last_fetch, copy_saved, .. } = remote.status();
    let fetches = [("changed", changed), ("unchanged", unchanged), ("failed", failed)];
    let seconds = |time: Option<Time>| whole(time.map_or(0, Time::seconds));
    vec![
        family(
            "gateway_config_fetches_total",
            "Fetches of the configuration from its server, by result.",
            MetricType::COUNTER,
            fetches.map(|(result, count)| counter(count, &[("result", result)])),
        ),
        family(
            "gateway_config_last_fetch_timestamp_seconds",
            "When the configuration was last fetched from its server, in seconds since 1970; 0 if it never was.",
            MetricType::GAUGE,
            [seconds(last_fetch)],
        ),
        gauged(
            "gateway_config_copy_in_force",
            "Whether the configuration in force is the last good copy, because its server was away or wrong at the start.",
            usize::from(copy_saved.is_some()),
        ),
        family(
            "gateway_config_copy_timestamp_seconds",
            "When the copy in force was saved, in seconds since 1970; 0 if none is in force.",
            MetricType::GAUGE,
            [seconds(copy_saved)],
        ),
    ]
}
