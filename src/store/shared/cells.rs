//! All cells that this process knows, bounded in number.
//!
//! Cells stand side by side and are given out by place, since finding and reordering them would cost more than all other work
//! with them. The clock algorithm makes room: a hand goes round and spares, once, each cell that was used since its last
//! visit. A list in the order of use would write to neighbouring cells for every decision.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::OwnedAsk;
use super::cached_cell::{CachedCell, ExchangeStage};
use super::health::Health;
use super::names::{AllNames, Names};
use super::slots::slot_of;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::reloads::Reloads;

/// The most cells, about 40 MB. A forgotten cell is read from the server again.
pub(super) const MOST: usize = 1 << 17;

/// How many cells are examined to make room for a new one. If none of them can go, there is one more for now.
const LOOKS: usize = 128;

/// It stays the same while somebody waits for the cell or it is part of an exchange.
pub(super) type CellPlace = u32;

#[derive(Debug)]
pub(super) struct Cells {
    places: HashMap<Fingerprint, CellPlace, RandomState>,
    cells: Vec<CachedCell>,
    /// The places of forgotten cells, which hold a cell of `nobody`.
    free: Vec<usize>,
    nobody: Rc<Names>,
    hand: usize,
    next: u32,
    /// The number of the latest cell that was forgotten before the server knew all its charges.
    forgotten: Option<u32>,
    names: AllNames,
    /// Counts cells that make room while they have pending charges.
    health: Arc<Health>,
    servers: Vec<String>,
    /// The server of each slot; empty if servers have none.
    owners: Vec<usize>,
    pub(super) reloads: Reloads,
    /// Until this moment a limit may have been replaced whose counts still matter.
    pub(super) migrating_until: Time,
}

impl Cells {
    pub(super) fn new(mut names: AllNames, servers: &[String], health: Arc<Health>) -> Self {
        Self {
            nobody: names.of(&Arc::new(Limit::new("", &[]))),
            free: Vec::new(),
            // Reserved memory is used only when it is written to; growing would copy it in the middle of a decision.
            places: HashMap::with_capacity_and_hasher(MOST, RandomState::default()),
            cells: Vec::with_capacity(MOST),
            hand: 0,
            next: 0,
            forgotten: None,
            names,
            health,
            servers: servers.to_vec(),
            owners: Vec::new(),
            reloads: Reloads::default(),
            migrating_until: Time::from_micros(0),
        }
    }

    /// Each slot is on the server of this number. Returns the cells that are on another server now.
    pub(super) fn follow_slots(&mut self, owners: Vec<usize>) -> Vec<CellPlace> {
        self.owners = owners;
        let moved = (0..).zip(&mut self.cells).filter_map(|(place, cached)| {
            let owner = self.owners[slot_of(&cached.key.digits())];
            (std::mem::replace(&mut cached.server, owner) != owner).then_some(place)
        });
        moved.collect()
    }

    /// Includes places of forgotten cells.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn keys(&self) -> usize {
        self.places.len()
    }

    pub(super) fn at(&mut self, place: CellPlace) -> &mut CachedCell {
        &mut self.cells[place as usize]
    }

    pub(super) fn peek(&self, place: CellPlace) -> &CachedCell {
        &self.cells[place as usize]
    }

    pub(super) fn of(&mut self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> (CellPlace, &mut CachedCell) {
        let place = match self.places.get(&key.with(limit.shape())) {
            Some(place) => *place,
            None => self.add(limit, key, now),
        };
        self.see_reload(place, limit, now);
        let cached = &mut self.cells[place as usize];
        if !Arc::ptr_eq(&cached.names.limit, limit) {
            cached.names = self.names.of(limit);
        }
        cached.used = true;
        (place, cached)
    }

    /// The cell that was at `place` when it was asked for; created anew if nobody waited for it and it had to make room.
    pub(super) fn again(&mut self, place: &mut CellPlace, ask: &OwnedAsk, now: Time) -> &mut CachedCell {
        if self.at(*place).id() != ask.cell() {
            *place = self.of(&ask.limit, ask.key, now).0;
        }
        self.see_reload(*place, &ask.limit, now);
        self.at(*place)
    }

    pub(super) fn find(&self, cell: Fingerprint) -> Option<CellPlace> {
        self.places.get(&cell).copied()
    }

    /// Whether a cell that is gone may have been forgotten before the server knew all its charges.
    pub(super) fn may_have_forgotten(&self, number: u32) -> bool {
        self.forgotten.is_some_and(|forgotten| !is_newer(number, forgotten))
    }

    /// Gives a cell that was reset a new number, so that earlier reservations are not given back to later counts.
    pub(super) fn renumber(&mut self, place: CellPlace) {
        let cached = &mut self.cells[place as usize];
        let before = std::mem::replace(&mut cached.number, self.next);
        self.next = self.next.wrapping_add(1);
        self.note_forgotten(before);
    }

    /// Notes that charges to the cell with this number may be missing on the server.
    fn note_forgotten(&mut self, number: u32) {
        let newest = self.forgotten.filter(|other| is_newer(*other, number));
        self.forgotten = Some(newest.unwrap_or(number));
    }

    fn add(&mut self, limit: &Arc<Limit>, key: Fingerprint, now: Time) -> CellPlace {
        let names = self.names.of(limit);
        let server = match &self.owners[..] {
            [] => names.server(key, &self.servers),
            owners => owners[slot_of(&key.digits())],
        };
        let cached = CachedCell::new(self.next, names, key, server, now);
        self.next = self.next.wrapping_add(1);
        let room = match self.free.pop() {
            None if self.cells.len() >= MOST => self.make_room(now),
            free => free,
        };
        let place = room.unwrap_or(self.cells.len());
        match self.cells.get_mut(place) {
            Some(free) => *free = cached,
            None => self.cells.push(cached),
        }
        // There are at most [`MOST`] and a few more, so it fits.
        let place = CellPlace::try_from(place).unwrap_or(CellPlace::MAX);
        self.places.insert(key.with(limit.shape()), place);
        place
    }

    /// Forgets the unneeded cells here of limits that a reload removed. Returns how many stay; `None` beyond the last place.
    pub(super) fn forget(&mut self, places: Range<usize>, now: Time) -> Option<usize> {
        let Self { places: cached, cells, free, nobody, reloads, .. } = self;
        let range = places.start..places.end.min(cells.len());
        let mut stay = 0;
        for (place, cell) in range.clone().zip(cells.get_mut(range)?.iter_mut()) {
            if reloads.is_needed(&cell.names.limit, cell.key) || Rc::ptr_eq(&cell.names, nobody) {
                continue;
            }
            // A queued cell still has something to send.
            if cell.stage != ExchangeStage::Idle
                || cell.is_needed()
                || cell.has_pending() && !cell.is_spent(reloads, now)
            {
                stay += 1;
                continue;
            }
            cached.remove(&cell.id());
            *cell = CachedCell::new(0, nobody.clone(), Fingerprint::of(b""), 0, now);
            free.push(place);
        }
        (places.start < cells.len()).then_some(stay)
    }

    fn make_room(&mut self, now: Time) -> Option<usize> {
        for _ in 0..LOOKS {
            let place = self.hand;
            self.hand = (place + 1) % self.cells.len();
            let cached = &mut self.cells[place];
            if cached.is_needed() || std::mem::take(&mut cached.used) {
                continue;
            }
            if cached.has_pending() && !cached.is_spent(&self.reloads, now) {
                self.health.forgotten.one();
                let number = cached.number;
                self.note_forgotten(number);
            }
            let cached = &self.cells[place];
            self.places.remove(&cached.id());
            return Some(place);
        }
        None
    }
}

