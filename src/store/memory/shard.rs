//! A shard of the memory store: cells in the order of their use, and the bytes that they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashlink::LinkedHashMap;

use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};
use crate::store::{Ask, Reserved, Ticket, Watch};

/// The bytes of a cell without its own allocations: a node of the map with two links.
const NODE: usize = allocated(size_of::<(Fingerprint, CellEntry)>() + 2 * size_of::<usize>());
/// At most one in so many cells is evicted at a time, since dropping single cells frees no memory.
const EVICTED_FRACTION: usize = 8;

/// The estimated size of an allocation: with a word for the allocator, in steps of 16, at least 32.
const fn allocated(bytes: usize) -> usize {
    let taken = (bytes + 8).next_multiple_of(16);
    if taken < 32 { 32 } else { taken }
}

/// The size of the map's table for so many cells: a pointer and a byte for each slot. The number of slots is a power of two,
/// and an eighth of them stays empty.
fn table(cells: usize) -> usize {
    if cells == 0 { 0 } else { allocated((cells * 8 / 7 + 1).next_power_of_two() * (size_of::<usize>() + 1) + 16) }
}

#[derive(Debug)]
pub(super) struct CellEntry {
    pub(super) cell: Cell,
    pub(super) limit: Arc<Limit>,
    /// Identifies the cell: no other cell of the store has this number, or had it recently.
    pub(super) number: u32,
    /// The bytes of the cell's own allocations, as counted in the shard's `heap`. They always fit.
    counted: u32,
}

impl CellEntry {
    pub(super) fn new(cell: Cell, limit: Arc<Limit>, number: u32) -> Self {
        Self { cell, limit, number, counted: 0 }
    }

    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.cell.is_spent(self.limit.rates(), now)
    }

    /// Returns by how many bytes the cell has grown since it was measured last.
    pub(super) fn measure(&mut self) -> isize {
        let bytes: usize = self.cell.allocations().map(allocated).sum();
        let before = self.counted();
        self.counted = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.counted().cast_signed() - before.cast_signed()
    }

    fn counted(&self) -> usize {
        self.counted as usize
    }

    pub(super) fn charge(&mut self, ask: &Ask<'_>, now: Time, reserved: &mut Vec<Reserved>) {
        if ask.settles {
            let reservation = ask.limit.reserve(&mut self.cell, now, ask.cost);
            let ticket = Ticket { limit: ask.limit.clone(), key: ask.key, cell: self.number, reservation };
            let (requested, watch) = (ask.limit.clone(), Watch::default());
            reserved.push(Reserved { place: ask.place, ticket, requested, refunded: None, watch });
        } else {
            ask.limit.charge(&mut self.cell, now, ask.cost);
        }
    }
}

/// Cells in the order of their last use. The hasher's seed is new in every process, so clients cannot prepare collisions.
#[derive(Debug, Default)]
pub(super) struct Shard {
    cells: LinkedHashMap<Fingerprint, CellEntry, RandomState>,
    /// The number of the map's nodes, with those of dropped cells, which the map keeps for new ones.
    nodes: usize,
    /// The bytes of the cells' own allocations.
    heap: usize,
    /// The bytes of this shard that the store's total includes.
    reported: usize,
}

impl Shard {
    /// The entry becomes the most recently used.
    pub(super) fn get_mut(&mut self, key: &Fingerprint) -> Option<&mut CellEntry> {
        self.cells.to_back(key)
    }

    pub(super) fn peek_mut(&mut self, key: &Fingerprint) -> Option<&mut CellEntry> {
        self.cells.get_mut(key)
    }

    pub(super) fn contains_key(&self, key: &Fingerprint) -> bool {
        self.cells.contains_key(key)
    }

    /// The least recently used first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Fingerprint, &CellEntry)> {
        self.cells.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// The key must have no entry.
    pub(super) fn insert(&mut self, key: Fingerprint, mut entry: CellEntry) {
        let grown = entry.measure();
        self.cells.insert(key, entry);
        self.nodes = self.nodes.max(self.cells.len());
        self.grow(grown);
    }

    pub(super) fn remove(&mut self, key: &Fingerprint) -> Option<CellEntry> {
        let entry = self.cells.remove(key)?;
        self.heap = self.heap.saturating_sub(entry.counted());
        Some(entry)
    }

    pub(super) fn grow(&mut self, by: isize) {
        self.heap = self.heap.saturating_add_signed(by);
    }

    /// Returns whether the dropped entry was still in use.
    pub(super) fn remove_oldest(&mut self, now: Time) -> bool {
        let Some((_, entry)) = self.cells.pop_front() else { return false };
        self.heap = self.heap.saturating_sub(entry.counted());
        !entry.is_spent(now)
    }

    /// Drops the least recently used entries, but none of the last `kept`, until `bytes` are free or an eighth of the entries
    /// is dropped. Only a pass through the whole map frees their nodes. Returns how many were still in use.
    pub(super) fn evict(&mut self, bytes: usize, kept: usize, now: Time) -> u64 {
        let wanted = self.bytes().saturating_sub(bytes);
        let most = (self.len() / EVICTED_FRACTION + 1).min(self.len().saturating_sub(kept));
        let mut in_use = 0;
        for _ in 0..most {
            if self.bytes() <= wanted {
                return in_use;
            }
            in_use += u64::from(self.remove_oldest(now));
        }
        self.release();
        in_use
    }

    /// Drops entries that are not `needed`, and measures the others.
    pub(super) fn sweep(&mut self, needed: impl Fn(&Fingerprint, &CellEntry) -> bool) {
        let Self { cells, heap, .. } = self;
        *heap = 0;
        cells.retain(|key, entry| {
            let stays = needed(key, entry);
            if stays {
                entry.measure();
                *heap += entry.counted();
            }
            stays
        });
        if self.len() < self.nodes / 2 {
            self.release();
        }
    }

    fn release(&mut self) {
        if self.nodes > self.len() {
            self.cells.shrink_to_fit();
            self.nodes = self.len();
        }
    }

    fn bytes(&self) -> usize {
        self.nodes * NODE + table(self.nodes) + self.heap
    }

    /// Adds the change since the last call to the `total` of all shards. Returns the total if it has grown.
    pub(super) fn report_to(&mut self, total: &AtomicUsize) -> Option<usize> {
        let bytes = self.bytes();
        let before = std::mem::replace(&mut self.reported, bytes);
        if bytes > before {
            Some(total.fetch_add(bytes - before, Ordering::Relaxed) + bytes - before)
        } else {
            if bytes < before {
                total.fetch_sub(before - bytes, Ordering::Relaxed);
            }
            None
        }
    }
}
