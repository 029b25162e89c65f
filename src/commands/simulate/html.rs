//! The report as one HTML page with charts. The page loads nothing from elsewhere and has no scripts. The template
//! escapes everything, because texts of the log come from clients.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::input::Skipped;
use super::notes::about_unknown;
use super::report::{LimitReport, Report, moment, part, percent, share};
use super::text::facts;
use crate::base::clock::Time;
use crate::base::units;

/// The page may load nothing and run nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = include_str!("html.css");

pub fn html(report: &Report) -> String {
    let title = "What the limits would have done";
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="referrer" content="no-referrer";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { (title) }
                    (summary(report))
                    @for found in &report.limits { (limit(found, report.is_json)) }
                    @if !report.notes.is_empty() {
                        section aria-labelledby="notes" {
                            h2 id="notes" { "Notes" }
                            ul { @for note in &report.notes { li { (note) } } }
                        }
                    }
                    (skipped(&report.skipped))
                }
            }
        }
    };
    page.into_string()
}

fn summary(report: &Report) -> Markup {
    let totals = &report.totals;
    html! {
        @match totals.first.zip(totals.last) {
            Some((from, to)) => p { "From " time { (moment(from)) } " to " time { (moment(to)) } "." },
            None => p { "The logs have no requests." },
        }
        @for broken in &report.broken { p.warning { (broken) } }
        dl {
            dt { "requests" } dd { (totals.requests) }
            dt { "refused by a limit" } dd { (part(totals.limited, totals.requests)) }
            dt { "without a route" } dd { (totals.unrouted) }
            dt { "lines skipped" } dd { (report.skipped.all()) }
        }
    }
}

fn limit(limit: &LimitReport, is_json: bool) -> Markup {
    html! {
        section aria-label={ "limit " (limit.name) } {
            h2 { (limit.name) }
            p { code { (limit.rates_in_words()) } " per " code { (limit.key) } }
            @if let Some(note) = about_unknown(&limit.unknown, is_json) { p.warning { (note) } }
            @if !limit.unknown.is_keyless {
                dl { @for (label, text) in facts(limit) { dt { (label) } dd { (text) } } }
                h3 { "When" }
                (over_time(limit))
                @if !limit.worst.is_empty() {
                    h3 { "Keys with the most rejections" }
                    (worst_keys(limit))
                }
                (suggestions(limit))
            }
        }
    }
}

fn worst_keys(limit: &LimitReport) -> Markup {
    html! {
        table {
            thead { tr { th scope="col" { "key" } th.number scope="col" { "requests" } th.number scope="col" { "rejected" } th.number scope="col" { "share" } } }
            tbody {
                @for worst in &limit.worst {
                    tr {
                        th scope="row" { code { (worst.key) } }
                        td.number { (worst.requests) }
                        td.number { (worst.rejected) }
                        td.number { (percent(worst.rejected, worst.requests)) }
                    }
                }
            }
        }
    }
}

fn suggestions(limit: &LimitReport) -> Markup {
    if limit.suggested.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Rates that would have touched fewer keys" }
        table {
            caption { "For the same traffic" }
            thead { tr { th scope="col" { "at most" } th scope="col" { "rates" } } }
            tbody {
                @for found in &limit.suggested {
                    tr {
                        th scope="row" { (share(found.share)) " of the keys" }
                        td { code { (found.rates.join(" and ")) } }
                    }
                }
            }
        }
    }
}

fn skipped(skipped: &Skipped) -> Markup {
    if skipped.first.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="skipped" {
            h2 id="skipped" { "Lines that were skipped" }
            p { (skipped.unreadable) " cannot be read, and " (skipped.late) " are out of order. The first of them:" }
            table {
                thead { tr { th scope="col" { "file" } th.number scope="col" { "line" } th scope="col" { "why" } } }
                tbody {
                    @for line in &skipped.first {
                        tr { td { (line.file) } td.number { (line.line) } td { (line.why) } }
                    }
                }
            }
        }
    }
}

/// The page scales it.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 160.0;
/// Above the bars, for the label of the largest one.
const TOP: f64 = 18.0;
/// Below the bars, for the labels of the times.
const BOTTOM: f64 = 20.0;
const COLUMNS: usize = 120;

/// The share of `value` in `most`, in `units`.
#[expect(clippy::cast_precision_loss, reason = "a chart does not show that many digits")]
fn scaled(value: u64, most: u64, units: f64) -> f64 {
    units * value as f64 / most.max(1) as f64
}

fn coordinate(value: f64) -> String {
    format!("{value:.1}")
}

/// The requests of a limit over time, with the rejected part.
fn over_time(limit: &LimitReport) -> Markup {
    let columns = limit.counts.timeline.columns(COLUMNS);
    let most = columns.columns.iter().map(|column| column.requests).max().unwrap_or(0);
    let count = columns.columns.len() as u64;
    let at = |second: u64| moment(Time::from_micros(second.saturating_mul(1_000_000)));
    let (start, end) = (at(columns.start), at(columns.start.saturating_add(columns.width.saturating_mul(count))));
    let width = units::period(std::time::Duration::from_secs(columns.width));
    let label = format!(
        "Requests and rejections of the limit {} from {start} to {end}. At most {most} requests per {width}; {} of {} requests rejected.",
        limit.name, limit.counts.rejected, limit.counts.requests
    );
    let bar = |place: u64, value: u64, class: &str| {
        let (x, height) = (scaled(place, count, WIDTH), scaled(value, most, HEIGHT));
        let wide = scaled(1, count, WIDTH) * 0.9;
        html! {
            @if value > 0 {
                rect class=(class) x=(coordinate(x)) y=(coordinate(TOP + HEIGHT - height)) width=(coordinate(wide)) height=(coordinate(height)) {}
            }
        }
    };
    html! {
        svg role="img" aria-label=(label) viewBox={ "0 0 " (WIDTH) " " (TOP + HEIGHT + BOTTOM) } {
            @for (place, column) in (0_u64..).zip(&columns.columns) {
                g {
                    title { (at(columns.start + place * columns.width)) ": " (column.requests) " requests, " (column.rejected) " rejected" }
                    (bar(place, column.requests, "requests"))
                    (bar(place, column.rejected, "rejected"))
                }
            }
            line class="axis" x1="0" x2=(WIDTH) y1=(TOP + HEIGHT) y2=(TOP + HEIGHT) {}
            text x="0" y="12" { "at most " (most) " requests per " (width) "; the lower part of a bar was rejected" }
            text x="0" y=(TOP + HEIGHT + 15.0) { (start) }
            text x=(WIDTH) y=(TOP + HEIGHT + 15.0) text-anchor="end" { (end) }
        }
    }
}
