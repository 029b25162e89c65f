//! Suggested rates as a section to paste into the configuration: `gateway simulate --suggest`.

use std::fmt::Write as _;

use toml::Value;

use super::report::{LimitReport, Report, moment, percent, share};
use super::suggestion::USUAL_SHARE;
use crate::limit::Rate;

pub(super) fn toml(report: &Report) -> String {
    let mut text = String::new();
    let (from, to) = (report.from.map_or("-".to_owned(), moment), report.to.map_or("-".to_owned(), moment));
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# Rates for the traffic of {} requests from {from} to {to}; {} lines were skipped.",
        report.requests,
        report.skipped()
    );
    let _ = writeln!(text, "# All other settings of a limit stay as they are.");
    for limit in &report.limits {
        let _ = write!(text, "\n{}", section(limit));
    }
    text
}

pub(super) fn section(limit: &LimitReport) -> String {
    let mut text = String::new();
    let rates = |rates: &[Rate]| rates.iter().map(|rate| quoted(&rate.to_string())).collect::<Vec<_>>().join(", ");
    let (rejected, touched) = (percent(limit.rejected, limit.requests), percent(limit.keys_rejected, limit.keys));
    let _ = writeln!(text, "[limits.{}]", name(&limit.name));
    let now = limit.rates.join(", ");
    let _ = writeln!(
        text,
        "# With {}: {rejected} of {} requests rejected, {touched} of {} keys touched.",
        if now.is_empty() { "no rates" } else { &now },
        limit.requests,
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
            rates(&found.rates),
            share(found.share)
        );
    }
    text
}

fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// A word needs no quotation marks in TOML.
fn name(text: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !text.is_empty() && text.bytes().all(is_bare) { text.to_owned() } else { quoted(text) }
}
