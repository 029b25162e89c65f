//! A line of an access log, read as a request, and its time as access logs write it.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use jiff::Timestamp;
use jiff::fmt::strtime;

use crate::base::clock::Time;
use crate::base::http::host;
use crate::tokens::Usage;

/// A request, as far as the log describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The time of arrival, or the closest time in the log.
    pub(super) time: Time,
    /// `None` if the log has no address.
    pub(super) client: Option<IpAddr>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) host: Option<Box<str>>,
    /// Those that the configuration uses and the log has.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) status: Option<StatusCode>,
    /// `None` if the log does not say it.
    pub(super) spent: Option<Spent>,
    /// The bytes of the response's body; `None` if the log does not say it.
    pub(super) bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    Cost(u64),
    /// Tokens of a language model.
    Tokens(Usage),
}

impl Record {
    /// The value of the Host header. Many logs spell the host of an absolute target in another way. So the host counts as a
    /// second name only if it differs from the target in more than spelling.
    pub(super) fn named_host(&self) -> Option<&str> {
        let (target, named) = (self.uri.authority().map(Authority::as_str), self.host.as_deref());
        named.filter(|named| target.is_none_or(|target| host::normal(target) != host::normal(named))).or(target)
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let path = self.uri.path_and_query().map_or(0, |path| path.as_str().len());
        let header = |(name, value): &(HeaderName, HeaderValue)| {
            size_of::<(HeaderName, HeaderValue)>() + name.as_str().len() + value.len()
        };
        let headers: usize = self.headers.iter().map(header).sum();
        size_of::<Self>() + path + self.host.as_ref().map_or(0, |host| host.len()) + headers
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Request(Box<Record>),
    /// A line of the gateway's log about something else.
    Message,
    /// A line of the gateway's log for this many refused requests, which it does not describe.
    LeftOut(u64),
}

/// Why a line is not a request.
pub(super) mod unreadable {
    pub(in super::super) const LONG: &str = "the line is longer than 1 MiB";
    pub(in super::super) const FORMAT: &str = "the line is not in the Common or Combined Log Format and is not JSON";
    pub(in super::super) const JSON: &str = "the line is not valid JSON";
    pub(in super::super) const NO_TIME: &str = "the line has no time (--field time=NAME names its field)";
    pub(in super::super) const TIME: &str = "the time has an unknown format";
    pub(in super::super) const NO_CLIENT: &str = "the line has no client (--field client=NAME names its field)";
    pub(in super::super) const CLIENT: &str = "the client is not an IP address";
    pub(in super::super) const NO_REQUEST: &str =
        "the line has no method or no path (--field method=NAME and path=NAME name the fields)";
    pub(in super::super) const REQUEST: &str = "the method or the path is not valid";
}

/// The Common Log Format: `10/Oct/2000:13:55:36 -0700`.
const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";
/// With a fraction of a second.
const COMMON_WITH_PART: &str = "%d/%b/%Y:%H:%M:%S%.f %z";

/// Reads a time of the Common Log Format or of RFC 3339, or a number of seconds, milliseconds, microseconds or nanoseconds since
/// 1970. `None` if the text is none of these, or before 1970.
pub(super) fn time(text: &str) -> Option<Time> {
    let text = text.trim();
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if !text.is_empty() && text.bytes().all(is_number) {
        return number(text);
    }
    let common = || strtime::parse(COMMON, text).or_else(|_| strtime::parse(COMMON_WITH_PART, text));
    let common = || common().and_then(|broken_down| broken_down.to_timestamp());
    let Ok(timestamp) = text.parse::<Timestamp>().or_else(|_| common()) else { return with_exponent(text) };
    u64::try_from(timestamp.as_microsecond()).ok().map(Time::from_micros)
}

/// Seconds as `1.7e9`: some programs write all numbers so.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is positive, and small enough")]
fn with_exponent(text: &str) -> Option<Time> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (1e8..1e11).contains(seconds))?;
    Some(Time::from_micros((seconds * 1e6).round() as u64))
}

/// The size of a number shows its unit, because all logs are from after 1973.
fn number(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = whole.parse::<u64>().ok()?;
    if fraction.contains('.') {
        return None;
    }
    let (unit, digits) = match whole {
        // Seconds up to the year 5138.
        0..100_000_000_000 => (1_000_000, 6),
        100_000_000_000..100_000_000_000_000 => (1_000, 3),
        100_000_000_000_000..100_000_000_000_000_000 => (1, 0),
        _ => return Some(Time::from_micros(whole / 1_000)),
    };
    let fraction = fraction.get(..fraction.len().min(digits))?;
    let part = if fraction.is_empty() { 0 } else { format!("{fraction:0<digits$}").parse::<u64>().ok()? };
    Some(Time::from_micros(whole.checked_mul(unit)?.checked_add(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_the_same_moment() {
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "2000-10-10T20:55:36Z",
            "2000-10-10T22:55:36.000+02:00",
            "971211336",
            "971211336.0",
            "971211336000",
            "971211336000.000",
            "971211336000000",
            "971211336000000000",
        ] {
            assert_eq!(time(text), Some(Time::from_micros(971_211_336_000_000)), "{text}");
        }
        let exact = Some(Time::from_micros(971_211_336_123_456));
        for text in [
            "10/Oct/2000:13:55:36.123456 -0700",
            "2000-10-10T20:55:36.123456Z",
            "971211336.123456",
            "971211336.1234569",
            "971211336123.456",
        ] {
            assert_eq!(time(text), exact, "{text}");
        }
        assert_eq!(time("9.712113365e+08"), Some(Time::from_micros(971_211_336_500_000)));
        assert_eq!(time("971211336.5"), Some(Time::from_micros(971_211_336_500_000)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            " ",
            "-",
            "10/Oct/2000",
            "10/Foo/2000:13:55:36 -0700",
            "31/Feb/2000:13:55:36 -0700",
            "1.2.3",
            ".5",
            ".",
            "2000-10-10T20:55:36",
            "31/Dec/1969:23:59:59 +0000",
            "99999999999999999999999",
            "10/Oct/2000:13:55:36",
            "10/Oct/2000:13:55:36 -99999",
            "-1",
            "1e5",
            "1e99",
            "infinity",
            "١٢٣",
        ] {
            assert_eq!(time(text), None, "{text:?}");
        }
    }
}
