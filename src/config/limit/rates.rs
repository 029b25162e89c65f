//! The rates of a limit and how they are counted.

use std::time::Duration;

use super::foreign::{meant, without_separators};
use super::tokens::cost;
use super::{Limit, keys as limit};
use crate::base::units;
use crate::config::read::{Field, Section, Setting, Shape, Wrong};
use crate::config::report::{nearest, quoted};
use crate::config::values;
use crate::limit::{Calendar, Edge, MAX_LOG, Rate, RateError, RateTextError, Strategy, Unit, zones};

pub(super) const RATES: Shape =
    Shape::List(&Shape::Pattern("^\\s*([0-9]+|[0-9.]+\\s*[A-Za-z]+)\\s*/\\s*[0-9A-Za-z. ]+$"), 1, values::MOST);

/// What belongs to a strategy has settings of its own, and each rate has its burst.
pub(super) static STRATEGIES: [(&str, Strategy); 4] = [
    ("sliding-window", Strategy::SlidingWindow { precision: 1, edge: Edge::Weighted }),
    ("fixed-window", Strategy::FixedWindow),
    ("moving-window", Strategy::SlidingLog),
    ("token-bucket", Strategy::TokenBucket { burst: 1 }),
];

const RATE: &str = "a rate is N/PERIOD, where PERIOD is s, m, h, d, a duration, or day or month of the calendar, like \
                    \"10/s\", \"3000/10m\" or \"5000/day\"";

/// Keys that only sliding windows have.
fn of_sliding() -> [&'static str; 2] {
    [limit::precision.name, limit::edge.name]
}

/// How all rates of a limit are counted: its own and those of its tiers and overrides.
pub(super) struct Terms {
    strategy: Strategy,
    /// In the limit's time zone.
    calendar: Calendar,
    /// Whether requests cost bytes, so that every rate must be a size.
    in_bytes: bool,
    /// Whether the limit has rates of its own, which others can replace. Rates with an error are not missing.
    pub(super) has_rates: bool,
}

impl Terms {
    pub(super) fn read(section: &Section<'_>) -> Self {
        let mut strategy = section.read(&limit::strategy);
        if let Strategy::SlidingWindow { precision, edge } = &mut strategy {
            (*precision, *edge) = (section.read(&limit::precision), section.read(&limit::edge));
        } else {
            section.misplaced(&of_sliding(), "`strategy = \"sliding-window\"`", "remove it, or use that strategy");
        }
        let calendar = section.read_as(&limit::timezone, |field| field.parse(zone));
        let in_bytes = counts_bytes(section);
        Self { strategy, calendar, in_bytes, has_rates: true }
    }

    /// The terms of a limit that was read before; defaults for kinds of rates that the limit does not have.
    pub(super) fn of(limit: &Limit) -> Self {
        Self {
            strategy: limit.strategy().cloned().unwrap_or_default(),
            calendar: limit.calendar().cloned().unwrap_or(Calendar::utc(Unit::Day)),
            in_bytes: limit.counts_bytes(),
            has_rates: !limit.rates.is_empty(),
        }
    }

    pub(super) fn rates(&self, field: &Field<'_>, key: &Setting<()>) -> Option<Vec<Rate>> {
        let mut rates: Vec<Rate> = Vec::new();
        for field in field.list(key)? {
            if let Some(number) = field.number() {
                field.mistyped("a string", format!("write \"{number}/s\" for {number} per second: {RATE}"));
                continue;
            }
            let Some(rate) = field.parse(|text| self.rate(text)) else { continue };
            if let Some(wrong) = same_period(&rates, &rate) {
                field.refuse(wrong);
            } else if let Some((message, help)) = doubtful_day(field.text()?, &rates, &rate) {
                field.source.warn(field.span.clone(), message, help);
            }
            rates.push(rate);
        }
        Some(rates).filter(|rates| !rates.is_empty())
    }

    pub(super) fn rates_in<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Result<Vec<Rate>, Wrong> {
        let mut rates = Vec::new();
        for text in texts {
            let rate = self.rate(text)?;
            if let Some(wrong) = same_period(&rates, &rate) {
                return Err(wrong);
            }
            rates.push(rate);
        }
        Ok(rates)
    }

