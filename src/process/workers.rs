//! The workers at the end of the process: which still serve requests, and how the others have ended.

use std::collections::BTreeSet;
use std::io;

use tokio::sync::mpsc;

/// For each worker that has served its last request, by its index: how many requests it cuts off, or its error. The channel
/// closes after the last worker.
pub(super) type Finished = mpsc::UnboundedReceiver<(usize, io::Result<usize>)>;

pub(super) struct Workers {
    serving: BTreeSet<usize>,
    finished: Finished,
    /// In requests.
    pub(super) cut_off: usize,
    pub(super) failed: Option<io::Error>,
}

impl Workers {
    pub(super) fn new(count: usize, finished: Finished) -> Self {
        Self { serving: (0..count).collect(), finished, cut_off: 0, failed: None }
    }

    pub(super) fn end(&mut self, worker: usize, ended: io::Result<usize>) {
        self.serving.remove(&worker);
        match ended {
            Ok(requests) => self.cut_off += requests,
            Err(error) => {
                tracing::error!(worker, %error, "a worker ended");
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Waits until all have served their last request. If one fails, the others still finish theirs.
    pub(super) async fn all_served(&mut self) {
        while !self.serving.is_empty()
            && let Some((worker, ended)) = self.finished.recv().await
        {
            self.end(worker, ended);
        }
    }

    /// Waits until all have ended, after their stores. Then each request that was cut off has its line in the log.
    pub(super) async fn all_ended(&mut self) {
        while let Some((worker, ended)) = self.finished.recv().await {
            self.end(worker, ended);
        }
    }
}
