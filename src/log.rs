//! Where log lines go: to standard error, pretty for people or as JSON, written by a thread of their own.

use std::io::{self, IsTerminal};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Log, LogFormat};

/// Starts logging. Lines that are still on their way are written when the guard is dropped.
///
/// # Errors
/// When logging was started before.
pub fn start(config: &Log) -> Result<WorkerGuard, TryInitError> {
    // Not lossy: under pressure requests wait for the log rather than the log loses lines.
    let (writer, guard) = NonBlockingBuilder::default().lossy(false).finish(io::stderr());
    let filter = LevelFilter::from_level(config.level);
    let registry = tracing_subscriber::registry().with(filter);
    let pretty = match config.format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    if pretty {
        let colours = io::stderr().is_terminal();
        registry.with(fmt::layer().with_ansi(colours).with_target(false).with_writer(writer)).try_init()?;
    } else {
        registry.with(fmt::layer().json().flatten_event(true).with_target(false).with_writer(writer)).try_init()?;
    }
    Ok(guard)
}
