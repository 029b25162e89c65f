//! Logging to standard error, either for people or as JSON. A separate thread writes the lines.
//!
//! If the reader of standard error stops, as in `gateway 2>&1 | less`, lines are dropped and counted, and no request waits. A
//! panic is logged like that too, because a direct write to standard error could block the worker that panics.

mod line_writer;
mod queue;

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::{panic, thread};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt as lines, reload};

use crate::config::{Log, LogFormat};

use queue::Queue;

pub use line_writer::{LineBuffer, LineWriter};

/// The log while it is open. Dropping it writes the remaining lines, unless standard error is not read.
#[derive(Debug)]
pub struct Logging {
    queue: Arc<Queue>,
    pub level: LogLevel,
    /// Writes the lines of the access log; `None` if they go to the log.
    pub access: Option<LineWriter>,
}

/// Changes from which level on lines are logged.
pub type LogLevel = reload::Handle<LevelFilter, Registry>;

#[derive(Clone, Debug)]
pub struct DroppedLines {
    log: Arc<Queue>,
    access: Option<LineWriter>,
}

/// Starts logging, including panics. Fails when logging was started before, the system cannot start a thread, or the file of
/// the access log cannot be opened.
pub fn start(config: &Log) -> Result<Logging, String> {
    let report = |lines| tracing::warn!(lines, "log lines were dropped: standard error was not read fast enough");
    let queue = Queue::start(io::stderr(), report).map_err(|error| format!("cannot open the log: {error}"))?;
    let (filter, level) = reload::Layer::new(config.level.into());
    let registry = tracing_subscriber::registry().with(filter);
    let pretty = match config.format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let writer = queue.clone();
    let opened = if pretty {
        let colours = io::stderr().is_terminal();
        registry.with(lines::layer().with_ansi(colours).with_target(false).with_writer(writer)).try_init()
    } else {
        registry.with(lines::layer().json().flatten_event(true).with_target(false).with_writer(writer)).try_init()
    };
    opened.map_err(|error| format!("cannot open the log: {error}"))?;
    log_panics();
    let access = match (&config.access_file, config.access_format) {
        (Some(path), _) => {
            let opened = LineWriter::open(path);
            Some(opened.map_err(|error| format!("cannot open the access log {}: {error}", path.display()))?)
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

fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let place = panic.location().map(ToString::to_string);
        // Captured only if the environment enables it (`RUST_BACKTRACE`).
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let (thread, place, error) = (thread.name(), place.as_deref(), panic_text(panic.payload()));
        tracing::error!(thread, place, error, backtrace = backtrace.as_deref(), "panicked");
    }));
}

pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
