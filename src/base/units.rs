//! Durations and sizes as people write them: `250ms`, `10m`, `64KiB`.

use std::time::Duration;

use bytesize::ByteSize;

/// Reads `250ms`, `10s`, `10m`, `1h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    // A longer text can only be a sum, which could overflow inside the parser.
    if text.len() > 20 {
        return Err(DurationError::TooLong);
    }
    // Months and years have no fixed length, and `M` is mostly a typing error for `m`.
    let mut units = text.split(|c: char| !c.is_alphabetic()).filter(|unit| !unit.is_empty());
    if let Some(unit) = units.find(|unit| *unit == "M" || unit.starts_with("mo") || unit.starts_with('y')) {
        return Err(DurationError::Unit(unit.to_owned()));
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::Empty => DurationError::Empty,
        humantime::DurationError::UnknownUnit { unit, .. } if unit.is_empty() => DurationError::NoUnit,
        humantime::DurationError::UnknownUnit { unit, .. } => DurationError::Unit(unit),
        humantime::DurationError::NumberOverflow => DurationError::TooLong,
        _ => DurationError::Form,
    })
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("it is empty")]
    Empty,
    #[error("it has no unit")]
    NoUnit,
    #[error("`{0}` is not a unit")]
    Unit(String),
    #[error("it is not a number and a unit")]
    Form,
    #[error("it is too long")]
    TooLong,
}

/// Reads a number of bytes: `512B`, `64KiB`, `1MiB`, or decimal `64KB`, `1MB`.
pub fn size(text: &str) -> Option<u64> {
    // A number without a unit is ambiguous.
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    text.parse::<ByteSize>().ok().filter(|_| has_unit).map(|size| size.as_u64())
}

/// In the largest binary unit that divides the number, otherwise in the largest decimal one: `64KiB`, `500MB`, `1001B`.
pub fn spelled_size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 8] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("KB", 1_000),
    ];
    let found = UNITS.into_iter().find(|(_, size)| bytes > 0 && bytes.is_multiple_of(*size));
    let (unit, size) = found.unwrap_or(("B", 1));
    format!("{}{unit}", bytes / size)
}

/// As the period of a rate, in the largest unit that divides it: `s`, `10m`, `30d`.
pub fn period(span: Duration) -> String {
    let micros = span.as_micros();
    let units = [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, size) = units.into_iter().find(|(_, size)| micros.is_multiple_of(*size)).unwrap_or(("us", 1));
    match micros / size {
        1 if unit.len() == 1 => unit.to_owned(),
        count => format!("{count}{unit}"),
    }
}

/// In the largest unit that divides it: `1s`, `10m`, `0s`.
pub fn spelled_duration(span: Duration) -> String {
    if span.is_zero() {
        return "0s".to_owned();
    }
    let period = period(span);
    if period.starts_with(|first: char| first.is_ascii_digit()) { period } else { format!("1{period}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration(""), Err(DurationError::Empty));
        assert_eq!(duration("10"), Err(DurationError::NoUnit));
        assert_eq!(duration("10x"), Err(DurationError::Unit("x".to_owned())));
        assert_eq!(duration("1M"), Err(DurationError::Unit("M".to_owned())));
        assert_eq!(duration("-1s"), Err(DurationError::Form));
        assert_eq!(duration("18446744073709551615s1000ms"), Err(DurationError::TooLong));
    }

    #[test]
    fn reads_sizes() {
        assert_eq!(size("64KiB"), Some(65_536));
        assert_eq!(size("64KB"), Some(64_000));
        assert_eq!(size("1.5MiB"), Some(1_572_864));
        assert_eq!(size("512B"), Some(512));
        for (bytes, text) in [
            (0, "0B"),
            (1001, "1001B"),
            (500_000_000, "500MB"),
            (65_536, "64KiB"),
            (3 << 20, "3MiB"),
            (5 << 40, "5TiB"),
        ] {
            assert_eq!((spelled_size(bytes).as_str(), size(text)), (text, Some(bytes)));
        }
        for text in ["", "64", "KiB", "64 potatoes", "-1KiB", "1e3KiB", "99999999999999999999999999"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
