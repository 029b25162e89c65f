//! Writes lines of the access log. Queries and headers may have keys and tokens, so lines contain no query, and only two
//! headers in the Combined Log Format.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode, Version};
use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use tracing::Level;

use super::Outcome;
use crate::base::clock::{self, Time};
use crate::base::http::trace_context::TraceId;
use crate::base::reason::Reason;
use crate::config::AccessFormat;
use crate::proxy::log::LineWriter;
use crate::request::decide::LimitMetrics;
use crate::tokens::Usage;

#[derive(Clone, Debug)]
pub struct AccessLogEntry {
    pub client: IpAddr,
    pub method: Option<Method>,
    pub host: String,
    /// Without the query.
    pub path: String,
    pub version: Option<Version>,
    /// How another proxy asks about the request; `None` without one.
    pub via: Option<&'static str>,
    pub tls: Option<&'static str>,
    /// Referer and User-Agent, if the format has a place for them.
    pub referer: Option<HeaderValue>,
    pub user_agent: Option<HeaderValue>,
    /// The trace of the request, if its headers are known.
    pub trace: Option<TraceId>,
    pub limit: Option<Arc<LimitMetrics>>,
    /// The limits that only report that the request is over them.
    pub shadowed: SmallVec<[Arc<LimitMetrics>; 1]>,
    /// The limits without room whose pools were charged instead.
    pub overflowed: SmallVec<[Arc<LimitMetrics>; 1]>,
    /// How many more requests each limit that has decided admits.
    pub remaining: SmallVec<[(Arc<LimitMetrics>, u64); 2]>,
    pub held_micros: Option<u64>,
    pub server: Option<String>,
    /// Until the head of the response arrived.
    pub upstream_micros: Option<u64>,
    pub tokens: Option<Usage>,
    /// The bytes of the response's body that were sent so far.
    pub bytes: u64,
}

impl AccessLogEntry {
    pub fn new(client: IpAddr) -> Self {
        Self {
            client,
            method: None,
            host: String::new(),
            path: String::new(),
            version: None,
            via: None,
            tls: None,
            referer: None,
            user_agent: None,
            trace: None,
            limit: None,
            shadowed: SmallVec::new(),
            overflowed: SmallVec::new(),
            remaining: SmallVec::new(),
            held_micros: None,
            server: None,
            upstream_micros: None,
            tokens: None,
            bytes: 0,
        }
    }
}

#[derive(Clone, Debug)]
pub enum AccessLogger {
    /// As lines of the log in text.
    Log,
    JsonLog(LineWriter),
    /// As lines in this format.
    Lines(LineWriter, AccessFormat),
}

impl AccessLogger {
    /// Without a format, lines belong to the log, which is in JSON if there is a writer.
    pub fn new(writer: Option<LineWriter>, format: Option<AccessFormat>) -> Self {
        match (writer, format) {
            (Some(writer), Some(format)) => Self::Lines(writer, format),
            (Some(writer), None) => Self::JsonLog(writer),
            (None, _) => Self::Log,
        }
    }

    /// Whether lines have a place for Referer and User-Agent.
    pub fn needs_headers(&self) -> bool {
        matches!(self, Self::Lines(_, AccessFormat::Combined))
    }

    pub(super) fn write(&self, line: &AccessLine<'_>) {
        let (writer, mut text) = match self {
            Self::Log => return tracing::info!("{line}"),
            // The level of the log may exclude requests.
            Self::JsonLog(_) if !tracing::enabled!(Level::INFO) => return,
            Self::JsonLog(writer) | Self::Lines(writer, AccessFormat::Json) => {
                (writer, serde_json::to_vec(line).unwrap_or_default())
            }
            Self::Lines(writer, AccessFormat::Combined) => (writer, line.combined(clock::now()).into_bytes()),
        };
        text.push(b'\n');
        writer.write(&text);
    }
}

pub(super) struct AccessLine<'a> {
    pub(super) entry: &'a AccessLogEntry,
    pub(super) route: &'a str,
    pub(super) outcome: Outcome,
    pub(super) reason: Option<Reason>,
    pub(super) status: Option<StatusCode>,
    pub(super) micros: u64,
    pub(super) id: &'a str,
}

