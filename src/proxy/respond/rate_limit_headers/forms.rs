//! Headers that describe a rate in three values: what it allows, what remains, and when more becomes available. GitHub,
//! OpenAI and Anthropic name these headers differently, and format the moment differently.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::StringRef;

use super::digits;
use crate::base::clock::Time;
use crate::config::HeaderStyle;
use crate::limit::CountedUnit;

/// When to try again, in milliseconds. OpenAI's clients prefer it to Retry-After.
pub(super) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const MILLISECOND: u64 = 1000;
pub(super) const SECOND: u64 = 1_000_000;

impl CountedUnit {
    /// The quota unit of the draft, if that is not its default, requests. It has none for tokens, so theirs has a prefix: a
    /// client that does not know it must not take tokens for requests.
    pub(super) fn of_draft(self) -> Option<&'static StringRef> {
        match self {
            Self::Requests => None,
            Self::Tokens => Some(StringRef::constant("gateway-tokens")),
            Self::Bytes => Some(StringRef::constant("content-bytes")),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Bytes => "bytes",
        }
    }
}

/// The three headers of one style and unit.
#[derive(Debug)]
pub(super) struct Form {
    /// The style of the limits that it describes.
    style: HeaderStyle,
    /// The unit of the rates that it describes; `None` for all.
    unit: Option<CountedUnit>,
    /// The names for what is allowed, for what remains, and for the moment.
    pub(super) names: [HeaderName; 3],
    /// Formats the moment: `moment(now, until)`.
    moment: fn(Time, Time) -> Option<HeaderValue>,
}

pub(super) static FORMS: [Form; 5] = [
    Form {
        style: HeaderStyle::Github,
        unit: None,
        names: names("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
        moment: |_, until| Some(digits(until.seconds_up())),
    },
    Form {
        style: HeaderStyle::OpenAi,
        unit: Some(CountedUnit::Requests),
        names: names("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        moment: duration,
    },
    Form {
        style: HeaderStyle::OpenAi,
        unit: Some(CountedUnit::Tokens),
        names: names("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
        moment: duration,
    },
    Form {
        style: HeaderStyle::Anthropic,
        unit: Some(CountedUnit::Requests),
        names: names(
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ),
        moment: date,
    },
    Form {
        style: HeaderStyle::Anthropic,
        unit: Some(CountedUnit::Tokens),
        names: names(
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ),
        moment: date,
    },
];

const fn names(limit: &'static str, remaining: &'static str, reset: &'static str) -> [HeaderName; 3] {
    [HeaderName::from_static(limit), HeaderName::from_static(remaining), HeaderName::from_static(reset)]
}

impl Form {
    pub(super) fn is_of(&self, style: HeaderStyle) -> bool {
        style == self.style || style == HeaderStyle::Both && self.style == HeaderStyle::Github
    }

    pub(super) fn tells(&self, style: HeaderStyle, unit: CountedUnit) -> bool {
        self.is_of(style) && self.unit.is_none_or(|own| own == unit)
    }

    /// Writes the three values. More becomes available at `until`; `None` if that is unknown. Removes a header without a value,
    /// since the upstream's own one is about another limit.
    pub(super) fn write(&self, headers: &mut HeaderMap, allowed: u64, remaining: u64, until: Option<Time>, now: Time) {
        let moment = until.and_then(|until| (self.moment)(now, until));
        let values = [Some(digits(allowed)), Some(digits(remaining)), moment];
        for (name, value) in self.names.iter().zip(values) {
            match value {
                Some(value) => drop(headers.insert(name, value)),
                None => drop(headers.remove(name)),
            }
        }
    }
}

/// Rounded up.
pub(super) fn seconds(now: Time, until: Time) -> u64 {
    until.micros_since(now).div_ceil(SECOND)
}

/// Rounded up.
pub(super) fn millis(now: Time, until: Time) -> u64 {
    until.micros_since(now).div_ceil(MILLISECOND)
}

/// The first whole second at `until` or after it, as in RFC 3339. `None` after the year 9999.
fn date(_: Time, until: Time) -> Option<HeaderValue> {
    let moment = Time::from_micros(until.seconds_up().saturating_mul(SECOND)).timestamp()?;
    HeaderValue::try_from(moment.to_string()).ok()
}

/// A duration as OpenAI formats it, which is Go's format: `1h0m0s`, `6m0s`, `1.5s` or `120ms`.
fn duration(now: Time, until: Time) -> Option<HeaderValue> {
    let millis = millis(now, until);
    let (seconds, rest) = (millis / 1000, millis % 1000);
    let (hours, minutes) = (seconds / 3600, seconds / 60);
    let fraction = format!(".{rest:03}");
    let last = format!("{}{}s", seconds % 60, fraction.trim_end_matches('0').trim_end_matches('.'));
    let text = match (hours, minutes, seconds) {
        (0, 0, 0) if rest > 0 => format!("{rest}ms"),
        (0, 0, _) => last,
        (0, ..) => format!("{minutes}m{last}"),
        _ => format!("{hours}h{}m{last}", minutes % 60),
    };
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(wait: u64) -> String {
        duration(Time::from_micros(0), Time::from_micros(wait)).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn durations_are_written_as_openai_does() {
        for (wait, text) in [
            (0, "0s"),
            (1, "1ms"),
            (120_000, "120ms"),
            (999_001, "1s"),
            (1_000_000, "1s"),
            (1_500_000, "1.5s"),
            (59_950_000, "59.95s"),
            (60_000_000, "1m0s"),
            (86_400_000, "1m26.4s"),
            (360_000_000, "6m0s"),
            (3_600_000_000, "1h0m0s"),
            (90_061_001_000, "25h1m1.001s"),
        ] {
            assert_eq!(written(wait), text, "{wait}");
        }
    }

    proptest! {
        #[test]
        fn a_duration_is_what_remains_rounded_up_to_milliseconds(wait in 0_u64..1 << 50, shift in 0_u32..50) {
            let wait = wait >> shift;
            let text = written(wait);
            let read = humantime::parse_duration(&spelled(&text)).unwrap();
            prop_assert_eq!(read.as_millis(), u128::from(wait.div_ceil(1000)), "{}", text);
        }
    }

    /// Rewrites fractions as milliseconds: `1m1.5s` is `1m1s500ms`.
    fn spelled(text: &str) -> String {
        let Some((whole, fraction)) = text.trim_end_matches('s').split_once('.') else { return text.to_owned() };
        format!("{whole}s{fraction:0<3}ms")
    }

    #[test]
    fn dates_are_whole_seconds() {
        let now = Time::from_micros(1_700_000_000_300_000);
        assert_eq!(date(now, now.after_micros(900_000)).unwrap(), "2023-11-14T22:13:22Z");
        assert_eq!(date(now, now.after_micros(700_000)).unwrap(), "2023-11-14T22:13:21Z");
        assert_eq!(date(now, Time::MAX), None);
    }
}
