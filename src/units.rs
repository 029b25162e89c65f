//! Durations and sizes as people write them: `250ms`, `10m`, `64KiB`.

use std::time::Duration;

/// Why a text is not a duration.
pub type DurationError = humantime::DurationError;

/// Reads `250ms`, `10s`, `10m`, `1h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    humantime::parse_duration(text)
}

/// Writes a window as the period of a rate: `s`, `10m`, `30d`.
pub fn period(span: Duration) -> String {
    let text = humantime::format_duration(span).to_string().replace(' ', "");
    match text.as_str() {
        "1s" | "1m" | "1h" | "1day" => text[1..2].to_owned(),
        _ => text,
    }
}
