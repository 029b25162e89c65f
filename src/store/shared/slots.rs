//! Which server keeps which items, where servers hand that over to each other: each item is in one of many slots, and each slot
//! on one server.

use std::ops::RangeInclusive;

use crc::{CRC_16_XMODEM, Crc};
use tokio::sync::watch;

/// The number of slots of a cluster.
pub(super) const SLOTS: usize = 1 << 14;

static CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of all items whose names have this text in braces, or are this text and have no braces.
pub(super) fn slot_of(text: &[u8]) -> usize {
    usize::from(CHECKSUM.checksum(text)) % SLOTS
}

/// Some slots that are on the same server, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub slots: RangeInclusive<usize>,
    pub server: String,
}

/// All parts of a cluster, for all that speak to it. Each connection that is made learns them; empty before.
pub(super) type SlotMap = watch::Sender<Vec<Part>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_the_servers_compute() {
        // As `CLUSTER KEYSLOT` answers.
        for (text, slot) in [("123456789", 12_739), ("foo", 12_182), ("", 0)] {
            assert_eq!(slot_of(text.as_bytes()), slot, "{text}");
        }
    }
}
