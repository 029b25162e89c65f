//! The report for scripts: `gateway simulate --json`.

use serde_json::{Map, Value, json};

use super::notes::about_unknown;
use super::report::{LimitReport, Report, moment};
use super::toml::section;

/// Of a timeline.
const COLUMNS: usize = 60;

/// One JSON object. With `suggest`, each limit also has a section with suggested rates as text.
pub(super) fn json(report: &Report, suggest: bool) -> String {
    let limits: Map<_, _> =
        report.limits.iter().map(|found| (found.name.clone(), limit(found, report.is_json, suggest))).collect();
    let skipped_line = |skipped: &super::input::SkippedLine| json!({ "file": skipped.file, "line": skipped.line, "why": skipped.why.to_string() });
    let value = json!({
        "requests": report.requests,
        "skipped": report.skipped(),
        "unreadable": report.unreadable,
        "late": report.late,
        "skipped_lines": report.skipped_lines.iter().map(skipped_line).collect::<Vec<_>>(),
        "from": report.from.map(moment),
        "to": report.to.map(moment),
        "unrouted": report.unrouted,
        "refused": report.refused,
        "limited": report.limited,
        "limits": limits,
        "notes": report.notes,
        "broken": report.broken,
    });
    format!("{value:#}\n")
}

fn limit(limit: &LimitReport, is_json: bool, suggest: bool) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "it is at most 10 000")]
    let touches = |share: u64| share as f64 / 10_000.0;
    let rates = |rates: &[crate::limit::Rate]| rates.iter().map(ToString::to_string).collect::<Vec<_>>();
    let suggested = limit.suggested.iter();
    let columns = limit.timeline.columns(COLUMNS);
    let mut value = json!({
        "rates": limit.rates,
        "requests": limit.requests,
        "rejected": limit.rejected,
        "held": limit.held.map(|(requests, longest)| json!({ "requests": requests, "longest_seconds": longest.as_secs_f64() })),
        "overflowed": limit.overflowed,
        "exempt": limit.exempt,
        "blocked": limit.blocked,
        "without_key": limit.keyless,
        "keys": limit.keys,
        "keys_rejected": limit.keys_rejected,
        "unfollowed": limit.unfollowed,
        "worst": limit.worst.iter().map(|worst| json!({
            "key": worst.key, "requests": worst.requests, "rejected": worst.rejected,
        })).collect::<Vec<_>>(),
        "exact": {
            "wrongly_admitted": limit.wrongly_admitted,
            "wrongly_rejected": limit.wrongly_rejected,
            "until": limit.compared_until.map(moment),
        },
        "suggested": suggested.map(|found| json!({
            "touches": touches(found.share), "rates": rates(&found.rates),
        })).collect::<Vec<_>>(),
        "when": {
            "from": moment(crate::base::clock::Time::from_micros(columns.start.saturating_mul(1_000_000))),
            "seconds": columns.width,
            "requests": columns.columns.iter().map(|column| column.requests).collect::<Vec<_>>(),
            "rejected": columns.columns.iter().map(|column| column.rejected).collect::<Vec<_>>(),
        },
        "simulated": !limit.unknown.is_keyless,
        "unknown": limit.unknown.sources,
        "note": about_unknown(&limit.unknown, is_json),
    });
    if let (Some(bans), Some(object)) = (&limit.bans, value.as_object_mut()) {
        let bans = json!({ "begun": bans.begun, "keys": bans.keys, "refused": bans.refused });
        object.insert("bans".to_owned(), bans);
    }
    if suggest && let Some(object) = value.as_object_mut() {
        object.insert("section".to_owned(), section(limit).into());
    }
    value
}
