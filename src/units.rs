//! Durations and sizes as people write them: `250ms`, `10m`, `64KiB`.

use std::time::Duration;

/// Why a text is not a duration.
pub type DurationError = humantime::DurationError;

/// Reads `250ms`, `10s`, `10m`, `1h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    humantime::parse_duration(text)
}

/// Writes a window as the period of a rate: `s`, `10m`, `30d`, in the largest unit that it is a whole number of.
pub fn period(span: Duration) -> String {
    let micros = span.as_micros();
    let units = [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, size) = units.into_iter().find(|(_, size)| micros % size == 0).unwrap_or(("us", 1));
    match micros / size {
        1 if unit.len() == 1 => unit.to_owned(),
        count => format!("{count}{unit}"),
    }
}
