//! What a store tells of watched limits: with the decision, if that charges what the request costs or refuses it; otherwise
//! when the charge is settled, since a reservation may be many times the cost.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::clock::Time;
use crate::limit::{Cell, Limit, Reached};

/// Is told what a key has used. Must not block: a store tells it while others wait for the store.
type Watcher = dyn Fn(&Limit, &Reached) + Send + Sync;

/// The watcher of one charge, or nobody.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<Watcher>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachedRate {
    /// That of the ask.
    pub place: usize,
    /// The limit that has counted.
    pub limit: Arc<Limit>,
    pub reached: Reached,
}

/// As small as a pointer, since hardly any decision has some.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReachedRates(Option<Box<SmallVec<[ReachedRate; 2]>>>);

impl Watch {
    pub fn new(tell: impl Fn(&Limit, &Reached) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    pub fn is_nobody(&self) -> bool {
        self.0.is_none()
    }

    /// Tells what a reply says about the limit at this place.
    pub fn tell_of(&self, reached: &ReachedRates, place: usize) {
        if let Some(tell) = &self.0 {
            let own = reached.iter().filter(|rate| rate.place == place);
            own.for_each(|rate| tell(&rate.limit, &rate.reached));
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_nobody() { "nobody" } else { "somebody" })
    }
}

impl ReachedRates {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &ReachedRate> {
        self.0.iter().flat_map(|all| all.iter())
    }

    pub(super) fn append(&mut self, later: Self) {
        later.0.into_iter().for_each(|later| self.0.get_or_insert_default().extend(*later));
    }

    /// Notes what the cell counts about an ask at this place. `refused` is what it needed if it was refused, else 0.
    #[cold]
    pub(super) fn note(&mut self, place: usize, limit: &Arc<Limit>, cell: &Cell, now: Time, refused: u64, apart: u64) {
        for reached in limit.reached(cell, now, refused, apart) {
            self.0.get_or_insert_default().push(ReachedRate { place, limit: limit.clone(), reached });
        }
    }
}
