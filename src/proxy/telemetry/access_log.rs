//! What the access log says about a request, and where its line goes. Queries and headers may have keys and tokens, so lines
//! contain no query, and only two headers in the Combined Log Format.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, Version};
use smallvec::SmallVec;
use tracing::Level;

use super::access_line::AccessLine;
use crate::base::clock::Time;
use crate::base::http::trace_context::TraceId;
use crate::config::AccessFormat;
use crate::proxy::log::{LineBuffer, LineWriter};
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

/// Where lines go, and in which format. Without a format they belong to the log, which is in JSON if there is a writer.
#[derive(Clone, Debug)]
pub struct AccessLogOutput {
    pub writer: Option<LineWriter>,
    pub format: Option<AccessFormat>,
}

/// Writes the lines of one worker.
#[derive(Debug)]
pub struct AccessLogger {
    form: LineForm,
    /// `None` if lines are written one by one.
    lines: Option<LineBuffer>,
    time: RefCell<TimeText>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LineForm {
    /// A line of the log in text.
    Log,
    /// A line of the log in JSON.
    JsonLog,
    Json,
    Combined,
}

impl AccessLogger {
    pub fn new(AccessLogOutput { writer, format }: AccessLogOutput) -> Self {
        let (form, time) = match (&writer, format) {
            (None, _) => (LineForm::Log, ""),
            (Some(_), None) => (LineForm::JsonLog, JSON_TIME),
            (Some(_), Some(AccessFormat::Json)) => (LineForm::Json, JSON_TIME),
            (Some(_), Some(AccessFormat::Combined)) => (LineForm::Combined, COMBINED_TIME),
        };
        Self { form, lines: writer.map(LineBuffer::new), time: RefCell::new(TimeText::new(time)) }
    }

    /// Whether lines have a place for Referer and User-Agent.
    pub fn needs_headers(&self) -> bool {
        self.form == LineForm::Combined
    }

    /// Passes on lines as long as it is polled.
    pub async fn run(&self) {
        match &self.lines {
            Some(lines) => lines.run().await,
            None => std::future::pending().await,
        }
    }

    /// Passes on all lines now.
    pub fn flush(&self) {
        self.lines.iter().for_each(LineBuffer::flush);
    }

    pub(super) fn write(&self, line: &AccessLine<'_>) {
        let Some(lines) = &self.lines else { return tracing::info!("{line}") };
        // The level of the log may exclude requests.
        if self.form == LineForm::JsonLog && !tracing::enabled!(Level::INFO) {
            return;
        }
        let mut time = self.time.borrow_mut();
        match self.form {
            LineForm::Combined => lines.write(|text| line.combined(time.second(line.begun()), text)),
            _ => lines.write(|text| line.json(time.second(line.at), text)),
        }
    }
}

const JSON_TIME: &str = "%Y-%m-%dT%H:%M:%S";
const COMBINED_TIME: &str = "%d/%b/%Y:%H:%M:%S +0000";

/// The text of the last second that a line has stated.
#[derive(Debug)]
struct TimeText {
    format: &'static str,
    /// Since the Unix epoch.
    second: u64,
    text: String,
}

impl TimeText {
    fn new(format: &'static str) -> Self {
        Self { format, second: u64::MAX, text: String::new() }
    }

    fn second(&mut self, time: Time) -> &str {
        if time.seconds() != self.second {
            self.second = time.seconds();
            self.text = time.timestamp().unwrap_or(jiff::Timestamp::MAX).strftime(self.format).to_string();
        }
        &self.text
    }
}
