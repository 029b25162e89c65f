//! The threads that serve requests: how a worker begins and runs; and at the end of the process, which of them still serve and
//! how the others have ended.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::stores;
use crate::admin::View;
use crate::base::metrics::{Counter, PerWorker};
use crate::base::random::Random;
use crate::base::threads::local_runtime;
use crate::proxy::log::panic_text;
use crate::proxy::telemetry::{AccessLogOutput, AccessLogger};
use crate::proxy::{BodyMemory, ConnectionContext, Worker, WorkerSnapshots};
use crate::server::{self, ConnectedClient, ListenerChange, Stage};
use crate::store::Store;
use crate::upstream::ConnectionPools;

pub(super) struct Plan {
    pub(super) index: usize,
    pub(super) listeners: mpsc::UnboundedReceiver<ListenerChange>,
    pub(super) stores: mpsc::UnboundedReceiver<Arc<Store>>,
    pub(super) stage: watch::Receiver<Stage>,
    pub(super) access_log: AccessLogOutput,
    pub(super) heartbeats: Arc<PerWorker<Counter>>,
    pub(super) view: Arc<View>,
}

/// Starts the thread of a worker. It reports to `done` when it has served its last request, or why it has ended.
pub(super) fn start(plan: Plan, done: mpsc::UnboundedSender<(usize, io::Result<usize>)>) -> io::Result<()> {
    let index = plan.index;
    thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
        // Without a receiver, the process is about to end.
        let served = |served| _ = done.send((index, served));
        if let Err(error) = whole(|| local_runtime()?.block_on(work(plan, served))) {
            let _ = done.send((index, Err(error)));
        }
    })?;
    Ok(())
}

fn whole<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // Nothing that the thread leaves behind is used again.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(io::Error::other(format!("it panicked: {}", panic_text(&*panic)))))
}

/// Serves requests until the process is told to stop, and reports to `served` how many requests were cut off. Then runs the
/// background work of its stores until they are closed.
async fn work(plan: Plan, served: impl Fn(io::Result<usize>)) -> io::Result<()> {
    let Plan { index, listeners, stores, stage, access_log, heartbeats, view } = plan;
    let pools = Rc::new(ConnectionPools::default());
    let mut background = JoinSet::new();
    let (watched, in_force) = (pools.clone(), view.snapshot.clone());
    background.spawn_local(async move { watched.watch(move || in_force.load().keeps()).await });
    let logger = Rc::new(AccessLogger::new(access_log));
    let logging = logger.clone();
    background.spawn_local(async move { logging.run().await });
    let snapshots = WorkerSnapshots::new(view.snapshot.clone(), index, logger.clone());
    let sampler = snapshots.sampler.clone();
    let (tokens, random) = (RefCell::default(), Random::seeded()?);
    let (challenges, readiness) = (view.acme.challenges().clone(), view.readiness.clone());
    let body_memory = BodyMemory::default();
    let worker = Rc::new(Worker { index, snapshots, pools, tokens, body_memory, random, challenges, readiness });
    let (regular, sampling) = (worker.clone(), sampler.clone());
    background.spawn_local(async move {
        loop {
            sleep(Duration::from_secs(1)).await;
            sampling.next_second();
            heartbeats.of(regular.index).one();
            // Without requests, only this line releases a snapshot that is no longer in force.
            drop(regular.snapshots.current());
        }
    });
    let mut carrying = pin!(stores::carry(stores, index));
    let (tls, challenges, limits) = (view.tls.clone(), view.acme.challenges().clone(), view.connections.clone());
    let connected = move |client: &ConnectedClient| ConnectionContext::new(worker.clone(), client);
    let ended = tokio::select! {
        ended = server::run(listeners, tls, challenges, limits, stage, connected) => ended?,
        error = server::panicked(&mut background) => return Err(error),
        // A worker always has a store.
        () = &mut carrying => return Err(io::Error::other("its stores were closed")),
    };
    sampler.next_second();
    logger.flush();
    served(Ok(ended));
    carrying.await;
    Ok(())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_what_happened() {
        assert!(whole(|| Ok(())).is_ok());
        assert_eq!(whole::<()>(|| Err(io::Error::other("no timer"))).unwrap_err().to_string(), "no timer");
        let panics: [fn() -> io::Result<()>; 2] = [|| panic!("a bug"), || panic!("a bug in {}", "here")];
        let texts = panics.map(|panic| whole(panic).unwrap_err().to_string());
        assert_eq!(texts, ["it panicked: a bug", "it panicked: a bug in here"]);
    }
}
