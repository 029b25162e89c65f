//! Logs panics through the queue like all lines, because a direct write to standard error could block the worker that panics.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::thread;

pub(super) fn log() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let place = panic.location().map(ToString::to_string);
        // Captured only if the environment enables it (`RUST_BACKTRACE`).
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let (thread, place, error) = (thread.name(), place.as_deref(), text(panic.payload()));
        tracing::error!(thread, place, error, backtrace = backtrace.as_deref(), "panicked");
    }));
}

pub fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
