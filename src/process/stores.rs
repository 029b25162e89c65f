//! The stores of the workers: the one in force, and those that a reload has replaced.
//!
//! A request keeps the store that it began with, so that its reservations are settled there. A replaced store closes when its
//! last request has ended. Every worker carries messages to the driver of each store until that store is closed. At the end
//! the control thread closes the last store and waits for all.

use std::panic::resume_unwind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::store::Store;

/// How long the process waits for its stores at the end. `[store] timeout` is at most 10 seconds.
const MOST: Duration = Duration::from_secs(11);

pub(super) struct Stores {
    workers: Vec<mpsc::UnboundedSender<Arc<Store>>>,
    open: Vec<Weak<Store>>,
    ending: JoinSet<()>,
}

impl Stores {
    /// Each worker gets one of the receivers and passes it to [`carry`].
    pub(super) fn new(workers: usize) -> (Self, Vec<mpsc::UnboundedReceiver<Arc<Store>>>) {
        let (workers, stores) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        (Self { workers, open: Vec::new(), ending: JoinSet::new() }, stores)
    }

    /// Lets all workers run the background work of this store, however short it is in force.
    pub(super) fn open(&mut self, store: &Arc<Store>) {
        while self.ending.try_join_next().is_some() {}
        if let Some(ended) = store.ended() {
            self.ending.spawn_local(ended);
        }
        self.open.retain(|store| store.strong_count() > 0);
        self.open.push(Arc::downgrade(store));
        for worker in &self.workers {
            // A worker that has ended uses no store.
            let _ = worker.send(store.clone());
        }
    }

    /// Closes all stores after the last request, and waits until all writes are done. A request that was cut off may still
    /// refer to a store.
    pub(super) async fn close(self) {
        drop(self.workers);
        self.open.iter().filter_map(Weak::upgrade).for_each(|store| store.close());
        if timeout(MOST, self.ending.join_all()).await.is_err() {
            tracing::error!("a store does not stop: what was admitted last may not be counted");
        }
    }
}

/// Runs the background work of a worker's stores, until no more can come and all are closed.
pub(super) async fn carry(mut stores: mpsc::UnboundedReceiver<Arc<Store>>, worker: usize) {
    let mut carried = JoinSet::new();
    let mut is_open = true;
    while is_open || !carried.is_empty() {
        tokio::select! {
            store = stores.recv(), if is_open => match store {
                Some(store) => {
                    if let Some(carrying) = store.carry(worker) {
                        carried.spawn_local(carrying);
                    }
                }
                None => is_open = false,
            },
            Some(ended) = carried.join_next() => {
                if let Err(panic) = ended.map_err(JoinError::try_into_panic) {
                    // A worker cannot decide without its store, so the panic ends the worker.
                    panic.map_or_else(drop, |panic| resume_unwind(panic));
                }
            }
        }
    }
}
