//! The spans of a request with a sampled trace. Names and attributes follow OpenTelemetry's semantic conventions for HTTP
//! where there are any: <https://opentelemetry.io/docs/specs/semconv/http/http-spans/>.
//!
//! Spans have no headers, queries or keys of limits, because these may be secret. Texts of clients are cut, so a trace has a
//! bounded size.
//!
//! The gateway does not use the SDK of OpenTelemetry, which would bring its own context, processors, random numbers and HTTP
//! client. A request without sampling pays one branch for each place where a span could begin. A sampled request collects its
//! spans in one box, and the worker sends the box when the request ends.

mod channel;

use std::cell::RefCell;
use std::net::IpAddr;

use http::{Method, StatusCode, Version};

use crate::base::clock::Time;
use crate::base::http::trace_context::{SpanId, TraceContext, TraceId};
use crate::base::random::Random;

pub use channel::{ROOM, SpanCounts, TraceReceiver, TraceSender, trace_channel};

/// For one request. Further spans are not recorded.
pub const MOST_SPANS: usize = 32;
/// In bytes, of a text that a client has chosen.
const LONGEST_TEXT: usize = 1024;

pub struct Trace {
    pub id: TraceId,
    /// At most [`MOST_SPANS`].
    pub spans: Vec<Span>,
}

/// An operation with a beginning and an end.
#[derive(Debug)]
pub struct Span {
    pub id: SpanId,
    /// The span that contains this one.
    pub parent: Option<SpanId>,
    /// The operation, for people.
    pub name: String,
    pub kind: SpanKind,
    pub begun: Time,
    /// Not before `begun`.
    pub ended: Time,
    /// By the names of the conventions.
    pub attributes: Vec<Attribute>,
    pub is_error: bool,
}

/// The side of an exchange, with its number in OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Answers a client. The parent, if there is one, is in another process.
    Server = 2,
    /// Asks another server.
    Client = 3,
    /// Neither.
    Internal = 1,
}

pub type Attribute = (&'static str, AttributeValue);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    Text(String),
    Number(i64),
    Texts(Vec<String>),
}

/// The request, as far as its span describes it.
pub struct RequestDetails<'a> {
    pub method: &'a Method,
    /// Without the query.
    pub path: &'a str,
    /// The requested host; may be empty.
    pub host: &'a str,
    /// `http` or `https`.
    pub scheme: &'static str,
    pub version: Version,
    pub client: IpAddr,
    /// As the configuration has it; `None` without a route.
    pub route: Option<&'a str>,
    pub request_id: &'a str,
}

pub struct DecisionDetails<'a> {
    pub begun: Time,
    pub ended: Time,
    pub limits: Vec<String>,
    /// In one word.
    pub decision: &'static str,
    /// The limit that did not admit the request.
    pub refused_by: Option<&'a str>,
    /// When the store was asked, and when it answered; `None` if it did not answer.
    pub exchanges: &'a [(Time, Option<Time>)],
    /// What runs on the servers of the store.
    pub store: &'static str,
}

pub struct RequestEnding {
    pub at: Time,
    /// In one word.
    pub outcome: &'static str,
    /// Why the request failed, in one word.
    pub reason: Option<&'static str>,
    /// `None` if there was no response.
    pub status: Option<StatusCode>,
    /// Whether the request failed, whatever the status is: the client did not get the whole response, or a gRPC response
    /// reports a failure elsewhere.
    pub has_failed: bool,
}

/// The spans of a request during the request. Only the request's thread may use them.
#[derive(Debug)]
pub struct RequestSpans {
    sender: TraceSender,
    random: Random,
    trace: TraceId,
    parent: Option<SpanId>,
    id: SpanId,
    begun: Time,
    method: Method,
    route: Option<String>,
    attributes: Vec<Attribute>,
    parts: RefCell<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    ended: Vec<Span>,
    /// The current attempt to forward the request.
    attempt: Option<Span>,
    attempts: i64,
}

impl RequestSpans {
    /// Begins the span of a request that arrived at `begun`. The finished spans go to `sender`.
    pub fn begin(
        sender: TraceSender,
        context: &TraceContext,
        random: &Random,
        begun: Time,
        request: &RequestDetails<'_>,
    ) -> Self {
        let random = random.fork();
        let mut attributes = method_attributes(request.method);
        attributes.extend([
            ("url.path", text(request.path)),
            ("url.scheme", text(request.scheme)),
            ("client.address", text(&request.client.to_string())),
            ("gateway.request_id", text(request.request_id)),
        ]);
        if !request.host.is_empty() {
            attributes.push(("server.address", text(request.host)));
        }
        if let Some(route) = request.route {
            attributes.push(("http.route", text(route)));
        }
        if let Some(version) = version_name(request.version) {
            attributes.push(("network.protocol.version", text(version)));
        }
        let id = SpanId::new(&random);
        let route = request.route.map(str::to_owned);
        let (method, parts) = (request.method.clone(), RefCell::default());
        let (trace, parent) = (context.id, context.client);
        Self { sender, random, trace, parent, id, begun, method, route, attributes, parts }
    }

