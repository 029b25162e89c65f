//! Rates as other programs spell them: in other words, or as several keys of a limit.

use super::keys as limit;
use crate::base::units;
use crate::config::read::{Field, Name, Section};
use crate::limit::{Calendar, Rate, Strategy, Unit};

/// What a rate counts. A word stands before those with which it begins.
const COUNTED: [&str; 10] = ["requests", "request", "reqs", "req", "calls", "call", "hits", "hit", "r", "q"];
/// What stands between the number and the period.
const BETWEEN: [&str; 7] = ["/", "per", "every", "each", "in", "an ", "p"];

/// Keys, with spaces between them.
const QUOTAS: &str = "limit rate requests max max_requests max_events events average requests_per_unit tokens_per_fill";
const PERIODS: &str = "window period per interval duration unit fill_interval";
const BURSTS: &str = "burst max_tokens burst_size";
/// Each is the period of a rate, and its value is the number.
const UNITS: &str = "second minute hour day month";

/// The rate that a text probably means, such as `10/sec`, `10/1`, `3000 per 10 minutes`, `1,000 req/min`, `10rps` or
/// nginx's `10r/s burst=20`.
pub(super) fn meant(text: &str) -> Option<Rate> {
    let text = without_separators(&text.to_ascii_lowercase());
    let (rate, burst) = text.split_once("burst").map_or((text.as_str(), None), |(rate, burst)| (rate, Some(burst)));
    let (quota, rest) = number(rate)?;
    let counted = without(rest, &COUNTED).unwrap_or(rest);
    let period = without(counted, &BETWEEN)?.trim_end_matches([' ', ',', ';']);
    let Some(burst) = burst else { return rate_of(quota, period) };
    let burst = number(burst.trim_start_matches([' ', '=', ':']))?.0 + u64::from(is_of_nginx(&text));
    Rate::new(quota, window(period)?).ok()?.with_strategy(Strategy::TokenBucket { burst }).ok()
}

/// Whether its burst is what may come besides the first request. Here it is all that may come at once.
fn is_of_nginx(text: &str) -> bool {
    text.contains("r/") || text.contains("burst=")
}

fn rate_of(quota: u64, period: &str) -> Option<Rate> {
    if let Some(unit) = Unit::named(period.trim_end_matches('s')) {
        return Rate::new(quota, unit.longest()).ok()?.with_strategy(Strategy::Calendar(Calendar::utc(unit))).ok();
    }
    Rate::new(quota, window(period)?).ok()
}

/// A duration, seconds, or a unit of time.
fn window(period: &str) -> Option<std::time::Duration> {
    let written = if period.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "1" };
    let spelled = [format!("{written}{period}"), format!("{written}{period}s")];
    spelled.iter().find_map(|text| units::duration(text).ok())
}

/// The number with which a text begins, and the rest.
fn number(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start();
    let (digits, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    Some((digits.parse().ok()?, rest.trim_start()))
}

/// The text behind the first of the words with which it begins.
fn without<'t>(text: &'t str, words: &[&str]) -> Option<&'t str> {
    words.iter().find_map(|word| text.strip_prefix(word)).map(str::trim)
}

/// Writes `1,000` and `1_000` as `1000`.
pub(super) fn without_separators(text: &str) -> String {
    let is_digit = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
    let is_separator =
        |at: usize, c: char| ",_".contains(c) && is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1));
    text.char_indices().filter(|(at, c)| !is_separator(*at, *c)).map(|(_, c)| c).collect()
}

