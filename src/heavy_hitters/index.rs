//! Finds the place of a key: a hash table of fixed size with linear probing. Removing shifts entries back instead of leaving
//! marks, so that it does not become slower with time (Knuth, The Art of Computer Programming, volume 3, section 6.4,
//! algorithm R).
//!
//! Tables for any number of entries take about twice as many instructions here, of which each request has to pay some.

/// The slots, of which at most half are used.
const SLOTS: usize = 256;

/// The places of keys by their hashes.
#[derive(Debug)]
pub(super) struct Index {
    /// The number of the place plus one; 0 is free.
    slots: Box<[u8; SLOTS]>,
}

impl Default for Index {
    fn default() -> Self {
        Self { slots: Box::new([0; SLOTS]) }
    }
}

impl Index {
    /// The most places.
    pub(super) const MOST: usize = SLOTS / 2;

    /// Where the search for a hash begins. The bits at the top are the best ones.
    fn home(hash: u64) -> u8 {
        hash.to_be_bytes()[0]
    }

    /// The place of the key with this hash, for which `is_wanted` returns true.
    pub(super) fn find(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        self.slot(hash, is_wanted).map(|(_, place)| place)
    }

    fn slot(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<(u8, usize)> {
        let mut at = Self::home(hash);
        loop {
            let place = usize::from(self.slots[usize::from(at)]).checked_sub(1)?;
            if is_wanted(place) {
                return Some((at, place));
            }
            at = at.wrapping_add(1);
        }
    }

    /// Adds a place below [`Index::MOST`] that is not in it yet.
    pub(super) fn insert(&mut self, hash: u64, place: usize) {
        let mut at = Self::home(hash);
        while self.slots[usize::from(at)] != 0 {
            at = at.wrapping_add(1);
        }
        self.slots[usize::from(at)] = u8::try_from(place + 1).unwrap_or(0);
    }

    /// Removes the place of a key with this hash. `hash_of` returns the hash of the key at a place.
    pub(super) fn remove(&mut self, hash: u64, place: usize, hash_of: impl Fn(usize) -> u64) {
        let Some((mut free, _)) = self.slot(hash, |other| other == place) else { return };
        let mut at = free;
        loop {
            at = at.wrapping_add(1);
            let entry = self.slots[usize::from(at)];
            let Some(other) = usize::from(entry).checked_sub(1) else { break };
            // An entry may move to the free slot if that is not before its home.
            let home = Self::home(hash_of(other));
            if at.wrapping_sub(home) >= at.wrapping_sub(free) {
                self.slots[usize::from(free)] = entry;
                free = at;
            }
        }
        self.slots[usize::from(free)] = 0;
    }

    /// Removes all places.
    pub(super) fn clear(&mut self) {
        self.slots.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_the_same_as_a_map(steps in prop::collection::vec((any::<bool>(), 0..Index::MOST, 0..9u8), 0..600)) {
            let (mut index, mut hashes) = (Index::default(), BTreeMap::new());
            for (adds, place, home) in steps {
                // Few homes, at the end of the table and at its beginning, so that entries collide.
                let hash = u64::from(home.wrapping_sub(4)) << 56 | place as u64;
                match (adds, hashes.get(&place).copied()) {
                    (true, None) => {
                        index.insert(hash, place);
                        hashes.insert(place, hash);
                    }
                    (false, Some(hash)) => {
                        index.remove(hash, place, |place| hashes[&place]);
                        hashes.remove(&place);
                    }
                    _ => {}
                }
                for place in 0..Index::MOST {
                    let hash = hashes.get(&place).copied();
                    let found = index.find(hash.unwrap_or(0), |other| other == place);
                    prop_assert_eq!(found, hash.map(|_| place));
                }
            }
            index.clear();
            prop_assert!((0..=u8::MAX).all(|home| index.find(u64::from(home) << 56, |_| true).is_none()));
        }
    }
}