    pub fn decided(&self, decision: DecisionDetails<'_>) {
        let DecisionDetails { begun, ended, limits, decision, refused_by, exchanges, store } = decision;
        let mut attributes =
            vec![("gateway.limits", AttributeValue::Texts(limits)), ("gateway.decision", text(decision))];
        attributes.extend(refused_by.map(|limit| ("gateway.limit", text(limit))));
        let decide = Span { attributes, ..self.span("decide", SpanKind::Internal, begun, ended) };
        let parent = Some(decide.id);
        self.add(decide);
        for (asked, answered) in exchanges {
            let until = answered.unwrap_or(ended);
            let span = self.span("store exchange", SpanKind::Client, *asked, until);
            let mut attributes = vec![("db.system.name", text(store))];
            attributes.extend(answered.is_none().then(|| ("error.type", text("unavailable"))));
            self.add(Span { parent, attributes, is_error: answered.is_none(), ..span });
        }
    }

    pub fn begin_attempt(&self, now: Time) {
        let mut attributes = method_attributes(&self.method);
        let parts = &mut *self.parts.borrow_mut();
        if parts.attempts > 0 {
            attributes.push(("http.request.resend_count", AttributeValue::Number(parts.attempts)));
        }
        parts.attempts += 1;
        parts.attempt = Some(Span { attributes, ..self.span("forward", SpanKind::Client, now, now) });
    }

    pub fn attempt_at(&self, address: String, port: Option<u16>) {
        if let Some(Span { attributes, .. }) = &mut self.parts.borrow_mut().attempt {
            attributes.push(("server.address", AttributeValue::Text(address)));
            attributes.extend(port.map(|port| ("server.port", AttributeValue::Number(port.into()))));
        }
    }

    /// The span of the current attempt: the parent of the server's spans.
    pub fn attempt(&self) -> Option<SpanId> {
        self.parts.borrow().attempt.as_ref().map(|attempt| attempt.id)
    }

    /// Ends the current attempt with the status of the response, or with the reason for no response in one word.
    pub fn end_attempt(&self, result: Result<StatusCode, &'static str>, now: Time) {
        let Some(mut attempt) = self.parts.borrow_mut().attempt.take() else { return };
        attempt.ended = now.max(attempt.begun);
        match result {
            Ok(status) => {
                attempt.attributes.push(status_attribute(status));
                // The server refuses the attempt, so for the sender of the attempt this is an error.
                if status.is_client_error() || status.is_server_error() {
                    attempt.fail(status.as_str());
                }
            }
            Err(reason) => attempt.fail(reason),
        }
        self.add(attempt);
    }

    /// Ends the span of the request and sends all its spans.
    pub fn end(self, ending: &RequestEnding) {
        let RequestEnding { at, outcome, reason, status, has_failed } = *ending;
        self.end_attempt(Err(reason.unwrap_or(outcome)), at);
        let method = known_method(&self.method).unwrap_or("HTTP");
        let name = self.route.as_ref().map_or(method.to_owned(), |route| format!("{method} {route}"));
        let mut whole = Span { parent: self.parent, ..self.span(&name, SpanKind::Server, self.begun, at) };
        let Self { sender, trace, id, attributes, parts, .. } = self;
        whole.id = id;
        whole.attributes = attributes;
        whole.attributes.push(("gateway.outcome", text(outcome)));
        whole.attributes.extend(reason.map(|reason| ("gateway.reason", text(reason))));
        whole.attributes.extend(status.map(status_attribute));
        // A mistake of the client is no error of the server.
        if has_failed || status.is_none() {
            whole.fail(reason.unwrap_or(outcome));
        } else if let Some(status) = status.filter(StatusCode::is_server_error) {
            whole.fail(reason.unwrap_or(status.as_str()));
        }
        let mut spans = parts.into_inner().ended;
        spans.push(whole);
        sender.send(Trace { id: trace, spans });
    }

    fn span(&self, name: &str, kind: SpanKind, begun: Time, ended: Time) -> Span {
        Span {
            id: SpanId::new(&self.random),
            parent: Some(self.id),
            name: name.to_owned(),
            kind,
            begun,
            ended: ended.max(begun),
            attributes: Vec::new(),
            is_error: false,
        }
    }

