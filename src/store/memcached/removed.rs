//! Limits that a reload has removed: nothing stays of them in this process. In Memcached their counters end by themselves.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::book::Book;
use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;

/// So many cells are looked at before others have their turn: some tens of microseconds.
const STEP: usize = 1024;
/// What is still needed, because it is owed to a server that is away for example, is looked at again after so long.
const AGAIN: Duration = Duration::from_secs(10);

/// The limits that there are since the last reload.
#[derive(Debug, Default)]
pub(super) struct InUse {
    ids: Mutex<Arc<HashSet<Fingerprint, RandomState>>>,
    changed: Notify,
}

impl InUse {
    /// A reload has come, and these are the limits now.
    pub(super) fn set<'a>(&self, limits: impl Iterator<Item = &'a Arc<Limit>>) {
        *self.ids.lock() = Arc::new(limits.map(|limit| limit.id()).collect());
        self.changed.notify_one();
    }
}

/// Forgets the cells of limits that are gone, after each reload.
pub(super) async fn forget(book: &Book, in_use: &InUse) {
    in_use.changed.notified().await;
    loop {
        if forget_once(book, in_use).await == 0 {
            in_use.changed.notified().await;
        } else {
            // It makes no difference which of them is over.
            let _ = timeout(AGAIN, in_use.changed.notified()).await;
        }
    }
}

/// Returns how many cells stay although their limit is gone.
async fn forget_once(book: &Book, in_use: &InUse) -> usize {
    let ids = in_use.ids.lock().clone();
    let (mut from, mut left) = (0, 0);
    loop {
        let is_in_use = |limit: &Limit| ids.contains(&limit.id());
        let Some(stay) = book.ledger.borrow_mut().forget(from..from + STEP, is_in_use, clock::now()) else {
            return left;
        };
        from += STEP;
        left += stay;
        yield_now().await;
    }
}
