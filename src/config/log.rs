//! `[log]`: what is written to standard error and to the access log.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: tracing::Level,
    pub format: LogFormat,
    pub access: AccessLog,
    /// `None` writes the access log to standard error.
    pub access_file: Option<PathBuf>,
    /// `None` writes accesses as lines of the log.
    pub access_format: Option<AccessFormat>,
}

/// The least severe level first.
pub const LOG_LEVELS: [(&str, tracing::Level); 5] = [
    ("trace", tracing::Level::TRACE),
    ("debug", tracing::Level::DEBUG),
    ("info", tracing::Level::INFO),
    ("warn", tracing::Level::WARN),
    ("error", tracing::Level::ERROR),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    On,
    /// All requests, except most refusals of a client that sends too many.
    Sampled,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// One JSON object per line.
    Json,
    /// The Combined Log Format of Apache.
    Combined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    Pretty,
    /// One JSON object per line.
    Json,
}