    fn add(&self, span: Span) {
        let ended = &mut self.parts.borrow_mut().ended;
        // Leaves room for the span of the whole request, which comes last.
        if ended.len() + 1 < MOST_SPANS {
            ended.push(span);
        }
    }
}

impl Span {
    fn fail(&mut self, kind: &str) {
        self.is_error = true;
        self.attributes.push(("error.type", text(kind)));
    }
}

/// A name of a fixed list, because clients may invent methods.
fn known_method(method: &Method) -> Option<&'static str> {
    let known = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"];
    known.into_iter().find(|name| *name == method.as_str())
}

fn method_attributes(method: &Method) -> Vec<Attribute> {
    let original = || ("http.request.method_original", text(method.as_str()));
    let known = known_method(method);
    let named = ("http.request.method", text(known.unwrap_or("_OTHER")));
    [named].into_iter().chain(known.is_none().then(original)).collect()
}

fn status_attribute(status: StatusCode) -> Attribute {
    ("http.response.status_code", AttributeValue::Number(status.as_u16().into()))
}

fn version_name(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("1.0"),
        Version::HTTP_11 => Some("1.1"),
        Version::HTTP_2 => Some("2"),
        _ => None,
    }
}

/// Cuts the text to [`LONGEST_TEXT`] bytes.
fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text[..text.floor_char_boundary(LONGEST_TEXT)].to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::base::http::trace_context::{SampleShare, Sampling};

    fn begin(sender: &TraceSender) -> RequestSpans {
        let random = Random::seeded().unwrap();
        let request = RequestDetails {
            method: &Method::GET,
            path: &"é".repeat(LONGEST_TEXT),
            host: "",
            scheme: "http",
            version: Version::HTTP_11,
            client: IpAddr::from([192, 0, 2, 1]),
            route: None,
            request_id: "r-1",
        };
        let begun = Time::from_micros(1000);
        let sampling = Sampling { share: SampleShare::new(1.0), follows_parent: false };
        let trace = TraceContext::of(None, &random, Some(sampling)).unwrap();
        RequestSpans::begin(sender.clone(), &trace, &random, begun, &request)
    }

    fn ending() -> RequestEnding {
        let (at, outcome) = (Time::from_micros(2000), "responded");
        RequestEnding { at, outcome, reason: None, status: Some(StatusCode::OK), has_failed: false }
    }

    #[test]
    fn a_trace_is_bounded_and_keeps_the_span_of_the_request() {
        let (sender, mut receiver) = trace_channel(Arc::default());
        let spans = begin(&sender);
        let id = spans.id;
        for _ in 0..100 {
            spans.begin_attempt(Time::from_micros(1100));
            assert_ne!(spans.attempt(), None, "the server has a parent even if it is not recorded");
            spans.end_attempt(Err("connect"), Time::from_micros(1200));
        }
        spans.end(&ending());
        let trace = receiver.traces.try_recv().unwrap();
        assert_eq!((trace.spans.len(), trace.spans.last().map(|span| span.id)), (MOST_SPANS, Some(id)));
        let ids: BTreeSet<_> = trace.spans.iter().map(|span| span.id.to_bytes()).collect();
        assert_eq!(ids.len(), MOST_SPANS);
        // No character is divided.
        let whole = trace.spans.last().unwrap();
        assert!(whole.attributes.contains(&("url.path", AttributeValue::Text("é".repeat(LONGEST_TEXT / 2)))));
    }

    #[test]
    fn no_span_ends_before_it_begins() {
        let (sender, mut receiver) = trace_channel(Arc::default());
        let spans = begin(&sender);
        spans.begin_attempt(Time::from_micros(1500));
        // The clock was set back.
        spans.end_attempt(Ok(StatusCode::OK), Time::from_micros(10));
        spans.end(&RequestEnding { at: Time::from_micros(10), ..ending() });
        let trace = receiver.traces.try_recv().unwrap();
        let times: Vec<_> = trace.spans.iter().map(|span| (span.begun.micros(), span.ended.micros())).collect();
        assert_eq!(times, [(1500, 1500), (1000, 1000)]);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let counts = Arc::new(SpanCounts::default());
        let (sender, mut receiver) = trace_channel(counts.clone());
        (0..ROOM + 10).for_each(|_| begin(&sender).end(&ending()));
        assert_eq!(counts.no_room.get(), 10);
        drop(sender);
        assert_eq!(std::iter::from_fn(|| receiver.traces.try_recv().ok()).count(), ROOM);
        assert!(receiver.traces.is_closed());
    }
}
