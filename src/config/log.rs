//! `[log]`: what is written to standard error and to the access log.

use std::path::PathBuf;

use tracing::Level;

use super::kinds::{file, shaped, words};
use super::read::{Field, Section, Shape, Wrong, tables};

#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    pub level: Level,
    pub format: LogFormat,
    pub access: AccessLog,
    /// `None` writes the access log to standard error.
    pub access_file: Option<PathBuf>,
    /// `None` writes accesses as lines of the log.
    pub access_format: Option<AccessFormat>,
}

/// The least severe level first.
pub const LOG_LEVELS: [(&str, Level); 5] = [
    ("trace", Level::TRACE),
    ("debug", Level::DEBUG),
    ("info", Level::INFO),
    ("warn", Level::WARN),
    ("error", Level::ERROR),
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

tables! {
    /// What the gateway writes to standard error. While nobody reads it, up to 4 MiB of lines wait; further lines are
    /// dropped and counted (`gateway_log_dropped_total`), so requests never wait.
    keys {
        /// The lowest level that is written.
        level: Level = words(&LOG_LEVELS), "info";
        /// The format of the lines; `"auto"` is pretty on a terminal, otherwise JSON.
        format: LogFormat = words(&[
            ("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json),
        ]).at_start(), "auto";
        /// Writes a line for each request: the address of the `client`, but never the key by which a limit counts it
        /// (docs/admin.md), the `limit` that refused it, the limits with `on_limit = "shadow"` that
        /// would have (`shadowed`), the limits whose pools were charged instead (`overflowed`), what was `remaining` of
        /// each limit at the decision if that is known, how long a limit held it (`held_micros`), the `server` that
        /// responded and its `upstream_micros`, for costs in tokens `tokens_input` (with cached ones) and `tokens_output`, the
        /// `protocol`, `via = "http"` or `"envoy"` if another proxy asked about it (docs/decisions.md), the version of
        /// `tls`, the `request_id` and the `trace_id`; never a query, nor a header except as `access_format` says,
        /// since these may contain keys. `"sampled"` writes only five lines per second and worker about the refusals of
        /// a client (IPv6 by its /64), then one line that counts the others; it counts clients beyond 256 together.
        access: () = shaped(Shape::Values("[true, false, \"sampled\"]")), true;
        /// A file for the lines of `access`. SIGUSR1 opens it again after a rename.
        access_file: PathBuf = file().at_start() => "access.log";
        /// The format of the lines of `access`: `"combined"` is the Combined Log Format, which also has `Referer` and
        /// `User-Agent`. By default they are like the rest of the log, or JSON in a file of their own.
        access_format: AccessFormat =
            words(&[("json", AccessFormat::Json), ("combined", AccessFormat::Combined)]).at_start() => "combined";
    }
}

pub(super) fn read(section: &Section<'_>) -> Log {
    let access_file = section.given(&keys::access_file);
    let access_format = section.given(&keys::access_format).or(access_file.as_ref().map(|_| AccessFormat::Json));
    section.at_start(&keys::access_file, &access_file);
    section.at_start(&keys::access_format, &access_format);
    Log {
        level: section.read(&keys::level),
        format: section.read(&keys::format),
        access: section.read_as(&keys::access, access),
        access_file,
        access_format,
    }
}

fn access(field: &Field<'_>) -> Option<AccessLog> {
    const HELP: &str = "write true, false or \"sampled\"";
    if field.value.is_str() {
        return field.parse(|text| match text {
            "sampled" => Ok(AccessLog::Sampled),
            _ => Err(Wrong::not(text, "a value of `access`", HELP)),
        });
    }
    if !field.value.is_bool() {
        field.mistyped("true, false or \"sampled\"", HELP);
        return None;
    }
    Some(if field.boolean()? { AccessLog::On } else { AccessLog::Off })
}
