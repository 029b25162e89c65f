//! What the access log says about a request, and the line with it, in text, in JSON, or in the Combined Log Format. Queries and
//! headers may have keys and tokens, so it says no query, and only two headers in the Combined Log Format.

use std::fmt::{self, Display};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderValue, Method, Version};
use smallvec::SmallVec;

use super::RequestEnd;
use crate::base::clock::Time;
use crate::base::http::trace_context::TraceId;
use crate::base::printable::with_escapes;
use crate::request::decide::LimitMetrics;
use crate::tokens::Usage;
use crate::upstream::DestinationAddress;

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
    pub server: Option<DestinationAddress>,
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

pub(super) struct AccessLine<'a> {
    pub(super) entry: &'a AccessLogEntry,
    pub(super) route: &'a str,
    pub(super) end: RequestEnd,
    pub(super) id: &'a str,
}

impl AccessLine<'_> {
    pub(super) fn begun(&self) -> Time {
        Time::from_micros(self.end.at.micros().saturating_sub(self.end.micros))
    }

    /// Appends the line in JSON. `second` is the text of the second in which the request ended.
    pub(super) fn json(&self, second: &str, line: &mut Vec<u8>) {
        line.extend_from_slice(b"{\"timestamp\":\"");
        line.extend_from_slice(second.as_bytes());
        line.push(b'.');
        let mut digits = [b'0'; 6];
        let fraction = self.end.at.micros() % 1_000_000;
        digits.iter_mut().rev().fold(fraction, |rest, digit| {
            *digit += (rest % 10) as u8;
            rest / 10
        });
        line.extend_from_slice(&digits);
        line.extend_from_slice(b"Z\",\"level\":\"INFO\",\"message\":\"request\"");
        self.fields(|name, value| {
            line.extend_from_slice(b",\"");
            line.extend_from_slice(name.as_bytes());
            line.extend_from_slice(b"\":");
            value.json(line);
        });
        line.push(b'}');
    }

    /// Appends the line in the Combined Log Format of Apache's httpd, in which unknown values are `-`. `second` is the text
    /// of the second in which the request began.
    pub(super) fn combined(&self, second: &str, line: &mut Vec<u8>) {
        let Self { entry, end: RequestEnd { status, .. }, .. } = *self;
        address(entry.client, line);
        line.extend_from_slice(b" - - [");
        line.extend_from_slice(second.as_bytes());
        line.extend_from_slice(b"] \"");
        line.extend_from_slice(entry.method.as_ref().map_or("-", Method::as_str).as_bytes());
        line.push(b' ');
        escaped(entry.path.as_bytes(), line);
        line.push(b' ');
        line.extend_from_slice(protocol(entry.version.unwrap_or(Version::HTTP_11)).as_bytes());
        line.extend_from_slice(b"\" ");
        number(status.map_or(0, |status| status.as_u16().into()), line);
        line.push(b' ');
        number(entry.bytes, line);
        for header in [&entry.referer, &entry.user_agent] {
            line.extend_from_slice(b" \"");
            escaped(header.as_ref().map_or(b"-", HeaderValue::as_bytes), line);
            line.push(b'"');
        }
    }

    /// Calls `write` with the name and the value of each known field.
    fn fields(&self, mut write: impl FnMut(&'static str, Value<'_>)) {
        let Self { entry, route, end: RequestEnd { outcome, reason, status, micros, .. }, id } = *self;
        let mut known = |name, value: Option<Value<'_>>| value.into_iter().for_each(|value| write(name, value));
        let limits = |limits| Some(Value::Limits(limits)).filter(|_| !limits.is_empty());
        known("client", Some(Value::Client(entry.client)));
        known("method", entry.method.as_ref().map(|method| Value::Name(method.as_str())));
        known("host", Some(Value::Text(&entry.host)));
        known("path", Some(Value::Text(&entry.path)));
        known("protocol", entry.version.map(|version| Value::Plain(protocol(version))));
        known("via", entry.via.map(Value::Name));
        known("tls", entry.tls.map(Value::Name));
        known("route", Some(Value::Text(route)));
        known("status", Some(Value::Number(status.map_or(0, |status| status.as_u16().into()))));
        known("outcome", Some(Value::Name(outcome.name())));
        known("reason", reason.map(|reason| Value::Name(reason.name())));
        known("limit", entry.limit.as_ref().map(|limit| Value::Text(&limit.name)));
        known("shadowed", limits(&entry.shadowed));
        known("overflowed", limits(&entry.overflowed));
        known("remaining", Some(Value::Remaining(&entry.remaining)).filter(|_| !entry.remaining.is_empty()));
        known("held_micros", entry.held_micros.map(Value::Number));
        known("server", entry.server.as_ref().map(Value::Server));
        known("upstream_micros", entry.upstream_micros.map(Value::Number));
        if let Some(tokens) = entry.tokens {
            known("tokens_input", Some(Value::Number(tokens.input.saturating_add(tokens.cached))));
            known("tokens_output", Some(Value::Number(tokens.output)));
        }
        known("bytes", Some(Value::Number(entry.bytes)));
        known("micros", Some(Value::Number(micros)));
        known("request_id", Some(Value::Name(id)));
        known("trace_id", entry.trace.as_ref().map(|trace| Value::Display(trace)));
    }
}

