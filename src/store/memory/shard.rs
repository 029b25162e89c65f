//! A part of the memory store: cells in the order of their use, and the bytes that they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use hashlink::LinkedHashMap;

use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit};
use crate::store::{Ask, Reserved};

/// What a cell takes besides its own allocations: a node of the map, with two links.
const NODE: usize = allocated(size_of::<(Fingerprint, Entry)>() + 2 * size_of::<usize>());
/// The share of cells that is dropped at once where single ones free nothing.
const EVICTED_SHARE: usize = 8;

/// The bytes that the system's allocator takes for an allocation: a word before it, in steps of 16, from 32 on.
const fn allocated(bytes: usize) -> usize {
    let taken = (bytes + 8).next_multiple_of(16);
    if taken < 32 { 32 } else { taken }
}

/// The bytes of the map's table with room for so many cells: a pointer and a byte for each place, a power of two of
/// them, of which an eighth stays empty.
fn table(cells: usize) -> usize {
    if cells == 0 { 0 } else { allocated((cells * 8 / 7 + 1).next_power_of_two() * (size_of::<usize>() + 1) + 16) }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) cell: Cell,
    pub(super) limit: Arc<Limit>,
    /// No other cell of the store has it, nor had it lately.
    pub(super) number: u32,
    /// The bytes of the cell's own allocations, as they are counted in the shard: far less than this holds.
    counted: u32,
}

impl Entry {
    pub(super) fn new(cell: Cell, limit: Arc<Limit>, number: u32) -> Self {
        Self { cell, limit, number, counted: 0 }
    }

    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.cell.is_spent(self.limit.rates(), now)
    }

    /// Looks how large the cell is now; by how many bytes the shard is to be corrected.
    pub(super) fn weigh(&mut self) -> isize {
        let bytes: usize = self.cell.allocations().map(allocated).sum();
        let before = self.counted();
        self.counted = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.counted().cast_signed() - before.cast_signed()
    }

    fn counted(&self) -> usize {
        self.counted as usize
    }

    /// Charges what an ask costs, or reserves it.
    pub(super) fn charge(&mut self, ask: &Ask<'_>, now: Time, reserved: &mut Vec<Reserved>) {
        if ask.settles {
            let reservation = ask.limit.reserve(&mut self.cell, now, ask.cost);
            reserved.push(Reserved { place: ask.place, reservation, cell: self.number, spared: None, by: None });
        } else {
            ask.limit.charge(&mut self.cell, now, ask.cost);
        }
    }
}

/// Cells in the order of their use. The hasher is seeded anew in every process, so that nobody can prepare keys that
/// collide.
#[derive(Debug, Default)]
pub(super) struct Shard {
    cells: LinkedHashMap<Fingerprint, Entry, RandomState>,
    /// The nodes of the map: it keeps those of dropped cells for new ones.
    nodes: usize,
    /// What the cells have allocated themselves, in bytes.
    heap: usize,
    /// The bytes that were last added to the total of the store.
    told: usize,
}

impl Shard {
    /// The entry of this key, if there is one: its most recent use.
    pub(super) fn get_mut(&mut self, key: &Fingerprint) -> Option<&mut Entry> {
        self.cells.to_back(key)
    }

    /// The entry of this key, if there is one.
    pub(super) fn peek_mut(&mut self, key: &Fingerprint) -> Option<&mut Entry> {
        self.cells.get_mut(key)
    }

    pub(super) fn contains_key(&self, key: &Fingerprint) -> bool {
        self.cells.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Adds the entry of a key that has none.
    pub(super) fn insert(&mut self, key: Fingerprint, mut entry: Entry) {
        let grown = entry.weigh();
        self.cells.insert(key, entry);
        self.nodes = self.nodes.max(self.cells.len());
        self.grow(grown);
    }

    /// Takes the entry of this key out, if there is one.
    pub(super) fn remove(&mut self, key: &Fingerprint) -> Option<Entry> {
        let entry = self.cells.remove(key)?;
        self.heap = self.heap.saturating_sub(entry.counted());
        Some(entry)
    }

    /// Counts what an entry has grown by.
    pub(super) fn grow(&mut self, by: isize) {
        self.heap = self.heap.saturating_add_signed(by);
    }

    /// Drops the entry that was not used for longest; whether that still mattered.
    pub(super) fn remove_coldest(&mut self, now: Time) -> bool {
        let Some((_, entry)) = self.cells.pop_front() else { return false };
        self.heap = self.heap.saturating_sub(entry.counted());
        !entry.is_spent(now)
    }

    /// Drops the entries that were not used for longest, but none of the last `spared`: as many as it takes to free
    /// `bytes`, or an eighth, since their nodes can be freed only when all of the map is gone through. How many of them
    /// still mattered.
    pub(super) fn evict(&mut self, bytes: usize, spared: usize, now: Time) -> u64 {
        let wanted = self.bytes().saturating_sub(bytes);
        let most = (self.len() / EVICTED_SHARE + 1).min(self.len().saturating_sub(spared));
        let mut mattered = 0;
        for _ in 0..most {
            if self.bytes() <= wanted {
                return mattered;
            }
            mattered += u64::from(self.remove_coldest(now));
        }
        self.release();
        mattered
    }

    /// Drops entries that can no longer matter, because of the time or because their limit is not `needed`, and sees how
    /// large the others are.
    pub(super) fn sweep(&mut self, now: Time, needed: impl Fn(&Limit) -> bool) {
        let Self { cells, heap, .. } = self;
        *heap = 0;
        cells.retain(|_, entry| {
            let stays = needed(&entry.limit) && !entry.is_spent(now);
            if stays {
                entry.weigh();
                *heap += entry.counted();
            }
            stays
        });
        if self.len() < self.nodes / 2 {
            self.release();
        }
    }

    /// Gives back the nodes that are not in use.
    fn release(&mut self) {
        if self.nodes > self.len() {
            self.cells.shrink_to_fit();
            self.nodes = self.len();
        }
    }

    /// The bytes that it takes.
    fn bytes(&self) -> usize {
        self.nodes * NODE + table(self.nodes) + self.heap
    }

    /// Corrects the `total` of all shards by what has changed since the last time. Returns the total if it has grown.
    pub(super) fn tell(&mut self, total: &AtomicUsize) -> Option<usize> {
        let bytes = self.bytes();
        let before = std::mem::replace(&mut self.told, bytes);
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
