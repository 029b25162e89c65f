//! What requests in flight have reserved of watched limits: it is charged, but perhaps never used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::{KeyText, LimitNotices};
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Limit, Reached};
use crate::store::Watcher;

/// The sum for each key, which is in the domain of its limit.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<HashMap<Fingerprint, u64, RandomState>>);

/// A request that has reserved something of one key.
pub(super) struct WatchedRequest {
    notices: Arc<LimitNotices>,
    key: Fingerprint,
    text: KeyText,
    /// Never more than its part of the sum.
    reserved: AtomicU64,
}

impl InFlight {
    pub(super) fn of(&self, key: Fingerprint) -> u64 {
        self.0.lock().get(&key).copied().unwrap_or(0)
    }

    fn add(&self, key: Fingerprint, cost: u64) {
        let mut sums = self.0.lock();
        let sum = sums.entry(key).or_default();
        *sum = sum.saturating_add(cost);
    }

    fn remove(&self, key: Fingerprint, cost: u64) {
        if let Entry::Occupied(mut sum) = self.0.lock().entry(key) {
            match sum.get().saturating_sub(cost) {
                0 => drop(sum.remove()),
                left => *sum.get_mut() = left,
            }
        }
    }
}

impl WatchedRequest {
    pub(super) fn new(notices: Arc<LimitNotices>, key: Fingerprint, text: KeyText) -> Self {
        Self { notices, key, text, reserved: AtomicU64::new(0) }
    }
}

impl Watcher for WatchedRequest {
    fn tell(&self, limit: &Limit, reached: &Reached) {
        self.notices.tell(self.key, || self.text.clone(), limit, reached);
    }

    fn reserve(&self, cost: u64) {
        self.notices.shared.in_flight.add(self.key, cost);
        self.reserved.fetch_add(cost, Ordering::Relaxed);
    }

    fn release(&self, cost: u64) {
        self.reserved.fetch_sub(cost, Ordering::Relaxed);
        self.notices.shared.in_flight.remove(self.key, cost);
    }

    fn reserved_by_others(&self) -> u64 {
        self.notices.reserved(self.key).saturating_sub(self.reserved.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_reserved_is_known_until_it_is_settled() {
        let notices = Arc::new(LimitNotices::default());
        let watch = |key: &[u8]| {
            let text = KeyText { text: String::new(), is_whole: true };
            WatchedRequest::new(notices.clone(), Fingerprint::of(key), text)
        };
        let [one, other, stranger] = [watch(b"a"), watch(b"a"), watch(b"b")];
        one.reserve(7);
        one.reserve(2);
        other.reserve(5);
        let others = || [&one, &other, &stranger].map(Watcher::reserved_by_others);
        assert_eq!(others(), [5, 9, 0]);
        one.release(2);
        assert_eq!(others(), [5, 7, 0]);
        one.release(7);
        other.release(5);
        assert_eq!(others(), [0; 3]);
        assert!(notices.shared.in_flight.0.lock().is_empty(), "keys without reservations take no memory");
    }
}
