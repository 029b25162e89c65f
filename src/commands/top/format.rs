//! Numbers, durations and times as people read them.

use jiff::Timestamp;

/// Stands for what is not known yet.
pub(super) const UNKNOWN: &str = "–";

/// A count: 12,345, from a million on 1.2M.
pub(super) fn count(number: u64) -> String {
    if number < 1_000_000 { grouped(number) } else { short(float(number)) }
}

/// A number per second: 0, 0.4, 12, 1,234, 56.7K.
pub(super) fn rate(number: Option<f64>) -> String {
    match number {
        None => UNKNOWN.to_owned(),
        Some(number) if number <= 0.0 => "0".to_owned(),
        Some(number) if number < 0.05 => "<0.1".to_owned(),
        Some(number) if number < 9.95 => format!("{number:.1}"),
        Some(number) if number < 99_999.5 => grouped(whole(number)),
        Some(number) => short(number),
    }
}

/// A part of a whole as a percentage.
pub(super) fn share(part: Option<f64>, all: Option<f64>) -> String {
    let (Some(part), Some(all)) = (part, all.filter(|all| *all > 0.0)) else { return UNKNOWN.to_owned() };
    match 100.0 * part / all {
        percent if percent <= 0.0 => "0 %".to_owned(),
        percent if percent < 0.05 => "<0.1 %".to_owned(),
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// A duration in seconds as one number with a unit: 250 µs, 1.2 ms, 3.0 s.
pub(super) fn latency(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return UNKNOWN.to_owned() };
    let (number, unit) = match seconds {
        seconds if seconds < 1e-3 => (seconds * 1e6, "µs"),
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    if number < 9.95 && unit != "µs" { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

/// A duration in seconds, in its two largest units: 3 d 4 h.
pub(super) fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(length, _)| seconds >= *length).unwrap_or(units.len() - 1);
    let mut left = seconds;
    let parts = units.iter().skip(first).take(2).map(|(length, unit)| {
        let part = format!("{} {unit}", left / length);
        left %= length;
        part
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// A size in bytes: 12 KiB.
pub(super) fn size(bytes: u64) -> String {
    let mut number = float(bytes);
    let mut units = ["KiB", "MiB", "GiB", "TiB"].iter();
    let mut unit = "B";
    while number >= 1024.0
        && let Some(larger) = units.next()
    {
        (number, unit) = (number / 1024.0, larger);
    }
    if number < 9.95 && unit != "B" { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

/// The time of day of a moment in seconds since 1970, in UTC.
pub(super) fn time(seconds: u64) -> String {
    written(seconds, "%H:%M:%S")
}

/// The same with the date.
pub(super) fn moment(seconds: u64) -> String {
    written(seconds, "%Y-%m-%d %H:%M:%S")
}

fn written(seconds: u64, format: &str) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment.map_or(UNKNOWN.to_owned(), |moment| moment.strftime(format).to_string())
}

/// A number with a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A large number with one decimal and a unit.
fn short(number: f64) -> String {
    let mut number = number / 1e3;
    let mut units = ["M", "G", "T", "P", "E"].iter();
    let mut unit = "K";
    while number >= 999.95
        && let Some(larger) = units.next()
    {
        (number, unit) = (number / 1e3, larger);
    }
    format!("{number:.1}{unit}")
}

/// Counts beyond 2^53 lose their last digits, which nobody sees.
#[expect(clippy::cast_precision_loss, reason = "only the first digits are shown")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 100,000")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1_000, 999_999].map(count), ["0", "999", "1,000", "999,999"]);
        assert_eq!([1_000_000, 12_345_678, u64::MAX].map(count), ["1.0M", "12.3M", "18.4E"]);
        let rates =
            [None, Some(0.0), Some(0.01), Some(0.44), Some(9.96), Some(1_234.4), Some(99_999.0), Some(123_456.0)];
        assert_eq!(rates.map(rate), ["–", "0", "<0.1", "0.4", "10", "1,234", "99,999", "123.5K"]);
        assert_eq!(rate(Some(f64::INFINITY)).len(), 4);
        let shares = [(None, Some(1.0)), (Some(0.0), Some(0.0)), (Some(0.0), Some(5.0)), (Some(1.0), Some(3.0))];
        assert_eq!(shares.map(|(part, all)| share(part, all)), ["–", "–", "0 %", "33 %"]);
        assert_eq!([(0.01, 100.0), (5.0, 100.0)].map(|(part, all)| share(Some(part), Some(all))), ["<0.1 %", "5.0 %"]);
    }

    #[test]
    fn durations_sizes_and_times_have_units() {
        let latencies = [None, Some(0.000_25), Some(0.001_24), Some(0.25), Some(3.0), Some(12.4)];
        assert_eq!(latencies.map(latency), ["–", "250 µs", "1.2 ms", "250 ms", "3.0 s", "12 s"]);
        assert_eq!([0, 59, 61, 7_200, 273_600].map(span), ["0 s", "59 s", "1 min 1 s", "2 h 0 min", "3 d 4 h"]);
        assert_eq!(
            [0, 1_023, 1_024, 12_345_678, u64::MAX].map(size),
            ["0 B", "1023 B", "1.0 KiB", "12 MiB", "16777216 TiB"]
        );
        assert_eq!((time(86_399).as_str(), moment(86_399).as_str()), ("23:59:59", "1970-01-01 23:59:59"));
        assert_eq!(time(u64::MAX), "–");
    }
}
