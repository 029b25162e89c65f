//! Durations and sizes as people write them: `250ms`, `10m`, `64KiB`.

use std::time::Duration;

/// Why a text is not a duration.
pub type DurationError = humantime::DurationError;

/// Reads `250ms`, `10s`, `10m`, `1h`, `7d`.
///
/// # Errors
/// When it is not a number with a unit, or more than a duration can hold.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    humantime::parse_duration(text)
}

/// Reads `16KiB`, `1MiB`, `64kB` as bytes.
pub fn size(text: &str) -> Option<u64> {
    text.parse::<bytesize::ByteSize>().ok().map(|size| size.as_u64())
}

/// Writes a duration in the largest unit that it is a whole number of: `250ms`, `10m`, `30d`.
pub fn span(span: Duration) -> String {
    let (count, unit) = parts(span);
    format!("{count}{unit}")
}

/// Writes a window as the period of a rate: like [`span`], without the number where it is one unit: `s`, `10m`.
pub fn period(span: Duration) -> String {
    match parts(span) {
        (1, unit @ ("d" | "h" | "m" | "s")) => unit.to_owned(),
        (count, unit) => format!("{count}{unit}"),
    }
}

fn parts(span: Duration) -> (u128, &'static str) {
    let micros = span.as_micros();
    let units = [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let (unit, size) = units.into_iter().find(|(_, size)| micros.is_multiple_of(*size)).unwrap_or(("us", 1));
    (micros / size, unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_it_reads() {
        for text in ["250ms", "10s", "10m", "1h", "7d", "90s", "31d", "1us"] {
            assert_eq!(span(duration(text).unwrap()), text);
        }
        assert_eq!(period(Duration::from_secs(60)), "m");
        assert_eq!(period(Duration::from_millis(1)), "1ms");
        assert_eq!(size("64KiB"), Some(65_536));
        assert_eq!(size("64kB"), Some(64_000));
        assert_eq!(size("64 apples"), None);
    }
}
