//! The formats in which metrics are written: Prometheus' text format, or OpenMetrics for clients that prefer it.

use std::fmt::Write;

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};
use mediatype::names::{_STAR, APPLICATION, PLAIN, Q, TEXT};
use mediatype::{MediaType, MediaTypeList, Name, ReadParams};
use prometheus::TextEncoder;
use prometheus::proto::MetricFamily;

use super::open_metrics;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

/// How much a client wants something, from 0 (not at all) to 1.
type Quality = f32;

impl Format {
    /// The format that the Accept headers of a request ask for (RFC 9110, section 12.5.1). OpenMetrics is sent only to
    /// clients that name it: `*/*` comes from clients that know nothing of it. What cannot be read is ignored.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        // For each precision with which a format can be named, how much it is wanted.
        let mut text = [None; 3];
        let mut open_metrics = 0.0;
        let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        for (range, quality) in values.flat_map(ranges) {
            if let Some(precision) = precision_of_text(&range) {
                text[precision] = Some(text[precision].map_or(quality, |known| quality.max(known)));
            }
            if is_open_metrics(&range) {
                open_metrics = quality.max(open_metrics);
            }
        }
        // The most precise statement counts.
        let text: Quality = text.into_iter().rev().flatten().next().unwrap_or_default();
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The Content-Type of the response.
    pub(super) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => prometheus::TEXT_FORMAT,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        })
    }

    /// Writes families. Those without a metric are named too, so that everybody sees what there may be.
    pub(super) fn write(self, families: &[MetricFamily]) -> String {
        match self {
            Self::Text => text(families),
            Self::OpenMetrics => open_metrics::write(families),
        }
    }
}

/// Prometheus' text format.
fn text(families: &[MetricFamily]) -> String {
    let (encoder, mut text) = (TextEncoder::new(), String::new());
    for family in families {
        if family.get_metric().is_empty() {
            // The encoder takes no such families.
            let (name, kind) = (family.name(), format!("{:?}", family.get_field_type()).to_lowercase());
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help());
        } else if let Err(error) = encoder.encode_utf8(std::slice::from_ref(family), &mut text) {
            tracing::error!(%error, family = family.name(), "a metric cannot be written");
        }
    }
    text
}

/// The media ranges of a header with their qualities.
fn ranges(value: &str) -> impl Iterator<Item = (MediaType<'_>, Quality)> {
    MediaTypeList::new(value).filter_map(|range| {
        let range = range.ok()?;
        let quality = match range.get_param(Q) {
            Some(quality) => quality.as_str().parse().ok().filter(|quality| (0.0..=1.0).contains(quality))?,
            None => 1.0,
        };
        Some((range, quality))
    })
}

/// Whether the range is that version of OpenMetrics, or any. Other parameters may say what a client can read besides, such
/// as `escaping`, and need not be met.
fn is_open_metrics(range: &MediaType<'_>) -> bool {
    let version = range.get_param(Name::new_unchecked("version"));
    range.ty == APPLICATION
        && range.subty == Name::new_unchecked("openmetrics-text")
        && version.is_none_or(|version| version.unquoted_str() == "1.0.0")
}

/// How precisely the range names the text format, if it does. Every client of one version can read the other.
fn precision_of_text(range: &MediaType<'_>) -> Option<usize> {
    let of = |ty, subty| range.ty == ty && range.subty == subty;
    [of(_STAR, _STAR), of(TEXT, _STAR), of(TEXT, PLAIN)].iter().position(|names| *names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(values: &[&str]) -> Format {
        let headers = values.iter().map(|value| (ACCEPT, HeaderValue::from_bytes(value.as_bytes()).unwrap()));
        Format::accepted(&headers.collect())
    }

    #[test]
    fn open_metrics_is_for_those_who_name_it() {
        for value in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8",
            "application/openmetrics-text; version=\"1.0.0\"",
            // What Prometheus sends: versions 2 and 3.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "*/*, application/openmetrics-text;q=0.5, text/plain;q=0.4",
            "text/plain, application/openmetrics-text",
            "text/plain;q=0, application/openmetrics-text;q=0.001",
        ] {
            assert_eq!(accepted(&[value]), Format::OpenMetrics, "{value}");
        }
        assert_eq!(accepted(&["text/plain;q=0.2", "application/openmetrics-text;q=0.3"]), Format::OpenMetrics);
    }

    #[test]
    fn others_get_text() {
        for value in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/*",
            "application/json",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.2, text/plain;q=0.3",
            "application/openmetrics-text;q=0.2, text/*;q=0.3",
            "application/openmetrics-text;q=0.2, */*;q=0.3",
            "application/openmetrics-text; version=0.0.1",
            "application/openmetrics-text; version=2.0.0",
            // A quality that is none.
            "application/openmetrics-text; q=nan",
            "application/openmetrics-text; q=2",
            "application/openmetrics-text; q=-1",
            "application/openmetrics-text; q=",
            ",,, ;;; \"",
            "\u{e9}",
        ] {
            assert_eq!(accepted(&[value]), Format::Text, "{value}");
        }
        assert_eq!(accepted(&[]), Format::Text);
        assert_eq!(accepted(&[&"text/plain,".repeat(10_000)]), Format::Text);
    }
}
