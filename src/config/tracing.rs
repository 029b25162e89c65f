//! `[tracing]`: which requests are traced, and where their spans go.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, header};

use super::kinds::{self, fraction, shaped, text, wait};
use super::pem_files::SystemAuthorities;
use super::read::{Field, Section, Shape, Wrong, tables};
use super::route::header_table;
use super::{secret, values};
use crate::base::http::header_rules::{Rule, is_any};
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

#[derive(Clone, Debug, PartialEq)]
pub struct Tracing {
    pub sample: f64,
    pub collector: Arc<Collector>,
}

/// A collector that speaks OTLP over HTTP, and what is sent to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Collector {
    pub url: Url,
    /// `None` without `https`.
    pub tls: Option<ConnectorTls>,
    /// Sent with each export. The values are secret.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub service_name: String,
    pub timeout: Duration,
}

impl Collector {
    /// The path that is appended to the endpoint (OTLP over HTTP).
    pub const PATH: &str = "/v1/traces";

    /// As the file spells it.
    pub fn endpoint(&self) -> String {
        self.url.to_string().trim_end_matches(Self::PATH).to_owned()
    }
}

const MOST_HEADERS: usize = 16;
/// In bytes.
const LONGEST_NAME: usize = 255;
/// Headers that the gateway or the HTTP library writes, besides those that no route may change.
const WRITTEN: [HeaderName; 5] =
    [header::HOST, header::CONTENT_TYPE, header::CONTENT_ENCODING, header::ACCEPT, header::USER_AGENT];

tables! {
    /// Sends spans of requests to an OpenTelemetry collector (docs/metrics.md).
    keys {
        /// The URL of the collector (OTLP over HTTP).
        endpoint: () = kinds::secret().required() => "http://127.0.0.1:4318";
        /// The share of requests that the gateway traces; if a trusted proxy sends `traceparent`, its flags decide instead.
        sample: f64 = fraction(), 0.01;
        /// Headers for the collector; values may be `"file:PATH"` or `"env:NAME"`.
        headers: () = shaped(Shape::Named(&Shape::Secret)), {} => { authorization = "env:COLLECTOR_TOKEN" };
        /// The `service.name` of the spans.
        service_name: () = text(), "gateway";
        /// The longest time of an export.
        timeout: Duration = wait(Duration::from_millis(100)..=Duration::from_secs(60)), "5s";
    }
}

pub(super) fn read(section: &Section<'_>, system: &SystemAuthorities) -> Option<Tracing> {
    let field = section.needed(&keys::endpoint);
    let url = field.as_ref().and_then(|field| field.hiding_query().parse(endpoint));
    let sample = section.read(&keys::sample);
    let headers = section.field(&keys::headers);
    let headers = headers.map_or(Some(Vec::new()), |field| self::headers(&field));
    let service_name = section.read_as(&keys::service_name, |field| field.parse(service_name));
    let timeout = section.read(&keys::timeout);
    let (field, url, headers) = (field?, url?, headers?);
    let tls = system.tls_of(&url, &field)?;
    if tls.is_none() && !headers.is_empty() && !values::is_here(&url) {
        let message = "the headers are sent without TLS, so others in the network can read them";
        field.warn(message, "use an https:// endpoint");
    }
    Some(Tracing { sample, collector: Arc::new(Collector { url, tls, headers, service_name, timeout }) })
}

/// The URL for traces, from the endpoint.
fn endpoint(text: &str) -> Result<Url, Wrong> {
    let help = "write http:// or https://, like \"http://127.0.0.1:4318\"";
    let url = values::url(text, "collectors", help)?;
    if let Some(at) = text.find('?') {
        return Err(Wrong::new("an endpoint has no query", "remove it").at(at..text.len()));
    }
    let path = url.target.as_sent().trim_end_matches('/');
    if path.ends_with(Collector::PATH) {
        let rest = text.trim_end_matches('/').trim_end_matches(Collector::PATH);
        let message = format!("the endpoint is written without {}, which the gateway adds", Collector::PATH);
        return Err(Wrong::new(message, format!("write \"{rest}\"")).at(rest.len()..text.len()));
    }
    let target = format!("{path}{}", Collector::PATH).into();
    Ok(Url { target, ..url })
}

fn headers(field: &Field<'_>) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let headers = header_table(field, "`headers`", |name, place, field| {
        if WRITTEN.contains(name) || is_any(name, &[Rule::HopByHop, Rule::FixedInRequests]) {
            field.source.report(place, format!("the gateway writes the header `{name}` itself"), "remove it");
        }
        secret::header_value(field)
    })?;
    if headers.len() > MOST_HEADERS {
        field.report(format!("there are {} headers", headers.len()), format!("allowed: at most {MOST_HEADERS}"));
    }
    Some(headers)
}

fn service_name(text: &str) -> Result<String, Wrong> {
    let is_name = text.trim() == text && (1..=LONGEST_NAME).contains(&text.len()) && !text.contains(char::is_control);
    let help = || format!("a name has 1 to {LONGEST_NAME} bytes, and no blanks at its ends");
    is_name.then(|| text.to_owned()).ok_or_else(|| Wrong::not(text, "the name of a service", help()))
}
