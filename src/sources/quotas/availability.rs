//! Whether a source can be asked, as seen from the ends of its lookups.
//!
//! A source is away if a lookup fails and none was answered since that was begun, so one slow key among many is no
//! failure of all. To find out whether it is back, it is asked about whatever key a request asks for next: if it were
//! asked about the failed one alone, one key that it cannot answer would hide all others.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Whether a source can be asked. One thread records, and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Availability {
    is_away: AtomicBool,
    /// Whether one lookup may be made although it is away.
    is_open: AtomicBool,
    /// Why it is away, for people.
    why: Mutex<Option<String>>,
    /// When it has answered last.
    answered: Mutex<Option<Instant>>,
}

impl Availability {
    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Whether a lookup may be made: any while it is not away, and one after each [`Self::open`] while it is.
    pub(super) fn admits(&self) -> bool {
        !self.is_away() || (self.is_open.load(Ordering::Relaxed) && self.is_open.swap(false, Ordering::Relaxed))
    }

    /// Lets one lookup pass while the source is away.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Nothing is known any more: the next lookup finds out.
    pub(super) fn forget(&self) {
        self.is_away.store(false, Ordering::Relaxed);
        *self.why.lock() = None;
    }

    /// Why it is away, if it is.
    pub(super) fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }

    /// Records an answer, whatever it is. Returns whether the source was away.
    pub(super) fn answered(&self, now: Instant) -> bool {
        *self.answered.lock() = Some(now);
        let was_away = self.is_away.swap(false, Ordering::Relaxed);
        if was_away {
            *self.why.lock() = None;
        }
        was_away
    }

    /// Records that a lookup that was begun at `begun` has no answer. It does not count if another one was answered since.
    /// Returns whether the source is away from now on and was not before.
    pub(super) fn failed(&self, begun: Instant, why: &str) -> bool {
        if self.answered.lock().is_some_and(|answered| answered > begun) {
            return false;
        }
        *self.why.lock() = Some(why.to_owned());
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
        assert!(!source.failed(start, "too slow"));
        assert!(!source.is_away());
        assert!(source.admits() && source.failed(later(4), "too slow") && source.is_away());
        assert!(!source.admits());
        source.open();
        assert!(source.admits() && !source.admits(), "one lookup");
        assert!(!source.failed(later(4), "broken"), "it is away already");
        assert_eq!(source.why().as_deref(), Some("broken"));
        assert!(source.answered(later(9)) && !source.is_away());
        assert_eq!(source.why(), None);
    }
}
