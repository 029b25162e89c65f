//! All cells that this process knows, bounded in number: the coldest go first.

use foldhash::fast::RandomState;
use hashlink::LinkedHashMap;

use super::Wish;
use super::keys::AllNames;
use super::known::{Known, Stage};
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::tally::Counter;

/// The most cells that are known: some 30 MB of them. Who is forgotten is asked for.
const MOST: usize = 1 << 17;
/// How many of the coldest are looked at to make room for a new one.
const LOOKS: usize = 4;

/// The cells, coldest first.
#[derive(Debug)]
pub(super) struct Cells {
    map: LinkedHashMap<Fingerprint, Known, RandomState>,
    names: AllNames,
    servers: Vec<String>,
}

impl Cells {
    pub(super) fn new(prefix: &str, servers: &[String]) -> Self {
        let map = LinkedHashMap::with_hasher(RandomState::default());
        Self { map, names: AllNames::new(prefix), servers: servers.to_vec() }
    }

    /// The cell with this number, if it is known.
    pub(super) fn get_mut(&mut self, cell: Fingerprint) -> Option<&mut Known> {
        self.map.get_mut(&cell)
    }

    /// The cell that is asked for, as the hottest of all. `forgotten` counts what was still owed by those that had to
    /// make room.
    pub(super) fn of(&mut self, wish: &Wish, now: Time, forgotten: &Counter) -> &mut Known {
        let Self { map, names, servers } = self;
        let cell = wish.cell();
        if !map.contains_key(&cell) {
            make_room(map, now, forgotten);
            let names = names.of(&wish.limit);
            let server = names.server(wish.key, servers);
            map.insert(cell, Known::new(names, wish.key, server, now));
        }
        let (names, limit) = (&mut self.names, &wish.limit);
        let known = map.to_back(&cell).unwrap_or_else(|| unreachable!("it was put there"));
        if !std::sync::Arc::ptr_eq(&known.names.limit, limit) {
            known.names = names.of(limit);
        }
        known
    }
}

/// Drops the coldest cells that nobody needs any more, and one more if there is no room.
fn make_room(map: &mut LinkedHashMap<Fingerprint, Known, RandomState>, now: Time, forgotten: &Counter) {
    for _ in 0..LOOKS {
        let Some((cell, known)) = map.front() else { return };
        let (cell, is_full) = (*cell, map.len() >= MOST);
        if known.stage == Stage::Asked || !known.waiting.is_empty() {
            map.to_back(&cell);
        } else if known.is_spent(now) || is_full {
            if known.owes() && !known.is_spent(now) {
                forgotten.one();
            }
            map.pop_front();
        } else {
            return;
        }
    }
}
