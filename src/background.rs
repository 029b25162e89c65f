//! Work that may never end, such as reading a file on a mount whose server is gone.
//!
//! Nothing can stop a thread that the kernel holds in such a read. So the work has a thread of its own, and whoever
//! wants its result waits until a time limit only.

use std::fmt;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Work that was started.
#[derive(Debug)]
pub struct Background<T> {
    result: oneshot::Receiver<T>,
    limit: Duration,
    deadline: Instant,
    thread: JoinHandle<()>,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// The time limit, this one, is over.
    TimedOut(Duration),
    /// The work panicked.
    Panicked,
}

impl fmt::Display for NoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(limit) => {
                let limit = humantime::format_duration(*limit);
                write!(f, "not done within {limit}: does the disk or the server that the files are on answer?")
            }
            Self::Panicked => f.write_str("it failed unexpectedly"),
        }
    }
}

impl std::error::Error for NoResult {}

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
    /// Starts `work` on a thread of this name. It is told by its argument whether its result is still wanted.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(
        name: &str,
        limit: Duration,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, result) = oneshot::channel();
        let deadline = Instant::now() + limit;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = work(&|| !sender.is_closed());
            // Who gave up does not want it.
            let _ = sender.send(result);
        })?;
        Ok(Self { result, limit, deadline, thread })
    }

    /// The result. Waiting for it may be given up and begun again; once it was returned there is none.
    ///
    /// # Errors
    /// When it does not come in time. From then on it is not wanted any more.
    pub async fn result(&mut self) -> Result<T, NoResult> {
        match timeout_at(self.deadline, &mut self.result).await {
            Ok(result) => result.map_err(|_| NoResult::Panicked),
            Err(_) => {
                self.result.close();
                Err(NoResult::TimedOut(self.limit))
            }
        }
    }

    /// Waits for the result where there is nothing else to do.
    ///
    /// # Errors
    /// When it does not come in time, or the system refuses to wait.
    pub fn wait(mut self) -> io::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(runtime.block_on(self.result())?)
    }

    /// Whether its thread is still there.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}