    pub(super) fn rate(&self, text: &str) -> Result<Rate, Wrong> {
        let rate = rate(text)?;
        if rate.is_in_bytes() != self.in_bytes {
            return Err(wrong_unit(&rate, self.in_bytes));
        }
        let strategy = match (rate.strategy(), &self.strategy) {
            (Strategy::Calendar(calendar), _) => Strategy::Calendar(self.calendar.of(calendar.unit())),
            (bucket @ Strategy::TokenBucket { .. }, Strategy::TokenBucket { .. }) => bucket.clone(),
            (Strategy::TokenBucket { .. }, _) => {
                let alone = text.split("burst").next().unwrap_or_default().trim();
                let help = format!("use that strategy, or write the rate alone: {alone:?}");
                return Err(Wrong::new("a burst belongs to `strategy = \"token-bucket\"`", help));
            }
            (_, Strategy::TokenBucket { .. }) => Strategy::TokenBucket { burst: rate.quota() },
            (_, other) => other.clone(),
        };
        let shown = rate.to_string();
        rate.with_strategy(strategy).map_err(|_| {
            let help = format!("allowed: at most {MAX_LOG}; a sliding window with `precision = 60` is nearly as exact");
            Wrong::new(format!("\"{shown}\" is too large for a moving window, which stores every request"), help)
        })
    }
}

/// Reports keys that no rate of the limit, its tiers and its overrides uses.
pub(super) fn check_used(section: &Section<'_>, read: &Limit) {
    // A rate with an error might use any of them.
    if !section.source.is_clean() {
        return;
    }
    if read.calendar().is_none() {
        let help = "remove it, or count by the calendar, like \"5000/day\" or \"1000000/month\"";
        section.refuse(&[limit::timezone.name], "needs a rate per calendar day or month", help);
    }
    if read.all_rates().next().is_none() {
        let help = "remove it, or add rates: `max_in_flight` counts requests, and ignores their cost";
        let [precision, edge] = of_sliding();
        let of_rates = [limit::strategy.name, precision, edge, limit::cost.name, limit::count.name];
        section.refuse(&of_rates, "needs rates, and this limit has none", help);
    } else if read.strategy().is_none() {
        let help = "remove it: calendar days and months have no buckets and no edge";
        section.refuse(&of_sliding(), "needs a rate with a sliding window, and this limit has none", help);
    }
}

/// Warns of a rate that looks like a calendar day but is not one, or that has another kind of day than an earlier rate.
fn doubtful_day(written: &str, earlier: &[Rate], rate: &Rate) -> Option<(String, String)> {
    const DAY: Duration = Duration::from_secs(86_400);
    let is_calendar = |rate: &Rate| matches!(rate.strategy(), Strategy::Calendar(_));
    let (quota, is_day) = (rate.quota(), |rate: &Rate| rate.window() == DAY);
    if !is_calendar(rate) && written.contains("day") {
        let message = format!("\"{written}\" is a duration, not a calendar day");
        let help = match is_day(rate) {
            true => format!("write \"{quota}/d\" for any 24 hours, or \"{quota}/day\" for a calendar day"),
            false => format!("write \"{quota}/{}\" if you mean a duration", units::period(rate.window())),
        };
        return Some((message, help));
    }
    let other =
        earlier.iter().find(|other| is_day(other) && is_day(rate) && is_calendar(other) != is_calendar(rate))?;
    let message = format!("\"{written}\" and \"{other}\" are two kinds of days, and a request must fit both");
    let help = "\"N/d\" is any 24 hours, \"N/day\" is a calendar day: keep the one that you mean";
    Some((message, help.to_owned()))
}

/// Whether the limit counts bytes, so that its rates are sizes.
fn counts_bytes(limit: &Section<'_>) -> bool {
    limit.field(&limit::cost).is_some_and(|field| field.entry(&cost::bytes).is_some())
}

fn wrong_unit(rate: &Rate, in_bytes: bool) -> Wrong {
    if in_bytes {
        let (quota, period) = (rate.quota(), rate.period());
        let help = format!("write a size: \"{quota}B/{period}\" for {quota} bytes, or like \"10GiB/d\"");
        return Wrong::new(format!("\"{rate}\" has no unit, and this limit counts bytes"), help);
    }
    let help = "add cost = { bytes = \"response\" }, or write a number, like \"10/s\"";
    Wrong::new(format!("\"{rate}\" is a rate of bytes, and this limit does not count them"), help)
}

