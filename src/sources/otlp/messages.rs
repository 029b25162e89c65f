//! Traces as messages of OTLP, the OpenTelemetry Protocol 1.x: <https://opentelemetry.io/docs/specs/otlp/>.
//!
//! Only messages and fields that the gateway sends or reads are here. The numbers of fields are those of
//! `opentelemetry/proto/trace/v1/trace.proto` and the files that it imports. The crate with all messages needs the SDK of
//! OpenTelemetry, so `prost` encodes these, and tests decode them with OpenTelemetry's library for Python.

use prost::{Message, Oneof};

use crate::base::spans::{Attribute, AttributeValue, SpanKind, Trace};

/// The version of the semantic conventions for the names of attributes.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

/// Bits of `Span.flags`: the sampled flag of W3C Trace Context; the next bit is valid; the parent is in another process.
const SAMPLED: u32 = 0x001;
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// `STATUS_CODE_ERROR`
const ERROR: i32 = 2;

/// `ExportTraceServiceRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
    #[prost(string, tag = "3")]
    schema_url: String,
}

/// `InstrumentationScope`
#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3, 5")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(message, tag = "5")]
    Values(ArrayValue),
}

#[derive(Clone, PartialEq, Message)]
struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

/// `ExportTraceServiceResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

impl ExportRequest {
    pub(super) fn new(service_name: &str, traces: &[Trace]) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let attributes = [("service.name", service_name), ("service.version", &version)]
            .map(|(name, value)| key_value(&(name, AttributeValue::Text(value.to_owned()))));
        let scope_spans = ScopeSpans {
            scope: Some(Scope { name: "gateway".to_owned(), version }),
            spans: traces.iter().flat_map(spans).collect(),
            schema_url: SCHEMA.to_owned(),
        };
        let resource_spans = ResourceSpans {
            resource: Some(Resource { attributes: attributes.into() }),
            scope_spans: vec![scope_spans],
            schema_url: SCHEMA.to_owned(),
        };
        Self { resource_spans: vec![resource_spans] }
    }
}

fn spans(trace: &Trace) -> impl Iterator<Item = Span> {
    trace.spans.iter().map(|span| {
        let is_remote = span.kind == SpanKind::Server && span.parent.is_some();
        Span {
            trace_id: trace.id.to_bytes().into(),
            span_id: span.id.to_bytes().into(),
            parent_span_id: span.parent.map(|parent| parent.to_bytes().into()).unwrap_or_default(),
            name: span.name.clone(),
            kind: span.kind as i32,
            start_time_unix_nano: span.begun.micros().saturating_mul(1000),
            end_time_unix_nano: span.ended.micros().saturating_mul(1000),
            attributes: span.attributes.iter().map(key_value).collect(),
            status: span.is_error.then_some(Status { code: ERROR }),
            flags: SAMPLED | KNOWS_REMOTE | if is_remote { IS_REMOTE } else { 0 },
        }
    })
}

fn key_value((name, value): &Attribute) -> KeyValue {
    let text = |text: &String| AnyValue { value: Some(Value::Text(text.clone())) };
    let value = match value {
        AttributeValue::Text(value) => text(value),
        AttributeValue::Number(number) => AnyValue { value: Some(Value::Number(*number)) },
        AttributeValue::Texts(texts) => {
            AnyValue { value: Some(Value::Values(ArrayValue { values: texts.iter().map(text).collect() })) }
        }
    };
    KeyValue { key: (*name).to_owned(), value: Some(value) }
}
