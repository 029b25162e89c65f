//! Logging to standard error, either for people or as JSON. A separate thread writes the lines.
//!
//! If the reader of standard error stops, as in `gateway 2>&1 | less`, lines are dropped and counted, and no request waits.

mod level;
mod line_buffer;
mod line_writer;
mod panics;
mod queue;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use tracing_subscriber::fmt as lines;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Log, LogFormat};

use queue::Queue;

pub use level::LogLevel;
pub use line_buffer::LineBuffer;
pub use line_writer::LineWriter;
pub use panics::text as panic_text;

/// The log while it is open. Dropping it writes the remaining lines, unless standard error is not read.
#[derive(Debug)]
pub struct Logging {
    queue: Arc<Queue>,
    level: LogLevel,
    access: Option<LineWriter>,
}

#[derive(Clone, Debug)]
pub struct DroppedLines {
    log: Arc<Queue>,
    access: Option<LineWriter>,
}

#[derive(Debug)]
pub enum LogError {
    Twice(TryInitError),
    System(io::Error),
    AccessFile(PathBuf, io::Error),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice(error) => write!(f, "cannot open the log: {error}"),
            Self::System(error) => write!(f, "cannot open the log: {error}"),
            Self::AccessFile(path, error) => write!(f, "cannot open the access log {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for LogError {}

impl From<TryInitError> for LogError {
    fn from(error: TryInitError) -> Self {
        Self::Twice(error)
    }
}

/// Starts logging, including panics.
///
/// # Errors
/// When logging was started before, the system cannot start a thread, or the file of the access log cannot be opened.
pub fn start(config: &Log) -> Result<Logging, LogError> {
    let report = |lines| tracing::warn!(lines, "log lines were dropped: standard error was not read fast enough");
    let queue = Queue::start(io::stderr(), report).map_err(LogError::System)?;
    let level = LogLevel::new(config.level);
    let registry = tracing_subscriber::registry().with(level.clone());
    let pretty = match config.format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let writer = queue.clone();
    if pretty {
        let colours = io::stderr().is_terminal();
        registry.with(lines::layer().with_ansi(colours).with_target(false).with_writer(writer)).try_init()?;
    } else {
        registry.with(lines::layer().json().flatten_event(true).with_target(false).with_writer(writer)).try_init()?;
    }
    panics::log();
    let access = match (&config.access_file, config.access_format) {
        (Some(path), _) => {
            let opened = LineWriter::open(path).map_err(|error| LogError::AccessFile(path.clone(), error))?;
            Some(opened)
        }
        (None, format) => (format.is_some() || !pretty).then(|| LineWriter::new(queue.clone())),
    };
    Ok(Logging { queue, level, access })
}

impl Logging {
    pub fn write(&self, text: &str) {
        // Writing to the queue cannot fail: it accepts a line or drops it.
        let _ = (&*self.queue).write_all(text.as_bytes());
    }

    pub fn dropped(&self) -> DroppedLines {
        DroppedLines { log: self.queue.clone(), access: self.access.clone() }
    }

    /// Writes the lines of the access log; `None` if they go to the log.
    pub fn access(&self) -> Option<LineWriter> {
        self.access.clone()
    }

    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.access.iter().for_each(LineWriter::close);
        self.queue.close();
    }
}

impl DroppedLines {
    pub fn count(&self) -> u64 {
        self.log.dropped() + self.access.as_ref().map_or(0, LineWriter::dropped)
    }
}