/// Reports that an earlier rate has the same period.
fn same_period(rates: &[Rate], rate: &Rate) -> Option<Wrong> {
    let earlier = rates.iter().find(|earlier| earlier.period() == rate.period())?;
    let least = if earlier.quota() < rate.quota() { earlier } else { rate };
    let help = format!("a request must fit both, so the smaller one is enough: \"{least}\"");
    Some(Wrong::new(format!("\"{rate}\" has the same period as \"{earlier}\""), help))
}

fn zone(name: &str) -> Result<Calendar, Wrong> {
    Calendar::utc(Unit::Day).in_zone(name).ok_or_else(|| {
        let zones = zones();
        let help = "a time zone is an IANA name, like \"UTC\", \"Europe/Berlin\" or \"America/New_York\"";
        let help = match nearest(name, zones.iter().map(String::as_str)) {
            Some(near) => format!("did you mean \"{near}\"? {help}"),
            None => help.to_owned(),
        };
        Wrong::not(name, "a time zone", help)
    })
}

fn rate(text: &str) -> Result<Rate, Wrong> {
    text.parse().map_err(|error| match error {
        RateTextError::Form | RateTextError::Period(_) if let Some(rates) = several(text) => {
            let message = format!("{} is not one rate but {}", quoted(text), rates.len());
            Wrong::new(message, format!("write each of them as a separate text: {rates:?}"))
        }
        RateTextError::Form | RateTextError::Period(_) => {
            let help = meant(text).map_or(RATE.to_owned(), |rate| format!("did you mean \"{rate}\"? {RATE}"));
            let period =
                text.split_once('/').map(|(_, period)| period).filter(|_| matches!(error, RateTextError::Period(_)));
            let why = period.map_or(String::new(), |period| format!(": {} is not a period", quoted(period.trim())));
            Wrong::not(text, &format!("a rate{why}"), help)
        }
        RateTextError::Rate(error @ (RateError::Quota | RateError::Burst)) => {
            let of = if error == RateError::Burst { "the burst of " } else { "" };
            let number = text.split('/').next().unwrap_or_default().trim_end();
            let allowed = match number.ends_with(|last: char| last.is_ascii_alphabetic()) {
                true => "allowed: 1B to 256TiB",
                false => "allowed: 1 to 4294967296 requests",
            };
            Wrong::new(format!("{of}{} is out of range", quoted(text)), allowed)
        }
        RateTextError::Rate(_) => {
            Wrong::new(format!("{} is out of range", quoted(text)), "allowed: periods from 1s to 31d")
        }
    })
}

/// The rates in a text, if it has more than one.
fn several(text: &str) -> Option<Vec<String>> {
    let text = without_separators(text).replace(" and ", ";");
    let rates = match text.matches('/').count() {
        0 | 1 => return None,
        _ if text.contains([',', ';']) => text.split([',', ';']).map(|rate| rate.trim().to_owned()).collect(),
        _ => split(&text),
    };
    let corrected = |text: String| match text.parse::<Rate>() {
        Err(_) => meant(&text).map_or(text, |rate| rate.to_string()),
        Ok(_) => text,
    };
    Some(rates.into_iter().map(corrected).collect()).filter(|rates: &Vec<_>| rates.len() > 1)
}

/// Splits a text at `;` and spaces. A burst belongs to the rate before it.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut rates: Vec<String> = Vec::new();
    for piece in text.split(';') {
        let mut burst = false;
        for word in piece.split_whitespace() {
            match rates.last_mut().filter(|_| burst || word == "burst") {
                Some(rate) => {
                    rate.push(' ');
                    rate.push_str(word);
                }
                None => rates.push(word.to_owned()),
            }
            burst = word == "burst";
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_rates_and_keeps_bursts() {
        assert_eq!(split("10/s"), ["10/s"]);
        assert_eq!(split(" 10/s  3000/10m "), ["10/s", "3000/10m"]);
        assert_eq!(split("10/s burst 50;3000/10m burst 1 5/h"), ["10/s burst 50", "3000/10m burst 1", "5/h"]);
        assert_eq!(split("10/s;3000/10m"), ["10/s", "3000/10m"]);
    }
}
