//! `[log]`: what is written to standard error, and to the file of the access log.

use std::path::PathBuf;

/// `[log]`: what is written to standard error.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: tracing::Level,
    /// The format of a line.
    pub format: LogFormat,
    /// Which requests get a line.
    pub access: AccessLog,
    /// The file of these lines; `None` if they go to standard error.
    pub access_file: Option<PathBuf>,
    /// The format of these lines; `None` if they are lines of the log.
    pub access_format: Option<AccessFormat>,
}

/// The names of all levels of the log, the least severe first.
pub const LOG_LEVELS: [(&str, tracing::Level); 5] = [
    ("trace", tracing::Level::TRACE),
    ("debug", tracing::Level::DEBUG),
    ("info", tracing::Level::INFO),
    ("warn", tracing::Level::WARN),
    ("error", tracing::Level::ERROR),
];

/// Which requests get a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// All requests.
    On,
    /// All requests, except most of the refusals of a client that sends too many.
    Sampled,
    /// No requests.
    Off,
}

/// The format of a line of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// One JSON object per line.
    Json,
    /// The Combined Log Format.
    Combined,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines: one JSON object per line.
    Json,
}
