//! Lines of the access log. They have no header and no query, since those have keys and tokens; the Combined Log Format has
//! a place for two headers.

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

/// What the access log says about a request besides how it ended.
#[derive(Clone, Debug)]
pub struct AccessLogEntry {
    /// The client's address.
    pub client: IpAddr,
    /// The method, if it is known.
    pub method: Option<Method>,
    /// The host asked for.
    pub host: String,
    /// The path, without the query.
    pub path: String,
    /// The version of HTTP, if it is known.
    pub version: Option<Version>,
    /// The version of TLS, if the connection uses TLS.
    pub tls: Option<&'static str>,
    /// Referer and User-Agent, where the format has a place for them.
    pub referer: Option<HeaderValue>,
    /// See `referer`.
    pub user_agent: Option<HeaderValue>,
    /// The trace that it belongs to, if its headers are known.
    pub trace: Option<TraceId>,
    /// The limit that refused it.
    pub limit: Option<Arc<LimitMetrics>>,
    /// How many more requests each limit that has decided admits.
    pub remaining: SmallVec<[(Arc<LimitMetrics>, u64); 2]>,
    /// Microseconds for which a limit held it back.
    pub held_micros: Option<u64>,
    /// The server that has responded.
    pub server: Option<String>,
    /// Microseconds until the head of its response was there.
    pub upstream_micros: Option<u64>,
    /// The bytes of the response's body that were sent so far.
    pub bytes: u64,
}

impl AccessLogEntry {
    /// The entry of a request of which only the client is known.
    pub fn new(client: IpAddr) -> Self {
        Self {
            client,
            method: None,
            host: String::new(),
            path: String::new(),
            version: None,
            tls: None,
            referer: None,
            user_agent: None,
            trace: None,
            limit: None,
            remaining: SmallVec::new(),
            held_micros: None,
            server: None,
            upstream_micros: None,
            bytes: 0,
        }
    }
}

/// Where lines go.
#[derive(Clone, Debug)]
pub enum AccessLogger {
    /// They are lines of the log.
    Log,
    /// They are lines of the log, which is JSON.
    JsonLog(LineWriter),
    /// They are written in this format.
    Lines(LineWriter, AccessFormat),
}

impl AccessLogger {
    /// The logger with this writer and format. Without a format its lines belong to the log, which is JSON if there is a writer.
    pub fn new(writer: Option<LineWriter>, format: Option<AccessFormat>) -> Self {
        match (writer, format) {
            (Some(writer), Some(format)) => Self::Lines(writer, format),
            (Some(writer), None) => Self::JsonLog(writer),
            (None, _) => Self::Log,
        }
    }

    /// Whether a line has a place for Referer and User-Agent.
    pub fn needs_headers(&self) -> bool {
        matches!(self, Self::Lines(_, AccessFormat::Combined))
    }

    pub(super) fn write(&self, line: &AccessLine<'_>) {
        let (writer, mut text) = match self {
            Self::Log => return line.log(),
            // Its level may be such that no requests are in it.
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

/// A line about a request that has ended.
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
    /// Writes it as a line of the log for people.
    fn log(&self) {
        let Self { entry, route, outcome, reason, status, micros, id } = *self;
        tracing::info!(
            client = %entry.client,
            method = entry.method.as_ref().map(Method::as_str),
            host = entry.host,
            path = entry.path,
            protocol = entry.version.map(tracing::field::debug),
            tls = entry.tls,
            route,
            status = status.map_or(0, |status| status.as_u16()),
            outcome = outcome.name(),
            reason = reason.map(Reason::name),
            limit = entry.limit.as_ref().map(|limit| limit.name.as_str()),
            remaining = (!entry.remaining.is_empty()).then(|| tracing::field::display(Remaining(&entry.remaining))),
            held_micros = entry.held_micros,
            server = entry.server,
            upstream_micros = entry.upstream_micros,
            bytes = entry.bytes,
            micros,
            request_id = id,
            trace_id = entry.trace.map(tracing::field::display),
            "request"
        );
    }

    /// The line in the Combined Log Format of Apache's httpd. Where a value is not known there is `-`.
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

impl Serialize for AccessLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { entry, route, outcome, reason, status, micros, id } = *self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("timestamp", &format_args!("{:.6}", timestamp(clock::now())))?;
        map.serialize_entry("level", "INFO")?;
        map.serialize_entry("message", "request")?;
        map.serialize_entry("client", &entry.client)?;
        if let Some(method) = &entry.method {
            map.serialize_entry("method", method.as_str())?;
        }
        map.serialize_entry("host", &entry.host)?;
        map.serialize_entry("path", &entry.path)?;
        if let Some(version) = entry.version {
            map.serialize_entry("protocol", &format_args!("{version:?}"))?;
        }
        let mut optional = |name, text: Option<&str>| match text {
            Some(text) => map.serialize_entry(name, text),
            None => Ok(()),
        };
        optional("tls", entry.tls)?;
        optional("reason", reason.map(Reason::name))?;
        optional("limit", entry.limit.as_ref().map(|limit| limit.name.as_str()))?;
        optional("server", entry.server.as_deref())?;
        map.serialize_entry("route", route)?;
        map.serialize_entry("status", &status.map_or(0, |status| status.as_u16()))?;
        map.serialize_entry("outcome", outcome.name())?;
        if !entry.remaining.is_empty() {
            map.serialize_entry("remaining", &Remaining(&entry.remaining))?;
        }
        for (name, number) in [("held_micros", entry.held_micros), ("upstream_micros", entry.upstream_micros)] {
            if let Some(number) = number {
                map.serialize_entry(name, &number)?;
            }
        }
        map.serialize_entry("bytes", &entry.bytes)?;
        map.serialize_entry("micros", &micros)?;
        map.serialize_entry("request_id", id)?;
        if let Some(trace) = &entry.trace {
            map.serialize_entry("trace_id", &format_args!("{trace}"))?;
        }
        map.end()
    }
}

fn timestamp(time: Time) -> Timestamp {
    time.timestamp().unwrap_or(Timestamp::MAX)
}

/// How many more requests each limit admits: an object by the limits' names, or a text such as `a=3 b=0`.
struct Remaining<'a>(&'a [(Arc<LimitMetrics>, u64)]);

impl Serialize for Remaining<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(limit, remaining)| (limit.name.as_str(), remaining)))
    }
}

impl Display for Remaining<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (limit, remaining)) in self.0.iter().enumerate() {
            write!(f, "{}{}={remaining}", if at == 0 { "" } else { " " }, limit.name)?;
        }
        Ok(())
    }
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
