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

/// Runs a future on this thread. Does not wait for what it leaves behind: a thread with a DNS lookup, or with a file on a
/// file system that does not answer, may be blocked for longer.
///
/// # Errors
/// When the system refuses what a runtime needs.
pub fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = local_runtime()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}