impl AccessLine<'_> {
    fn fields<E>(&self, mut write: impl FnMut(&'static str, Value<'_>) -> Result<(), E>) -> Result<(), E> {
        let Self { entry, route, outcome, reason, status, micros, id } = *self;
        let shadowed = Some(entry.shadowed.as_slice()).filter(|limits| !limits.is_empty());
        let overflowed = Some(entry.overflowed.as_slice()).filter(|limits| !limits.is_empty());
        let remaining = Some(entry.remaining.as_slice()).filter(|limits| !limits.is_empty());
        let fields = [
            ("client", Some(Value::Plain(&entry.client))),
            ("method", entry.method.as_ref().map(|method| Value::Text(method.as_str()))),
            ("host", Some(Value::Text(&entry.host))),
            ("path", Some(Value::Text(&entry.path))),
            ("protocol", entry.version.as_ref().map(|version| Value::Debug(version))),
            ("via", entry.via.map(Value::Text)),
            ("tls", entry.tls.map(Value::Text)),
            ("route", Some(Value::Text(route))),
            ("status", Some(Value::Number(status.map_or(0, |status| status.as_u16().into())))),
            ("outcome", Some(Value::Text(outcome.name()))),
            ("reason", reason.map(|reason| Value::Text(reason.name()))),
            ("limit", entry.limit.as_ref().map(|limit| Value::Text(&limit.name))),
            ("shadowed", shadowed.map(Value::Limits)),
            ("overflowed", overflowed.map(Value::Limits)),
            ("remaining", remaining.map(Value::Remaining)),
            ("held_micros", entry.held_micros.map(Value::Number)),
            ("server", entry.server.as_deref().map(Value::Text)),
            ("upstream_micros", entry.upstream_micros.map(Value::Number)),
            ("tokens_input", entry.tokens.map(|tokens| Value::Number(tokens.input.saturating_add(tokens.cached)))),
            ("tokens_output", entry.tokens.map(|tokens| Value::Number(tokens.output))),
            ("bytes", Some(Value::Number(entry.bytes))),
            ("micros", Some(Value::Number(micros))),
            ("request_id", Some(Value::Text(id))),
            ("trace_id", entry.trace.as_ref().map(|trace| Value::Plain(trace))),
        ];
        fields.into_iter().try_for_each(|(name, value)| value.map_or(Ok(()), |value| write(name, value)))
    }

    /// The line in the Combined Log Format of Apache's httpd. Unknown values are `-`.
    fn combined(&self, now: Time) -> String {
        let Self { entry, status, .. } = *self;
        let begun =
            timestamp(Time::from_micros(now.micros().saturating_sub(self.micros))).strftime("%d/%b/%Y:%H:%M:%S +0000");
        let method = entry.method.as_ref().map_or("-", Method::as_str);
        let header = |value: &Option<HeaderValue>| {
            value.as_ref().map_or_else(|| "-".to_owned(), |value| Quoted(value.as_bytes()).to_string())
        };
        format!(
            "{} - - [{}] \"{method} {} {:?}\" {} {} \"{}\" \"{}\"",
            entry.client,
            begun,
            Quoted(entry.path.as_bytes()),
            entry.version.unwrap_or(Version::HTTP_11),
            status.map_or(0, |status| status.as_u16()),
            entry.bytes,
            header(&entry.referer),
            header(&entry.user_agent),
        )
    }
}

/// For people: `request`, and the fields as in other lines of the log.
impl Display for AccessLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request")?;
        self.fields(|name, value| write!(f, " {name}={value}"))
    }
}

impl Serialize for AccessLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("timestamp", &format_args!("{:.6}", timestamp(clock::now())))?;
        map.serialize_entry("level", "INFO")?;
        map.serialize_entry("message", "request")?;
        self.fields(|name, value| map.serialize_entry(name, &value))?;
        map.end()
    }
}

fn timestamp(time: Time) -> Timestamp {
    time.timestamp().unwrap_or(Timestamp::MAX)
}

enum Value<'a> {
    Plain(&'a dyn Display),
    Debug(&'a dyn fmt::Debug),
    Text(&'a str),
    Number(u64),
    /// A list of the limits' names, or a text such as `a b`.
    Limits(&'a [Arc<LimitMetrics>]),
    /// How many more requests each limit admits: an object by the limits' names, or a text such as `a=3 b=0`.
    Remaining(&'a [(Arc<LimitMetrics>, u64)]),
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Plain(value) => serializer.collect_str(value),
            Self::Debug(value) => serializer.collect_str(&format_args!("{value:?}")),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Limits(limits) => serializer.collect_seq(limits.iter().map(|limit| &limit.name)),
            Self::Remaining(limits) => {
                serializer.collect_map(limits.iter().map(|(limit, remaining)| (limit.name.as_str(), remaining)))
            }
        }
    }
}

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) => value.fmt(f),
            Self::Debug(value) => value.fmt(f),
            // With escaped control characters, so a client cannot write lines.
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Limits(limits) => separated(f, limits.iter().map(|limit| &limit.name)),
            Self::Remaining(limits) => {
                separated(f, limits.iter().map(|(limit, remaining)| format!("{}={remaining}", limit.name)))
            }
        }
    }
}

fn separated(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = impl Display>) -> fmt::Result {
    items.enumerate().try_for_each(|(at, item)| write!(f, "{}{item}", if at == 0 { "" } else { " " }))
}

/// A text between quotes. Bytes that would end it or the line are written as `\xhh`, as httpd and nginx do.
struct Quoted<'a>(&'a [u8]);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            match byte {
                b'"' | b'\\' | ..=0x1f | 0x7f.. => write!(f, "\\x{byte:02x}")?,
                byte => write!(f, "{}", char::from(*byte))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn written(entry: &AccessLogEntry) -> (String, serde_json::Value) {
        let (outcome, status) = (Outcome::Forwarded, Some(StatusCode::OK));
        let line = AccessLine { entry, route: "/*", outcome, reason: None, status, micros: 1, id: "i" };
        (line.to_string(), serde_json::to_value(&line).unwrap())
    }

    #[test]
    fn tokens_are_told_where_they_are_counted() {
        let mut entry = AccessLogEntry::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let (text, json) = written(&entry);
        assert!(!text.contains("tokens") && !json.to_string().contains("tokens"), "{text} {json}");
        entry.tokens = Some(Usage { input: 20, cached: 10, output: 7 });
        let (text, json) = written(&entry);
        assert!(text.contains(" tokens_input=30 tokens_output=7 "), "{text}");
        assert_eq!((&json["tokens_input"], &json["tokens_output"]), (&30.into(), &7.into()), "{json}");
    }

    #[test]
    fn limits_are_texts_for_people() {
        let [a, b] = ["a", "b"].map(|name| Arc::new(LimitMetrics::new(name, 1)));
        assert_eq!(Value::Limits(&[a.clone(), b.clone()]).to_string(), "a b");
        assert_eq!(Value::Remaining(&[(a, 3), (b, 0)]).to_string(), "a=3 b=0");
    }
}
