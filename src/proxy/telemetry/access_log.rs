//! The access log of one worker: in which form its lines are, and where they go.

use std::cell::RefCell;

use tracing::Level;

use super::access_line::AccessLine;
use crate::base::clock::Time;
use crate::config::AccessFormat;
use crate::proxy::log::{LineBuffer, LineWriter};

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
