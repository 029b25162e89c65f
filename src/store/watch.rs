//! What a store tells of watched limits: with the decision, if that charges what the request costs or refuses it; otherwise
//! when the charge is settled, since a reservation may be many times the cost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::base::clock::Time;
use crate::limit::{Cell, Limit, Reached};

/// Who is told what a key has used when charges of one request are settled. Must not block: a store tells it while others
/// wait for the store.
pub trait Watcher: Send + Sync {
    fn tell(&self, limit: &Limit, reached: &Reached);
    /// The request has reserved so much more.
    fn reserve(&self, cost: u64);
    /// So much of what the request has reserved is settled.
    fn release(&self, cost: u64);
    /// What other requests have reserved of the key, as far as this process knows. It is charged, but not used.
    fn reserved_by_others(&self) -> u64;
}

/// The watcher of one charge, or nobody.
#[derive(Default)]
pub struct Watch {
    watcher: Option<Arc<dyn Watcher>>,
    /// What the charge has reserved, until it is settled or dropped.
    reserved: AtomicU64,
}

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
    pub fn new(watcher: Arc<dyn Watcher>) -> Self {
        Self { watcher: Some(watcher), reserved: AtomicU64::new(0) }
    }

    pub fn is_nobody(&self) -> bool {
        self.watcher.is_none()
    }

    /// The same watcher, for a charge that has reserved so much.
    #[must_use]
    pub fn of(&self, reserved: u64) -> Self {
        let watcher = self.watcher.clone();
        watcher.iter().filter(|_| reserved > 0).for_each(|watcher| watcher.reserve(reserved));
        Self { watcher, reserved: AtomicU64::new(reserved) }
    }

    /// Notes that the charge is settled, then tells what `count` finds. A count that is found later than what others have
    /// reserved is never too high: what these have settled meanwhile they tell themselves.
    pub(super) fn settled(&self, count: impl FnOnce() -> ReachedRates) {
        let Some(watcher) = &self.watcher else { return };
        self.release();
        let unused = watcher.reserved_by_others();
        count().iter().for_each(|rate| watcher.tell(&rate.limit, &rate.reached.without(unused)));
    }

    fn release(&self) {
        let reserved = self.reserved.swap(0, Ordering::Relaxed);
        self.watcher.iter().filter(|_| reserved > 0).for_each(|watcher| watcher.release(reserved));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.release();
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

    /// Notes what the cell counts about an ask at this place, without what is set apart.
    #[cold]
    pub(super) fn note(&mut self, place: usize, limit: &Arc<Limit>, cell: &Cell, now: Time, apart: u64) {
        for reached in limit.reached(cell, now, apart) {
            self.0.get_or_insert_default().push(ReachedRate { place, limit: limit.clone(), reached });
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::base::fingerprint::Fingerprint;
    use crate::limit::Rate;
    use crate::store::Ask;
    use crate::store::memory::Memory;

    const NOW: Time = Time::from_micros(1_800_000_000_000_000);

    #[derive(Default)]
    struct Told {
        reserved: AtomicU64,
        by_others: u64,
        used: Mutex<Vec<u64>>,
    }

    impl Watcher for Told {
        fn tell(&self, _: &Limit, reached: &Reached) {
            self.used.lock().push(reached.used);
        }

        fn reserve(&self, cost: u64) {
            self.reserved.fetch_add(cost, Ordering::Relaxed);
        }

        fn release(&self, cost: u64) {
            self.reserved.fetch_sub(cost, Ordering::Relaxed);
        }

        fn reserved_by_others(&self) -> u64 {
            self.by_others
        }
    }

    fn limit() -> Arc<Limit> {
        Arc::new(Limit::new("l", &["10/31d".parse::<Rate>().unwrap()]).watched_from(Some(1)))
    }

    fn reached(memory: &Memory, ask: &Ask<'_>) -> Vec<u64> {
        memory.decide(&[*ask], NOW).reached.iter().map(|rate| u64::from(rate.reached.share)).collect()
    }

    #[test]
    fn a_refusal_has_reached_what_is_used() {
        let (memory, limit) = (Memory::new(100, usize::MAX), limit());
        let ask = |cost| Ask::new(&limit, Fingerprint::of(b"key"), cost);
        assert_eq!(reached(&memory, &ask(1)), [100_000]);
        assert_eq!(reached(&memory, &ask(10)), [100_000], "refused");
        assert_eq!(reached(&memory, &ask(9)), [1_000_000]);
        assert_eq!(reached(&memory, &ask(1)), [1_000_000], "refused");
    }

    #[test]
    fn what_others_have_reserved_is_not_used() {
        let (memory, limit) = (Memory::new(100, usize::MAX), limit());
        let ask = |cost| Ask { settles: true, ..Ask::new(&limit, Fingerprint::of(b"key"), cost) };
        let reserve = |cost| memory.decide(&[ask(cost)], NOW).reserved.pop().unwrap();
        let (_of_other, mut own) = (reserve(7), reserve(3));
        let told = Arc::new(Told { by_others: 7, ..Told::default() });
        own.watch = Watch::new(told.clone()).of(3);
        assert_eq!(told.reserved.load(Ordering::Relaxed), 3);
        memory.settle(&own, 2, NOW);
        assert_eq!((told.reserved.load(Ordering::Relaxed), &*told.used.lock()), (0, &vec![2]));
        drop(own);
        drop(Watch::new(told.clone()).of(5));
        assert_eq!(told.reserved.load(Ordering::Relaxed), 0, "what is dropped is released once");
    }
}
