//! The report for programs: JSON (`gateway simulate --json`), and suggested rates as a section of TOML to paste into the
//! configuration (`gateway simulate --suggest`).

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::notes::about_unknown;
use super::report::{LimitReport, Report, USUAL_SHARE, moment, percent, share};

/// Of a timeline.
const COLUMNS: usize = 60;

/// One JSON object. With `suggest`, each limit also has a section with suggested rates as text.
pub fn json(report: &Report, suggest: bool) -> String {
    let Report { totals, skipped, .. } = report;
    let limits: Map<_, _> =
        report.limits.iter().map(|found| (found.name.clone(), limit(found, report.is_json, suggest))).collect();
    let value = json!({
        "requests": totals.requests,
        "skipped": skipped.all(),
        "unreadable": skipped.unreadable,
        "late": skipped.late,
        "skipped_lines": skipped.first,
        "from": totals.first.map(moment),
        "to": totals.last.map(moment),
        "unrouted": totals.unrouted,
        "refused": totals.refused,
        "limited": totals.limited,
        "limits": limits,
        "notes": report.notes,
        "broken": report.broken,
    });
    format!("{value:#}\n")
}

fn limit(limit: &LimitReport, is_json: bool, suggest: bool) -> Value {
    let counts = &limit.counts;
    #[expect(clippy::cast_precision_loss, reason = "it is at most 10 000")]
    let touches = |share: u64| share as f64 / 10_000.0;
    let suggested =
        limit.suggested.iter().map(|found| json!({ "touches": touches(found.share), "rates": found.rates }));
    let columns = counts.timeline.columns(COLUMNS);
    let mut value = json!({
        "rates": limit.rates,
        "requests": counts.requests,
        "rejected": counts.rejected,
        "held": limit.held.map(|(requests, longest)| json!({ "requests": requests, "longest_seconds": longest.as_secs_f64() })),
        "overflowed": counts.overflowed,
        "exempt": limit.exempt,
        "blocked": limit.blocked,
        "without_key": limit.keyless,
        "keys": limit.keys,
        "keys_rejected": limit.keys_rejected,
        "unfollowed": counts.unfollowed,
        "worst": limit.worst,
        "exact": {
            "wrongly_admitted": counts.wrongly_admitted,
            "wrongly_rejected": counts.wrongly_rejected,
            "until": counts.compared_until.map(moment),
        },
        "suggested": suggested.collect::<Vec<_>>(),
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
        object.insert("bans".to_owned(), json!(bans));
    }
    if suggest && let Some(object) = value.as_object_mut() {
        object.insert("section".to_owned(), section(limit).into());
    }
    value
}

/// Sections with suggested rates for the configuration.
pub fn toml(report: &Report) -> String {
    let Report { totals, skipped, .. } = report;
    let mut text = String::new();
    let (from, to) = (totals.first.map_or("-".to_owned(), moment), totals.last.map_or("-".to_owned(), moment));
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# Rates for the traffic of {} requests from {from} to {to}; {} lines were skipped.",
        totals.requests,
        skipped.all()
    );
    let _ = writeln!(text, "# All other settings of a limit stay as they are.");
    for limit in &report.limits {
        let _ = write!(text, "\n{}", section(limit));
    }
    text
}

fn section(limit: &LimitReport) -> String {
    let counts = &limit.counts;
    let mut text = String::new();
    let (rejected, touched) = (percent(counts.rejected, counts.requests), percent(limit.keys_rejected, limit.keys));
    let _ = writeln!(text, "[limits.{}]", name(&limit.name));
    let _ = writeln!(
        text,
        "# With {}: {rejected} of {} requests rejected, {touched} of {} keys touched.",
        limit.rates_in_words(),
        counts.requests,
        limit.keys,
    );
    if limit.unknown.is_keyless {
        let _ = writeln!(text, "# It was not simulated: the log does not have {}.", limit.unknown.sources.join(", "));
    } else if limit.suggested.is_empty() {
        let _ = writeln!(text, "# No rates can be suggested: no key was seen to which the limit's own rates apply.");
    }
    for found in &limit.suggested {
        let is_usual = found.share == USUAL_SHARE;
        let start = if is_usual { "" } else { "# " };
        let _ = writeln!(
            text,
            "{start}rates = [{}]  # would have touched at most {} of the keys",
            found.rates.iter().map(|rate| quoted(rate)).collect::<Vec<_>>().join(", "),
            share(found.share)
        );
    }
    text
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A word needs no quotation marks in TOML.
fn name(text: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !text.is_empty() && text.bytes().all(is_bare) { text.to_owned() } else { quoted(text) }
}
