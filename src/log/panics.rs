//! Panics as lines of the log. They take the queue like all lines: what is written to standard error directly waits for
//! whoever reads it, and the thread that panics holds a worker up meanwhile.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::thread;

/// From now on panics are logged.
pub(super) fn log() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let place = panic.location().map(ToString::to_string);
        // Only if the environment asks for it.
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let (thread, place, error) = (thread.name(), place.as_deref(), text(panic.payload()));
        tracing::error!(thread, place, error, backtrace = backtrace.as_deref(), "panicked");
    }));
}

/// What a panic says of itself.
pub fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
