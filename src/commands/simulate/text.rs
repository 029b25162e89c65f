//! The report for people.

use std::fmt::Write as _;
use std::time::Duration;

use super::notes::about_unknown;
use super::report::{BanReport, LimitReport, Report, moment, part, percent, share};
use super::timeline::sparkline;
use crate::base::units;

const COLUMNS: usize = 60;

pub fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    let totals = &report.totals;
    lines.push(match totals.first.zip(totals.last) {
        Some((from, to)) => format!("{} requests from {} to {}", totals.requests, moment(from), moment(to)),
        None => "no requests".to_owned(),
    });
    lines.push(format!("{} would be refused by at least one limit", part(totals.limited, totals.requests)));
    lines.extend(skipped(report));
    for limit in &report.limits {
        lines.push(String::new());
        lines.extend(self::limit(limit, report.is_json));
    }
    if !report.notes.is_empty() {
        lines.push("\nnotes".to_owned());
        lines.extend(report.notes.iter().map(|note| format!("  {note}")));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn skipped(report: &Report) -> Vec<String> {
    let skipped = &report.skipped;
    let kinds = counted([(skipped.unreadable, "cannot be read"), (skipped.late, "out of order")]);
    if kinds.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("{} lines skipped: {kinds}", skipped.all())];
    lines.extend(skipped.first.iter().map(|line| format!("  {}:{}: {}", line.file, line.line, line.why)));
    let more = skipped.all().saturating_sub(skipped.first.len() as u64);
    lines.extend((more > 0).then(|| format!("  and {more} more")));
    lines
}

/// What has occurred.
fn counted<const N: usize>(counts: [(u64, &str); N]) -> String {
    let occurred = counts.into_iter().filter(|(count, _)| *count > 0);
    occurred.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn limit(limit: &LimitReport, is_json: bool) -> Vec<String> {
    let mut facts: Vec<_> = about_unknown(&limit.unknown, is_json).map(|note| ("WARNING", note)).into_iter().collect();
    facts.extend(self::facts(limit));
    for (label, worst) in labelled("worst", &limit.worst) {
        let share = percent(worst.rejected, worst.requests);
        let rejected = format!("{}: {} of {} requests rejected ({share})", worst.key, worst.rejected, worst.requests);
        facts.push((label, rejected));
    }
    for (label, found) in labelled("touching", &limit.suggested) {
        facts.push((label, format!("at most {:>6} of the keys: {}", share(found.share), found.rates.join(" and "))));
    }
    let facts = facts.into_iter().map(|(label, text)| format!("  {label:<9} {text}"));
    [format!("{}  {} per {}", limit.name, limit.rates_in_words(), limit.key)].into_iter().chain(facts).collect()
}

/// What the limit has done, each with its label; nothing if it was not simulated.
pub(super) fn facts(limit: &LimitReport) -> Vec<(&'static str, String)> {
    let (counts, mut facts) = (&limit.counts, Vec::new());
    if limit.unknown.is_keyless {
        return facts;
    }
    let mut fact = |label, text| facts.push((label, text));
    fact("requests", counts.requests.to_string());
    fact("rejected", part(counts.rejected, counts.requests));
    if counts.overflowed > 0 {
        fact("overflow", format!("{} charged to its pool", part(counts.overflowed, counts.requests)));
    }
    if let Some((held, longest)) = limit.held {
        fact("held", format!("{}, for up to {longest:?}", part(held, counts.requests)));
    }
    let apart =
        [(limit.exempt, "of exempt keys"), (limit.blocked, "of blocked keys"), (limit.keyless, "without a key")];
    let apart = counted(apart);
    if !apart.is_empty() {
        fact("apart", apart);
    }
    fact("keys", format!("{}, of which {} had a rejection", limit.keys, part(limit.keys_rejected, limit.keys)));
    if let Some(BanReport { begun, keys, refused }) = &limit.bans {
        fact("banned", format!("{keys} keys, in {begun} bans, which would have refused {refused} more requests"));
    }
    if counts.unfollowed > 0 {
        fact("", format!("more keys sent {} requests; they are counted only above", counts.unfollowed));
    }
    if counts.rejected > 0 {
        fact("when", when(limit));
    }
    let mut exact = format!(
        "{} wrongly admitted and {} wrongly rejected, compared with an exact log",
        counts.wrongly_admitted, counts.wrongly_rejected
    );
    if let Some(time) = counts.compared_until {
        // Writing to a string cannot fail.
        let _ = write!(exact, ", until {}: then the comparison would have taken too much memory", moment(time));
    }
    fact("exact", exact);
    facts
}

/// Labels only the first.
fn labelled<'a, T>(label: &'a str, list: &'a [T]) -> impl Iterator<Item = (&'a str, &'a T)> {
    std::iter::once(label).chain(std::iter::repeat("")).zip(list)
}

fn when(limit: &LimitReport) -> String {
    let columns = limit.counts.timeline.columns(COLUMNS);
    let rejected = columns.columns.iter().map(|column| column.rejected);
    let most = rejected.clone().max().unwrap_or(0);
    let width = units::period(Duration::from_secs(columns.width));
    format!("[{}] at most {most} per {width}", sparkline(rejected))
}
