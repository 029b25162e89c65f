//! The end of the process: requests in flight are finished before a deadline.

use std::io;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::signals::{Signals, Told};
use crate::config::Server;
use crate::server::Stage;

/// Stops to accept connections and waits for the requests in flight. Returns whether all of them have ended in time.
pub(super) async fn drain(
    server: &Server,
    stage: &watch::Sender<Stage>,
    finished: &mut mpsc::Receiver<io::Result<usize>>,
) -> io::Result<bool> {
    let (delay, deadline) = (server.drain_delay, server.drain_timeout);
    if !delay.is_zero() {
        // Load balancers notice that the gateway is not ready before connections are refused.
        tracing::info!(?delay, "not ready");
        sleep(delay).await;
    }
    tracing::info!(?deadline, "draining");
    let _ = stage.send(Stage::Draining);
    match timeout(deadline, all_ended(finished, &mut 0)).await {
        Ok(ended) => ended.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Waits for all workers and adds up how many requests they have cut off. If one fails, the others still finish theirs.
pub(super) async fn all_ended(finished: &mut mpsc::Receiver<io::Result<usize>>, cut_off: &mut usize) -> io::Result<()> {
    let mut all = Ok(());
    while let Some(ended) = finished.recv().await {
        all = all.and(ended.map(|requests| *cut_off += requests));
    }
    all
}

/// Waits until the process is told to stop. A reload is ignored, because it is too late for it.
pub(super) async fn told_to_stop(signals: &mut Signals) {
    while signals.next().await == Told::Reload {
        tracing::warn!("not reloaded: the gateway is about to stop");
    }
}
