//! All cells that this process knows, bounded in number: those that nobody has used lately go first.
//!
//! They stand side by side and are given out by their place, since finding and reordering would cost more than all else
//! that is done with them. Which one makes room is found by a hand that goes round and spares, once, whoever was used
//! since it last came by: the clock algorithm.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::Wish;
use super::keys::AllNames;
use super::known::Known;
use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::tally::Counter;

/// The most cells that are known: some 40 MB of them. Who is forgotten is asked for.
pub(super) const MOST: usize = 1 << 17;

/// How many cells are looked at to make room for a new one. If none of them can go, there is one more for now.
const LOOKS: usize = 128;

/// The place of a cell. It stays the same while somebody waits for the cell or it is part of an exchange.
pub(super) type Place = u32;

/// The cells.
#[derive(Debug)]
pub(super) struct Cells {
    places: HashMap<Fingerprint, Place, RandomState>,
    cells: Vec<Known>,
    /// Where the hand stands.
    hand: usize,
    /// The number of the next cell.
    next: u32,
    /// The number of the latest of those that were forgotten before Memcached knew what they had been charged.
    forgotten: Option<u32>,
    names: AllNames,
    servers: Vec<String>,
}

impl Cells {
    pub(super) fn new(prefix: &str, servers: &[String]) -> Self {
        Self {
            // Memory is used when it is written to; growing would copy it in the middle of a decision.
            places: HashMap::with_capacity_and_hasher(MOST, RandomState::default()),
            cells: Vec::with_capacity(MOST),
            hand: 0,
            next: 0,
            forgotten: None,
            names: AllNames::new(prefix),
            servers: servers.to_vec(),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// The cell at this place.
    pub(super) fn at(&mut self, place: Place) -> &mut Known {
        &mut self.cells[place as usize]
    }

    /// The cell that is asked for, and its place. `forgotten` counts those that had to make room and still owed something.
    pub(super) fn of(&mut self, wish: &Wish, now: Time, forgotten: &Counter) -> (Place, &mut Known) {
        let cell = wish.cell();
        let place = match self.places.get(&cell) {
            Some(place) => *place,
            None => self.add(cell, wish, now, forgotten),
        };
        let known = &mut self.cells[place as usize];
        if !Arc::ptr_eq(&known.names.limit, &wish.limit) {
            known.names = self.names.of(&wish.limit);
        }
        known.used = true;
        (place, known)
    }

    /// The cell that was at `place` when it was asked for. One that nobody waits for, because its server is away or it has
    /// just been read, may have had to make room since: then it is begun anew.
    pub(super) fn again(&mut self, place: &mut Place, wish: &Wish, now: Time, forgotten: &Counter) -> &mut Known {
        if self.at(*place).id() != wish.cell() {
            *place = self.of(wish, now, forgotten).0;
        }
        self.at(*place)
    }

    /// Whether a cell that is not there any more may have been forgotten before Memcached knew what it had been charged.
    pub(super) fn may_have_forgotten(&self, number: u32) -> bool {
        self.forgotten.is_some_and(|forgotten| !is_newer(number, forgotten))
    }

    fn add(&mut self, cell: Fingerprint, wish: &Wish, now: Time, forgotten: &Counter) -> Place {
        let names = self.names.of(&wish.limit);
        let server = names.server(wish.key, &self.servers);
        let known = Known::new(self.next, names, wish.key, server, now);
        self.next = self.next.wrapping_add(1);
        let room = if self.cells.len() < MOST { None } else { self.make_room(now, forgotten) };
        let place = match room {
            Some(place) => {
                self.cells[place] = known;
                place
            }
            None => {
                self.cells.push(known);
                self.cells.len() - 1
            }
        };
        // There are never more than can be counted so.
        let place = Place::try_from(place).unwrap_or(Place::MAX);
        self.places.insert(cell, place);
        place
    }

    /// Forgets a cell and returns its place, if one is found that nobody needs.
    fn make_room(&mut self, now: Time, forgotten: &Counter) -> Option<usize> {
        for _ in 0..LOOKS {
            let place = self.hand;
            self.hand = (place + 1) % self.cells.len();
            let known = &mut self.cells[place];
            if known.is_needed() || std::mem::take(&mut known.used) {
                continue;
            }
            if known.owes() && !known.is_spent(now) {
                forgotten.one();
                let newest = self.forgotten.filter(|other| is_newer(*other, known.number));
                self.forgotten = Some(newest.unwrap_or(known.number));
            }
            self.places.remove(&known.id());
            return Some(place);
        }
        None
    }
}

/// Whether a cell was made after another one. Numbers begin anew, but long after what they stand for is gone.
fn is_newer(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) < 1 << 31
}
