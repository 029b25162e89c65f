//! Which server keeps which items, where servers hand that over to each other: each item is in one of many slots, and each slot
//! on one server.

use std::ops::RangeInclusive;

use parking_lot::Mutex;
use redis_protocol::redis_keyslot;
use tokio::sync::Notify;

/// The number of slots of a cluster.
pub(super) const SLOTS: usize = 1 << 14;

/// The slot of all items whose names have this text in braces, or are this text.
pub(super) fn slot_of(text: &[u8]) -> usize {
    redis_keyslot(text).into()
}

/// Some slots that are on the same server, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub slots: RangeInclusive<usize>,
    pub server: String,
}

/// What is known of a cluster, for all that speak to it. Each connection that is made learns where the slots are.
#[derive(Debug, Default)]
pub struct SlotMap {
    /// Empty before the first connection.
    pub(super) parts: Mutex<Vec<Part>>,
    /// Notified when `parts` were learned.
    pub(super) learned: Notify,
    /// Notified when something may have moved.
    pub(super) stale: Notify,
}

impl SlotMap {
    pub(super) fn learn(&self, parts: Vec<Part>) {
        *self.parts.lock() = parts;
        self.learned.notify_one();
    }
}
