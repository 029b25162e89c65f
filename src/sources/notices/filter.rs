//! Knows most notices that were added to a queue already, in bounded memory and without locks: each has one place in a table,
//! where a later one replaces it. What was replaced may be added again, so this only spares work.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;

/// A power of two.
const PLACES: usize = 1 << 14;

pub(super) struct Filter {
    places: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for Filter {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::default() }
    }
}

impl Filter {
    /// Whether the notice was not seen lately, or is not known any more.
    pub(super) fn is_new(&self, notice: &impl Hash) -> bool {
        let hash = self.hasher.hash_one(notice);
        let place = usize::try_from(hash).unwrap_or(0) & (PLACES - 1);
        let place = &self.places[place];
        place.load(Ordering::Relaxed) != hash && place.swap(hash, Ordering::Relaxed) != hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_new_once() {
        let filter = Filter::default();
        assert!(filter.is_new(&1) && !filter.is_new(&1) && filter.is_new(&2));
    }

    #[test]
    fn invented_notices_take_no_memory() {
        let filter = Filter::default();
        let new = (0..100_000).filter(|number| filter.is_new(number)).count();
        assert_eq!(new, 100_000);
        assert_eq!(filter.places.len(), PLACES);
    }
}
