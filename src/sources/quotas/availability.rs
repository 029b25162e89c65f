//! Whether a source can be asked, judged by the results of its lookups.
//!
//! A source is unavailable if a lookup fails and no other was answered since it began, so one slow key among many does not
//! count. The source is probed with whatever key a request needs next: if the failed key were always asked again, a single
//! key that the source cannot answer would hide all others.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// One thread records, and any thread reads.
#[derive(Debug, Default)]
pub struct Availability {
    is_away: AtomicBool,
    /// Whether one lookup may be made although the source is unavailable.
    is_open: AtomicBool,
    /// The time of the last answer.
    answered: Mutex<Option<Instant>>,
}

impl Availability {
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Whether [`Self::admits`] may say so.
    pub(super) fn may_admit(&self) -> bool {
        !self.is_away() || self.is_open.load(Ordering::Relaxed)
    }

    /// Whether a lookup is made: always while the source is available, else once after each [`Self::open`].
    pub(super) fn admits(&self) -> bool {
        !self.is_away() || self.is_open.swap(false, Ordering::Relaxed)
    }

    /// Allows one lookup while the source is unavailable.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Resets the state: the next lookup shows whether the source is available.
    pub(super) fn forget(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// Records an answer, usable or not. Returns whether the source was unavailable.
    pub(super) fn answered(&self, now: Instant) -> bool {
        *self.answered.lock() = Some(now);
        self.is_away.swap(false, Ordering::Relaxed)
    }

    /// Records a failed lookup that began at `begun`. The failure does not count if another lookup was answered since.
    /// Returns whether the source has become unavailable by it.
    pub(super) fn failed(&self, begun: Instant) -> bool {
        if self.answered.lock().is_some_and(|answered| answered > begun) {
            return false;
        }
        !self.is_away.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_slow_key_among_others_that_are_answered_is_not_a_source_that_is_away() {
        let (source, start) = (Availability::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        assert!(!source.answered(later(3)));
        assert!(!source.failed(start));
        assert!(!source.is_away());
        assert!(source.admits() && source.failed(later(4)) && source.is_away());
        assert!(!source.admits());
        source.open();
        assert!(source.admits() && !source.admits(), "one lookup");
        assert!(!source.failed(later(4)), "it is away already");
        assert!(source.answered(later(9)) && !source.is_away());
    }
}
