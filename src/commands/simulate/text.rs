//! The report for people.

use std::fmt::Write as _;
use std::time::Duration;

use super::notes::about_unknown;
use super::report::{BanReport, LimitReport, Report, moment, percent, share};
use super::timeline::sparkline;
use crate::base::units;

const COLUMNS: usize = 60;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    match report.totals.first.zip(report.totals.last) {
        Some((from, to)) => {
            line(&mut text, &format!("{} requests from {} to {}", report.totals.requests, moment(from), moment(to)));
        }
        None => line(&mut text, "no requests"),
    }
    let limited = percent(report.totals.limited, report.totals.requests);
    line(&mut text, &format!("{} ({limited}) would be refused by at least one limit", report.totals.limited));
    skipped(&mut text, report);
    for limit in &report.limits {
        self::limit(&mut text, limit, report.is_json);
    }
    if !report.notes.is_empty() {
        line(&mut text, "\nnotes");
        report.notes.iter().for_each(|note| line(&mut text, &format!("  {note}")));
    }
    text
}

fn line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

fn skipped(text: &mut String, report: &Report) {
    let mut kinds = Vec::new();
    for (count, what) in [(report.skipped.unreadable, "cannot be read"), (report.skipped.late, "out of order")] {
        if count > 0 {
            kinds.push(format!("{count} {what}"));
        }
    }
    if kinds.is_empty() {
        return;
    }
    line(text, &format!("{} lines skipped: {}", report.skipped.all(), kinds.join(", ")));
    for skipped in &report.skipped.first {
        line(text, &format!("  {}:{}: {}", skipped.file, skipped.line, skipped.why));
    }
    let more = report.skipped.all().saturating_sub(report.skipped.first.len() as u64);
    if more > 0 {
        line(text, &format!("  and {more} more"));
    }
}

fn limit(text: &mut String, limit: &LimitReport, is_json: bool) {
    let rates = if limit.rates.is_empty() { "no rates".to_owned() } else { limit.rates.join(" and ") };
    line(text, &format!("\n{}  {rates} per {}", limit.name, limit.key));
    if let Some(note) = about_unknown(&limit.unknown, is_json) {
        line(text, &format!("  WARNING   {note}"));
    }
    if limit.unknown.is_keyless {
        return;
    }
    line(text, &format!("  requests  {}", limit.counts.requests));
    line(
        text,
        &format!("  rejected  {} ({})", limit.counts.rejected, percent(limit.counts.rejected, limit.counts.requests)),
    );
    if limit.counts.overflowed > 0 {
        let share = percent(limit.counts.overflowed, limit.counts.requests);
        line(text, &format!("  overflow  {} ({share}) charged to its pool", limit.counts.overflowed));
    }
    if let Some((held, longest)) = limit.held {
        line(text, &format!("  held      {held} ({}), for up to {longest:?}", percent(held, limit.counts.requests)));
    }
    let apart: Vec<_> =
        [(limit.exempt, "of exempt keys"), (limit.blocked, "of blocked keys"), (limit.keyless, "without a key")]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
    if !apart.is_empty() {
        line(text, &format!("  apart     {}", apart.join(", ")));
    }
    let share = percent(limit.keys_rejected, limit.keys);
    line(text, &format!("  keys      {}, of which {} ({share}) had a rejection", limit.keys, limit.keys_rejected));
    if let Some(BanReport { begun, keys, refused }) = &limit.bans {
        line(
            text,
            &format!("  banned    {keys} keys, in {begun} bans, which would have refused {refused} more requests"),
        );
    }
    if limit.counts.unfollowed > 0 {
        line(
            text,
            &format!("            more keys sent {} requests; they are counted only above", limit.counts.unfollowed),
        );
    }
    if limit.counts.rejected > 0 {
        when(text, limit);
    }
    let until = limit.counts.compared_until.map_or(String::new(), |time| {
        format!(", until {}: then the comparison would have taken too much memory", moment(time))
    });
    line(
        text,
        &format!(
            "  exact     {} wrongly admitted and {} wrongly rejected, compared with an exact log{until}",
            limit.counts.wrongly_admitted, limit.counts.wrongly_rejected
        ),
    );
    for (at, worst) in limit.worst.iter().enumerate() {
        let label = if at == 0 { "worst" } else { "" };
        let share = percent(worst.rejected, worst.requests);
        line(
            text,
            &format!(
                "  {label:<9} {}: {} of {} requests rejected ({share})",
                worst.key, worst.rejected, worst.requests
            ),
        );
    }
    for (at, found) in limit.suggested.iter().enumerate() {
        let label = if at == 0 { "touching" } else { "" };
        line(
            text,
            &format!("  {label:<9} at most {:>6} of the keys: {}", self::share(found.share), found.rates.join(" and ")),
        );
    }
}

fn when(text: &mut String, limit: &LimitReport) {
    let columns = limit.counts.timeline.columns(COLUMNS);
    let rejected = columns.columns.iter().map(|column| column.rejected);
    let most = rejected.clone().max().unwrap_or(0);
    let width = units::period(Duration::from_secs(columns.width));
    line(text, &format!("  when      [{}] at most {most} per {width}", sparkline(rejected)));
}
