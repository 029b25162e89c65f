//! Logging to standard error, either for people or as JSON. A separate thread writes the lines.
//!
//! If the reader of standard error stops, as in `gateway 2>&1 | less`, lines are dropped and counted, and no request waits. A
//! panic is logged like that too, because a direct write to standard error could block the worker that panics.

mod line_writer;
mod queue;

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{fmt, panic, thread};

use tracing::callsite::rebuild_interest_cache;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt as lines};

use crate::config::{LOG_LEVELS, Log, LogFormat};

use queue::Queue;

pub use line_writer::{LineBuffer, LineWriter};

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
    log_panics();
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

/// The level of the log, shared by its readers and writers.
#[derive(Clone, Debug)]
pub struct LogLevel(Arc<AtomicU8>);

impl LogLevel {
    pub fn new(level: Level) -> Self {
        Self(Arc::new(AtomicU8::new(place(level))))
    }

    pub fn get(&self) -> Level {
        LOG_LEVELS.get(usize::from(self.0.load(Ordering::Relaxed))).map_or(Level::INFO, |(_, level)| *level)
    }

    /// From now on logs lines of this level and of all more severe levels.
    pub fn set(&self, level: Level) {
        self.0.store(place(level), Ordering::Relaxed);
        rebuild_interest_cache();
    }
}

fn place(level: Level) -> u8 {
    LOG_LEVELS.iter().zip(0..).find(|((_, one), _)| *one == level).map_or(0, |(_, place)| place)
}

impl<S: Subscriber> Layer<S> for LogLevel {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() <= self.get() { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.get()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.get()))
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
