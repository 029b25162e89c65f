//! Charts as SVG inside the page.

use maud::{Markup, html};

use super::report::{LimitReport, moment};
use crate::base::clock::Time;
use crate::base::units;

/// The page scales it.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 160.0;
/// Above the bars, for the label of the largest one.
const TOP: f64 = 18.0;
/// Below the bars, for the labels of the times.
const BOTTOM: f64 = 20.0;
const COLUMNS: usize = 120;
/// One bar of a key with its label.
const ROW: f64 = 34.0;

/// The share of `value` in `most`, in `units`.
#[expect(clippy::cast_precision_loss, reason = "a chart does not show that many digits")]
fn scaled(value: u64, most: u64, units: f64) -> f64 {
    units * value as f64 / most.max(1) as f64
}

fn coordinate(value: f64) -> String {
    format!("{value:.1}")
}

/// The requests of a limit over time, with the rejected part.
pub(super) fn over_time(limit: &LimitReport) -> Markup {
    let columns = limit.timeline.columns(COLUMNS);
    let most = columns.columns.iter().map(|column| column.requests).max().unwrap_or(0);
    let count = columns.columns.len() as u64;
    let at = |second: u64| moment(Time::from_micros(second.saturating_mul(1_000_000)));
    let (start, end) = (at(columns.start), at(columns.start.saturating_add(columns.width.saturating_mul(count))));
    let width = units::period(std::time::Duration::from_secs(columns.width));
    let label = format!(
        "Requests and rejections of the limit {} from {start} to {end}. At most {most} requests per {width}; {} of {} requests rejected.",
        limit.name, limit.rejected, limit.requests
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

/// The keys with the most rejections: their requests, with the rejected part.
pub(super) fn worst_keys(limit: &LimitReport) -> Markup {
    let most = limit.worst.iter().map(|worst| worst.requests).max().unwrap_or(0);
    let rows = limit.worst.len() as u64;
    let label = format!("The {rows} keys of the limit {} with the most rejections, as in the table below.", limit.name);
    html! {
        svg role="img" aria-label=(label) viewBox={ "0 0 " (WIDTH) " " (coordinate(scaled(rows, 1, ROW))) } {
            @for (place, worst) in (0_u64..).zip(&limit.worst) {
                @let top = scaled(place, 1, ROW);
                g {
                    text x="0" y=(coordinate(top + 12.0)) { (worst.key.chars().take(80).collect::<String>()) }
                    rect class="requests" x="0" y=(coordinate(top + 16.0)) width=(coordinate(scaled(worst.requests, most, WIDTH))) height="12" {}
                    rect class="rejected" x="0" y=(coordinate(top + 16.0)) width=(coordinate(scaled(worst.rejected, most, WIDTH))) height="12" {}
                }
            }
        }
    }
}
