//! Resets: a key begins anew at all gateways.
//!
//! A reset must not delete counters: a gateway that knows the counts would take them for lost and write them again.
//! Instead it stores 0 in every counter that matters, whether it exists or not, and a state in which nothing is
//! counted. Each item carries the number of the reset in its flags, which stay when it is added to or appended to.
//!
//! Numbers grow from one reset of a key to the next. A gateway that reads a higher number than it knows believes what
//! it reads, as if it had never known the key. What it has not written yet is counted after the reset. But what the
//! gateway that resets the key has not written before, it need not write any more: the exchange stands for that, too.
//! If two gateways reset the key at the same time, the lower number may be written last. Then no item has the higher one, and
//! who knows that believes the lower one.
//!
//! A reset goes through the coordinator like all else, so it is in order with the decisions of its gateway.

use std::mem;

use super::protocol::Item;

/// How a cell stands to the resets of its key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resets {
    /// The number of the last reset that was seen; 0 if the key was not reset.
    pub(super) seen: u32,
    /// The number that is to be written, and the one that the exchange under way writes; 0 if there is none.
    pub(super) next: u32,
    pub(super) sent: u32,
}

/// What the numbers of the items say that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResetOutcome {
    /// Whether the key was reset, so that what was charged before does not count any more.
    pub(super) is_reset: bool,
    /// Every item that was read has this number, or a higher one. 0 if nothing could be read.
    pub(super) everywhere: u32,
}

impl Resets {
    /// The number that the exchange which is being collected has to write.
    pub(super) fn send(&mut self) -> Option<u32> {
        self.sent = mem::take(&mut self.next);
        Some(self.sent).filter(|sent| *sent > 0)
    }

    /// Whether an item is known to be there since the last reset. So it has not been lost and begun anew, and what it
    /// says counts, even if it is less than what is known.
    pub(super) fn is_certain(self, item: &Item<'_>) -> bool {
        self.seen > 0 && item.number == self.seen
    }
}
