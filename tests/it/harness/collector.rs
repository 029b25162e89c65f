//! A collector of spans, which speaks OTLP over HTTP. OpenTelemetry's own library for Python decodes its input;
//! `scripts/test` installs the library.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::clock::until;
use super::upstream::{Received, Upstream, reply};

/// Runs in a thread for as long as the tests run.
pub(crate) struct Collector(pub(crate) Upstream);

/// A span as the library has read it.
#[derive(Clone, Debug)]
pub(crate) struct Span(pub(crate) Value);

impl Collector {
    pub(crate) fn start() -> Self {
        Self::answering(|_| reply(200, ""))
    }

    pub(crate) fn answering(answer: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self(Upstream::start(answer))
    }

    pub(crate) fn section(&self, more: &str) -> String {
        format!("[tracing]\nendpoint = \"http://{}\"\n{more}\n", self.0.address())
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        decode(self.0.received().iter().map(|export| &*export.body))
    }

    #[track_caller]
    pub(crate) fn wait_spans(&self, count: usize) -> Vec<Span> {
        let (mut exports, mut spans) = (0, Vec::new());
        until(&format!("{count} spans are exported"), Duration::from_secs(20), || {
            if self.0.received().len() > exports {
                exports = self.0.received().len();
                spans = self.spans();
            }
            spans.len() >= count
        });
        spans
    }
}

pub(crate) fn decode<'a>(exports: impl Iterator<Item = &'a [u8]>) -> Vec<Span> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", root.join("target/opentelemetry-proto")).arg(root.join("tests/it/otlp_decoder.py"));
    let mut decoder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = String::new();
    for export in exports {
        export.iter().for_each(|byte| write!(lines, "{byte:02x}").unwrap());
        lines.push('\n');
    }
    // The decoder reads everything before it writes.
    decoder.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = decoder.wait_with_output().unwrap();
    assert!(output.status.success(), "the library is there, scripts/test installs it, and it can read the spans");
    let spans: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    spans.into_iter().map(Span).collect()
}

impl Span {
    #[track_caller]
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap()
    }

    /// Null if there is no such attribute.
    pub(crate) fn attribute(&self, name: &str) -> &Value {
        &self.0["attributes"][name]
    }

    /// When it began and when it ended, in nanoseconds.
    pub(crate) fn times(&self) -> (u64, u64) {
        (self.0["begun"].as_u64().unwrap(), self.0["ended"].as_u64().unwrap())
    }
}
