//! The counters as bytes, so that they outlive the process. The format:
//!
//! - a line with the name and the version;
//! - when it was saved, in microseconds since 1970;
//! - any number of items, each of which begins with its kind: 1 for a limit, with its id (16 bytes), how many rates it has,
//!   and the quota and the capacity of each; 2 and more for a cell of the first, second, ... limit, with its key (16 bytes),
//!   the length of its state and the state, as [`Cell::save`] writes it, and its counters: how many, and for each the index of
//!   its rate, its bucket and its count; 0 for the end;
//! - the BLAKE3 hash of everything before it (32 bytes).
//!
//! Numbers are of variable length (LEB128). Every cell is as of the moment of saving. It is restored as of that moment, and
//! advanced at its next use, as if the process had never stopped. Limits are found by their ids, so a quota may differ. Keys
//! that were not used since a reload are migrated before they are saved.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::Arc;

use super::Memory;
use super::shard::CellEntry;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit, pull, push};

pub const NAME: &[u8] = b"gateway counters, version ";
const VERSION: &[u8] = b"1\n";
const END: u64 = 0;
const LIMIT: u64 = 1;
/// The kind of a cell of the first limit; the next limits follow.
const CELL: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredCounters {
    pub saved: Time,
    /// Keys whose counters are restored, as far as there is room.
    pub keys: usize,
    pub spent: usize,
    /// Keys whose limit exists no longer, or counts differently now.
    pub unknown: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    #[error("it contains no counters of a gateway")]
    Foreign,
    #[error("it is from another version of the gateway")]
    Version,
    #[error("it has changed since it was written: its checksum differs")]
    Broken,
}

impl Memory {
    /// Writes all counters that matter at `now`. Returns the number of keys. Fails if writing to `out` does.
    pub fn save(&self, now: Time, out: &mut impl Write) -> io::Result<usize> {
        self.migrate_all(now);
        let mut hasher = blake3::Hasher::new();
        let mut write = |bytes: &[u8]| {
            hasher.update(bytes);
            out.write_all(bytes)
        };
        let mut head = [NAME, VERSION].concat();
        push(now.micros(), &mut head);
        write(&head)?;
        let (mut limits, mut keys) = (HashMap::new(), 0);
        for shard in &self.shards {
            let mut items = Vec::new();
            for (key, entry) in shard.lock().iter().filter(|(_, entry)| !entry.is_spent(now)) {
                write_cell(*key, entry, now, &mut limits, &mut items);
                keys += 1;
            }
            // The shard is unlocked by now, since writing may take a while.
            write(&items)?;
        }
        let mut end = Vec::new();
        push(END, &mut end);
        write(&end)?;
        out.write_all(hasher.finalize().as_bytes())?;
        Ok(keys)
    }

    /// Adds the saved counters of these limits. Keys that have counters already keep theirs. Fails if the bytes are not as they
    /// were written. Then nothing is restored.
    pub fn restore(&self, limits: &[Arc<Limit>], bytes: &[u8], now: Time) -> Result<RestoredCounters, NotRestored> {
        let rest = bytes.strip_prefix(NAME).ok_or(NotRestored::Foreign)?;
        if !rest.starts_with(VERSION) {
            return Err(NotRestored::Version);
        }
        let (written, hash) =
            bytes.split_last_chunk::<32>().map(|(written, hash)| (written, *hash)).ok_or(NotRestored::Broken)?;
        if blake3::hash(written) != blake3::Hash::from_bytes(hash) {
            return Err(NotRestored::Broken);
        }
        let mut rest = written.get(NAME.len() + VERSION.len()..).ok_or(NotRestored::Broken)?;
        let mut by_id: HashMap<Fingerprint, Vec<&Arc<Limit>>> = HashMap::new();
        limits.iter().for_each(|limit| by_id.entry(limit.id()).or_default().push(limit));
        // The checksum is right, so bytes that make no sense were not written by `save`.
        let (restored, cells) = read(&by_id, &mut rest, now).ok_or(NotRestored::Broken)?;
        for (key, cell, limit) in cells {
            self.put(key, cell, limit, now);
        }
        Ok(restored)
    }
}

type RestoredCell<'l> = (Fingerprint, Cell, &'l Arc<Limit>);

