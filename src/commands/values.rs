//! Parses the values of arguments.

use std::borrow::Cow;
use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri};

use crate::base::units;
use crate::request::route;

const EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

const LONGEST_REORDER: Duration = Duration::from_secs(24 * 3600);

pub(super) fn reorder(text: &str) -> Result<Duration, String> {
    let window = if text == "0" { Ok(Duration::ZERO) } else { units::duration(text) };
    let window = window.map_err(|error| format!("{error}: write it like 10m or 30s"))?;
    if window > LONGEST_REORDER { Err("it is at most 24h".to_owned()) } else { Ok(window) }
}

pub(super) fn host(text: &str) -> Result<String, String> {
    let host = route::host::normal(text).filter(|host| !host.is_empty());
    host.map(Cow::into_owned).ok_or(format!("{text:?} is not a host"))
}

pub(super) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} is not the name of a header"))?;
    let value =
        HeaderValue::from_str(value.trim()).map_err(|_| "the value has characters that a header cannot have")?;
    Ok((name, value))
}

/// The body itself, or `@` and the file that has it.
pub(super) fn body(text: &str) -> Result<Bytes, String> {
    match text.strip_prefix('@') {
        Some(file) => fs::read(file).map(Bytes::from).map_err(|error| format!("{file} cannot be read: {error}")),
        None => Ok(Bytes::copy_from_slice(text.as_bytes())),
    }
}

/// A path, or a URL with or without its scheme.
pub(super) fn url(text: &str) -> Result<Uri, String> {
    // The query may contain another URL.
    let has_scheme = text.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    let whole = has_scheme || text.starts_with('/');
    let read = if whole { text.parse::<Uri>() } else { format!("http://{text}").parse() };
    read.map_err(|error| format!("{error}: write it like http://host/path, host/path or /path"))
}

/// Reads `--config-every`.
///
/// # Errors
/// What is wrong.
pub(super) fn every(text: &str) -> Result<Duration, String> {
    let every = units::duration(text).map_err(|error| format!("{error}: write it like 10s or 5m"))?;
    if EVERY.contains(&every) { Ok(every) } else { Err("it is 1s to 1d".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_polls_is_bounded() {
        assert_eq!(["1s", "10s", "5m", "1d"].map(|text| every(text).unwrap().as_secs()), [1, 10, 300, 86_400]);
        for text in ["0s", "999ms", "2d", "10", "", "-1s"] {
            assert!(every(text).is_err(), "{text}");
        }
    }
}
