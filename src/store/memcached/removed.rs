//! Limits that a reload has removed: nothing stays of them in this process. In Memcached their counters end by themselves.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::book::Book;
use crate::clock::{self, Time};
use crate::limit::Limit;
use crate::store::LimitChanges;
use crate::store::reloads::Reloads;

/// So many cells are looked at before others have their turn: some tens of microseconds.
const STEP: usize = 1024;
/// What is still needed, because it is owed to a server that is away for example, is looked at again after so long.
const AGAIN: Duration = Duration::from_secs(10);

/// The limits that there are since the last reload.
#[derive(Debug, Default)]
pub(super) struct InUse {
    reloads: Mutex<Arc<Reloads>>,
    changed: Notify,
}

impl InUse {
    /// A reload takes effect at `now`.
    pub(super) fn change(&self, changes: &LimitChanges, now: Time) {
        let mut reloads = self.reloads.lock();
        *reloads = Arc::new(reloads.next(changes, now));
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
    let reloads = in_use.reloads.lock().clone();
    let (mut from, mut left) = (0, 0);
    loop {
        let is_in_use = |limit: &Limit| reloads.is_in_use(limit);
        let Some(stay) = book.ledger.borrow_mut().forget(from..from + STEP, is_in_use, clock::now()) else {
            return left;
        };
        from += STEP;
        left += stay;
        yield_now().await;
    }
}