fn read<'l>(
    limits: &HashMap<Fingerprint, Vec<&'l Arc<Limit>>>,
    rest: &mut &[u8],
    now: Time,
) -> Option<(RestoredCounters, Vec<RestoredCell<'l>>)> {
    let saved = Time::from_micros(pull(rest)?);
    let mut restored = RestoredCounters { saved, keys: 0, spent: 0, unknown: 0 };
    let (mut named, mut cells) = (Vec::new(), Vec::new());
    loop {
        let index = match pull(rest)? {
            END => break,
            LIMIT => {
                let limits = limits.get(&fingerprint(rest)?);
                let quotas = (0..pull(rest)?).map(|_| Some((pull(rest)?, pull(rest)?)));
                let quotas: Quotas = quotas.collect::<Option<_>>()?;
                named.push(limits.and_then(|limits| nearest(limits, &quotas)));
                continue;
            }
            kind => usize::try_from(kind - CELL).ok()?,
        };
        let (limit, key, length) = (*named.get(index)?, fingerprint(rest)?, pull(rest)?);
        let state = rest.split_off(..usize::try_from(length).ok()?)?;
        let counts = (0..pull(rest)?).map(|_| Some(((pull(rest)?, pull(rest)?), pull(rest)?)));
        let counts: BTreeMap<_, _> = counts.collect::<Option<_>>()?;
        let Some(limit) = limit else {
            restored.unknown += 1;
            continue;
        };
        let mut cell = Cell::restore(limit.rates(), saved, state)?.cell;
        cell.fill(|place, bucket| counts.get(&(place as u64, bucket)).copied().unwrap_or(0));
        if cell.is_spent(limit.rates(), now) {
            restored.spent += 1;
        } else {
            cells.push((key, cell, limit));
        }
    }
    restored.keys = cells.len();
    rest.is_empty().then_some((restored, cells))
}

/// The quota and the capacity of each rate. Limits that differ only in these, such as tiers, have the same id. But the larger
/// the quota of a token bucket, the earlier its counts stop to matter.
type Quotas = Vec<(u64, u64)>;

fn quotas(limit: &Limit) -> Quotas {
    limit.rates().iter().map(|rate| (rate.quota(), rate.capacity())).collect()
}

/// The limit with these quotas, or else the one with the lowest, which forgets nothing too early.
fn nearest<'l>(limits: &[&'l Arc<Limit>], wanted: &Quotas) -> Option<&'l Arc<Limit>> {
    let same = limits.iter().find(|limit| quotas(limit) == *wanted);
    same.or_else(|| limits.iter().min_by_key(|limit| quotas(limit))).copied()
}

/// Writes a cell as of `now`, after its limit if that is not in `limits` yet.
fn write_cell(key: Fingerprint, entry: &CellEntry, now: Time, limits: &mut WrittenLimits, items: &mut Vec<u8>) {
    let (rates, mut cell) = (entry.limit.rates(), entry.cell.clone());
    cell.advance(rates, now);
    let next = CELL + limits.len() as u64;
    let kind = match limits.entry(Arc::as_ptr(&entry.limit)) {
        Vacant(vacant) => {
            write_limit(&entry.limit, items);
            vacant.insert((next, entry.limit.clone())).0
        }
        Occupied(written) => written.get().0,
    };
    push(kind, items);
    items.extend_from_slice(&key.to_bytes());
    let state = cell.save(0);
    push(state.len() as u64, items);
    items.extend_from_slice(&state);
    let counts: Vec<_> = cell.counts_mut().filter(|(_, _, count)| **count > 0).collect();
    push(counts.len() as u64, items);
    for (place, bucket, count) in counts {
        [place as u64, bucket, *count].into_iter().for_each(|number| push(number, items));
    }
}

/// The limits that were written, by address, with the kind of their cells. The `Arc` keeps the address from being reused.
type WrittenLimits = HashMap<*const Limit, (u64, Arc<Limit>)>;

fn write_limit(limit: &Limit, items: &mut Vec<u8>) {
    push(LIMIT, items);
    items.extend_from_slice(&limit.id().to_bytes());
    let quotas = quotas(limit);
    push(quotas.len() as u64, items);
    quotas.into_iter().flat_map(<[u64; 2]>::from).for_each(|number| push(number, items));
}

fn fingerprint(rest: &mut &[u8]) -> Option<Fingerprint> {
    rest.split_off(..16)?.try_into().ok().map(Fingerprint::from_bytes)
}
