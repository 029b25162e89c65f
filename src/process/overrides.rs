//! The overrides of the admin API on the control thread: requests change them, and they expire.

use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::apply::InForce;
use crate::admin::{OverrideChange, OverrideRequest};
use crate::request::decide::{NotSet, TemporaryOverrides};

/// One snapshot is built for this many requests at most.
const MOST_AT_ONCE: usize = 32;

/// Waits for requests, or until an override expires; then the result is empty. Cancelling the wait loses nothing.
pub(super) async fn due(
    requested: &mut mpsc::Receiver<OverrideRequest>,
    temporary: &Mutex<TemporaryOverrides>,
) -> Vec<OverrideRequest> {
    let next_end = temporary.lock().next_end();
    let mut requests = Vec::new();
    tokio::select! {
        _ = requested.recv_many(&mut requests, MOST_AT_ONCE) => {}
        Some(()) = OptionFuture::from(next_end.map(sleep_until)) => {}
    }
    requests
}

/// Ends expired overrides, applies these requests, and answers them once everything is in force.
pub(super) fn apply(requests: Vec<OverrideRequest>, in_force: &InForce) {
    let mut temporary = in_force.view.temporary.lock();
    for (limit, count) in temporary.end(Instant::now()) {
        tracing::info!(limit, count, "overrides of the admin API have ended");
    }
    let config = in_force.config();
    let changed: Vec<_> = requests
        .into_iter()
        .map(|OverrideRequest { limit, key, change, answer }| {
            let limit = config.limits.iter().find(|configured| configured.name == limit).ok_or(NotSet::Changed);
            let result = limit.and_then(|limit| match change {
                OverrideChange::Set(allowance, ends) => temporary.set(limit, key, &allowance, ends),
                OverrideChange::Remove => {
                    temporary.remove(limit, &key);
                    Ok(())
                }
            });
            (answer, result)
        })
        .collect();
    in_force.apply_overrides(&temporary);
    drop(temporary);
    for (answer, result) in changed {
        // The caller may have gone.
        let _ = answer.send(result);
    }
}
