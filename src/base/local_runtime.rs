//! The runtime of a thread whose tasks stay on it, so they need no locks.

use std::io;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

/// For the tasks of this thread.
///
/// # Errors
/// When the system refuses what the runtime needs.
pub fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}
