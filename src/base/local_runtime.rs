//! The runtime of a thread that shares nothing with others: its tasks stay on it, so they need no locks.

use std::io;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

/// A runtime for the tasks of this thread.
///
/// # Errors
/// When the system refuses what it needs.
pub fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}
