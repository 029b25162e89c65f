//! Which server keeps which items, where servers hand that over to each other: each item is in one of many slots, and each slot
//! on one server.

use std::ops::RangeInclusive;

use redis_protocol::redis_keyslot;
use tokio::sync::{Notify, watch};

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

/// What is known of a cluster, for all that speak to it.
#[derive(Debug, Default)]
pub struct SlotMap {
    /// Each connection that is made learns them; empty before.
    pub(super) parts: watch::Sender<Vec<Part>>,
    /// Notified when something may have moved.
    pub(super) stale: Notify,
}