/// Whether a cell was created after another one. Numbers wrap, but long after old ones have lost their meaning.
fn is_newer(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) < 1 << 31
}

#[cfg(test)]
impl Cells {
    pub(super) fn all(&self) -> impl Iterator<Item = (CellPlace, &CachedCell)> {
        (0..).zip(&self.cells)
    }

    pub(super) fn on(servers: &[&str]) -> Self {
        let servers: Vec<_> = servers.iter().map(|server| (*server).to_owned()).collect();
        let health = Arc::new(Health::new(&servers, 1, "memcached"));
        Self::new(AllNames::new("gw", false), &servers, health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::LimitChanges;
    use crate::store::shared::tests::ask;

    const NOW: Time = Time::from_micros(1_800_000_000_000_000);

    #[test]
    fn cells_of_limits_that_are_gone_are_forgotten() {
        let mut cells = Cells::on(&["a:1", "b:2"]);
        let limit = |name: &str| Arc::new(Limit::new(name, &["9/d".parse().unwrap()]));
        let key = |key: u32| Fingerprint::of(&key.to_be_bytes());
        let ask = |limit: &Arc<Limit>, number: u32| ask(limit, key(number));
        let stays = limit("stays");
        let (kept, _) = cells.of(&stays, key(0), NOW);
        let mut needed = Vec::new();
        cells.reload(
            &LimitChanges { in_use: vec![stays.clone()], replaced: Vec::new(), ..LimitChanges::default() },
            NOW,
        );
        for number in 1..1000_u32 {
            let goes = limit(&format!("limit-{number}"));
            for client in 0..10 {
                cells.of(&goes, key(number * 10 + client), NOW);
            }
            // A cell in flight must keep its place.
            let busy = ask(&goes, number * 10);
            let (place, cached) = cells.of(&busy.limit, busy.key, NOW);
            cached.stage = ExchangeStage::InFlight;
            needed.push((place, cached.id()));
            let left = cells.forget(0..MOST, NOW).unwrap();
            assert_eq!(left, 1);
            let (place, id) = needed.pop().unwrap();
            assert_eq!(cells.at(place).id(), id);
            cells.at(place).stage = ExchangeStage::Idle;
            assert!(cells.len() <= 12, "{} cells after {number} reloads", cells.len());
        }
        assert_eq!(cells.forget(0..MOST, NOW), Some(0));
        assert_eq!((cells.places.len(), cells.len() - cells.free.len()), (1, 1));
        assert_eq!(cells.of(&stays, key(0), NOW).0, kept);
        assert_eq!(cells.forget(MOST..2 * MOST, NOW), None);
        // An old place now belongs to another cell.
        let mut place = (kept + 1) % 2;
        let again = ask(&limit("limit-1"), 10);
        assert_eq!(cells.again(&mut place, &again, NOW).id(), again.cell());
    }

    #[test]
    fn a_bucket_is_spent_by_the_lowest_rate_that_its_key_may_have() {
        let limit = |rate: &str| Arc::new(Limit::new("l", &[rate.parse().unwrap()]));
        let (fast, slow) = (limit("60/m burst 60"), limit("1/m burst 60"));
        let mut cells = Cells::on(&["a:1"]);
        cells.of(&fast, Fingerprint::of(b"k"), NOW).1.charge(&fast, NOW, 60);
        cells.reload(&LimitChanges { in_use: vec![fast, slow], ..LimitChanges::default() }, NOW);
        // The bucket is full again by its first rate, but perhaps not by the rate that its key has now.
        let later = NOW.after(std::time::Duration::from_secs(120));
        assert_eq!((cells.make_room(later), cells.health.forgotten.get()), (Some(0), 1));
    }
}