/// Reports the keys that spell a rate elsewhere, and how `rates` says the same. Returns whether there are any.
pub(super) fn report_keys(section: &Section<'_>) -> bool {
    let has = |names: &str, name: &Name<'_>| names.split(' ').any(|one| one == name.text);
    let mut found = section.unknown();
    found.retain(|(name, field)| match has(PERIODS, name) {
        true => period(field).is_some(),
        false => [QUOTAS, UNITS, BURSTS].iter().any(|names| has(names, name)),
    });
    let of = |names: &str| found.iter().find(|(name, _)| has(names, name)).map(|(_, field)| field);
    let (quota, period) = (of(QUOTAS).and_then(quantity), of(PERIODS).and_then(period));
    let mut rates: Vec<Rate> = of(QUOTAS).into_iter().flat_map(Field::texts).filter_map(read).collect();
    rates.extend(quota.zip(period.as_deref()).and_then(|(quota, period)| rate_of(quota, period)));
    let of_unit = |(name, field): &(Name<'_>, Field<'_>)| {
        has(UNITS, name).then(|| rate_of(quantity(field)?, name.text)).flatten()
    };
    rates.extend(found.iter().filter_map(of_unit));
    if rates.is_empty() {
        rates.extend(section.field(&limit::rates).iter().flat_map(Field::texts).filter_map(read));
    }
    let is_known = !rates.is_empty();
    if !is_known {
        rates.extend(rate_of(quota.unwrap_or(10), period.as_deref().unwrap_or("s")));
    }
    let is_of_nginx = of(QUOTAS).into_iter().flat_map(Field::texts).any(is_of_nginx);
    if let (Some(burst), Some(first)) = (of(BURSTS).and_then(quantity), rates.first_mut()) {
        let burst = burst.saturating_add(is_of_nginx.into());
        *first = first.clone().with_strategy(Strategy::TokenBucket { burst }).unwrap_or(first.clone());
    }
    let with = match rates.first().map(Rate::strategy) {
        Some(Strategy::TokenBucket { .. }) => " with strategy = \"token-bucket\"",
        _ => "",
    };
    let rates: Vec<_> = rates.iter().map(ToString::to_string).collect();
    let (write, instead) = if is_known { ("write", " instead") } else { ("write it like", "") };
    section.refuse_together(&found, &format!("{write} rates = {rates:?}{with}{instead}"));
    !found.is_empty()
}

fn read(text: &str) -> Option<Rate> {
    text.parse().ok().or_else(|| meant(text))
}

fn quantity(field: &Field<'_>) -> Option<u64> {
    field.number().or_else(|| without_separators(field.texts().first()?).parse().ok())
}

/// A number is in seconds.
fn period(field: &Field<'_>) -> Option<String> {
    let text = field.number().map(|number| format!("{number}s"));
    let text = text.or_else(|| Some(field.texts().first()?.to_ascii_lowercase()))?;
    window(&text).map(|_| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_what_a_rate_meant() {
        for (written, rate) in [
            ("10/sec", "10/s"),
            ("10 per minute", "10/m"),
            ("10r/m", "10/m"),
            ("10/1", "10/s"),
            ("10/10", "10/10s"),
            ("10/Days", "10/day"),
            ("10 per month", "10/month"),
            ("3000 per 10 minutes", "3000/10m"),
            ("100 per second", "100/s"),
            ("5 requests per minute", "5/m"),
            ("1,000/s", "1000/s"),
            ("1_000_000 / day", "1000000/day"),
            ("10 per sec", "10/s"),
            ("10 req/s", "10/s"),
            ("10rps", "10/s"),
            ("600 rpm", "600/m"),
            ("10 r/m", "10/m"),
            ("10 requests/min", "10/m"),
            ("100 calls every 2 hours", "100/2h"),
            ("100 in 10s", "100/10s"),
            ("100 requests an hour", "100/h"),
            ("10r/s burst=20 nodelay", "10/s burst 21"),
            ("10/s, burst: 20", "10/s burst 20"),
            ("10/day burst 20", "10/d burst 20"),
        ] {
            let meant = meant(written);
            assert_eq!(meant.as_ref().map(ToString::to_string).as_deref(), Some(rate), "{written}");
            assert_eq!(rate.parse().ok(), meant, "{written}");
        }
        for text in
            ["ten/s", "10s", "10", "10 requests", "/s", "10/fortnight", "10/s burst", "0/s", "99999999999999999999/s"]
        {
            assert_eq!(meant(text), None, "{text}");
        }
    }
}
