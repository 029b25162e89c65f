//! `[tracing]` as it runs: which requests are traced, and where their spans go.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// `[tracing]`
#[derive(Clone, Debug, PartialEq)]
pub struct Tracing {
    /// The share of requests that are traced, 0 to 1, where no parent decides that.
    pub sample: f64,
    /// Where the spans go.
    pub collector: Arc<Collector>,
}

/// A collector that speaks OTLP over HTTP, and what it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Collector {
    /// Where it takes traces.
    pub url: Url,
    /// How it is spoken to with `https`.
    pub tls: Option<ConnectorTls>,
    /// Headers of each request to it. Their values are secret.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Who has recorded the spans.
    pub service_name: String,
    /// The longest time that an export takes.
    pub timeout: Duration,
}

impl Collector {
    /// What follows the endpoint of a collector in the URL at which it takes traces.
    pub const PATH: &str = "/v1/traces";

    /// The endpoint as the file has it.
    pub fn endpoint(&self) -> String {
        self.url.to_string().trim_end_matches(Self::PATH).to_owned()
    }
}
