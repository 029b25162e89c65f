//! Threads beside the workers: runtimes whose tasks stay on their thread, so they need no locks; and work that may never
//! end, such as reading a file on a mounted file system whose server is gone.
//!
//! The kernel may block a thread in such a read, and then nothing can stop the thread. So the work runs on its own thread,
//! and the caller waits for the result only until a time limit.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Work on a thread of its own, whose result somebody waits for.
pub struct Background<T> {
    result: oneshot::Receiver<T>,
    limit: Duration,
    deadline: Instant,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoResult {
    /// The time limit.
    #[error("not done within {}: check that the disk or the server with the files answers", humantime::format_duration(*.0))]
    TimedOut(Duration),
    #[error("it failed unexpectedly")]
    Panicked,
}

impl From<NoResult> for io::Error {
    fn from(missing: NoResult) -> Self {
        let kind = match missing {
            NoResult::TimedOut(_) => io::ErrorKind::TimedOut,
            NoResult::Panicked => io::ErrorKind::Other,
        };
        Self::new(kind, missing)
    }
}

impl<T: Send + 'static> Background<T> {
    /// Starts `work` on a thread with this name. The argument of `work` tells whether the result is still wanted. Fails when
    /// the system cannot start a thread.
    pub fn start(
        name: &str,
        limit: Duration,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, result) = oneshot::channel();
        let deadline = Instant::now() + limit;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = work(&|| !sender.is_closed());
            // Without a receiver the result is not wanted any more.
            let _ = sender.send(result);
        })?;
        Ok(Self { result, limit, deadline, thread })
    }

    /// Waits for the result. The future may be dropped and created again, until one has returned the result. Fails when the
    /// time limit is over. Then the result is not wanted any more.
    pub async fn result(&mut self) -> Result<T, NoResult> {
        match timeout_at(self.deadline, &mut self.result).await {
            Ok(result) => result.map_err(|_| NoResult::Panicked),
            Err(_) => {
                self.result.close();
                Err(NoResult::TimedOut(self.limit))
            }
        }
    }

    /// Blocks until the result is there. Fails when the time limit is over, or no timer can be created.
    pub fn wait(mut self) -> io::Result<T> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        Ok(runtime.block_on(self.result())?)
    }

    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

/// For the tasks of this thread. Fails when the system refuses what the runtime needs.
pub fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// Runs a future on this thread. Does not wait for what it leaves behind: a thread with a DNS lookup, or with a file on a file
/// system that does not answer, may be blocked for longer. Fails when the system refuses what a runtime needs.
pub fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = local_runtime()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}