/// For people: `request`, and the fields as in other lines of the log.
impl Display for AccessLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request")?;
        let mut result = Ok(());
        self.fields(|name, value| result = result.and_then(|()| write!(f, " {name}={value}")));
        result
    }
}

/// The value of a field.
enum Value<'a> {
    Client(IpAddr),
    Server(&'a DestinationAddress),
    Display(&'a dyn Display),
    /// Is not quoted in text.
    Plain(&'a str),
    /// Needs no escapes.
    Name(&'a str),
    Text(&'a str),
    Number(u64),
    /// A list of the limits' names, or a text such as `a b`.
    Limits(&'a [Arc<LimitMetrics>]),
    /// How many more requests each limit admits: an object by the limits' names, or a text such as `a=3 b=0`.
    Remaining(&'a [(Arc<LimitMetrics>, u64)]),
}

impl Value<'_> {
    fn json(&self, line: &mut Vec<u8>) {
        match self {
            Self::Client(client) => quoted(line, |line| address(*client, line)),
            Self::Server(DestinationAddress::Socket(server)) => quoted(line, |line| socket(*server, line)),
            Self::Server(server) => text(&server.to_string(), line),
            Self::Display(value) => text(&value.to_string(), line),
            Self::Plain(value) | Self::Name(value) => quoted(line, |line| line.extend_from_slice(value.as_bytes())),
            Self::Text(value) => text(value, line),
            Self::Number(value) => number(*value, line),
            Self::Limits(limits) => list(line, *b"[]", limits, |line, limit| text(&limit.name, line)),
            Self::Remaining(limits) => list(line, *b"{}", limits, |line, (limit, remaining)| {
                text(&limit.name, line);
                line.push(b':');
                number(*remaining, line);
            }),
        }
    }
}

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => client.fmt(f),
            // With escaped control characters, so a client cannot write lines.
            Self::Server(server) => write!(f, "{:?}", server.to_string()),
            Self::Name(text) | Self::Text(text) => write!(f, "{text:?}"),
            Self::Plain(text) => f.write_str(text),
            Self::Display(value) => value.fmt(f),
            Self::Number(number) => number.fmt(f),
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

fn quoted(line: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    line.push(b'"');
    value(line);
    line.push(b'"');
}

fn list<T>(line: &mut Vec<u8>, [begin, end]: [u8; 2], items: &[T], item: impl Fn(&mut Vec<u8>, &T)) {
    line.push(begin);
    for (at, one) in items.iter().enumerate() {
        if at > 0 {
            line.push(b',');
        }
        item(line, one);
    }
    line.push(end);
}

/// Appends a string of JSON without characters that a terminal obeys.
fn text(text: &str, line: &mut Vec<u8>) {
    let needs_escape = |byte: &u8| !(0x20..0x7f).contains(byte) || matches!(byte, b'"' | b'\\');
    if text.as_bytes().iter().any(needs_escape) {
        // Writing a string cannot fail.
        line.extend_from_slice(&with_escapes(&serde_json::to_vec(text).unwrap_or_default()));
    } else {
        quoted(line, |line| line.extend_from_slice(text.as_bytes()));
    }
}

fn number(number: u64, line: &mut Vec<u8>) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn address(address: IpAddr, line: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            for (at, part) in address.octets().into_iter().enumerate() {
                if at > 0 {
                    line.push(b'.');
                }
                if part >= 100 {
                    line.push(b'0' + part / 100);
                }
                if part >= 10 {
                    line.push(b'0' + part / 10 % 10);
                }
                line.push(b'0' + part % 10);
            }
        }
        // Writing to a vector cannot fail.
        IpAddr::V6(address) => _ = write!(line, "{address}"),
    }
}

fn socket(server: SocketAddr, line: &mut Vec<u8>) {
    match server {
        SocketAddr::V4(server) => {
            address((*server.ip()).into(), line);
            line.push(b':');
            number(server.port().into(), line);
        }
        SocketAddr::V6(server) => _ = write!(line, "{server}"),
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Appends a text for a place between quotation marks. Bytes that would end it or the line are written as `\xhh`, as httpd
/// and nginx do.
fn escaped(text: &[u8], line: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'"' | b'\\' | ..=0x1f | 0x7f.. => _ = write!(line, "\\x{byte:02x}"),
            byte => line.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::StatusCode;

    use super::super::{MethodClass, Outcome};
    use super::*;

    fn written(entry: &AccessLogEntry) -> (String, serde_json::Value) {
        let (method, outcome, status) = (MethodClass::Read, Outcome::Forwarded, Some(StatusCode::OK));
        let end = RequestEnd { method, outcome, reason: None, status, at: Time::from_micros(1_000_001), micros: 1 };
        let line = AccessLine { entry, route: "/*", end, id: "i" };
        let mut json = Vec::new();
        line.json("1970-01-01T00:00:01", &mut json);
        (line.to_string(), serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn addresses_are_written_as_usual() {
        for text in ["0.0.0.0", "9.10.99.100", "127.0.0.1", "255.255.255.255", "2001:db8::1", "::ffff:1.2.3.4"] {
            let mut line = Vec::new();
            address(text.parse().unwrap(), &mut line);
            assert_eq!(String::from_utf8(line).unwrap(), text);
        }
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
