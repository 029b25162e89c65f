//! Whether a source can be asked, judged by the results of its lookups.
//!
//! A client can invent keys at which a source breaks or is silent. So a lookup without an answer says nothing about the source
//! while other keys get answers, nor does a broken one for a single key. An unavailable source is probed with whatever key a
//! request needs next: if the failed key were always asked again, a single key that the source cannot answer would hide all
//! others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::base::fingerprint::Fingerprint;

/// The longest time of a lookup; requests stop waiting earlier. If no key gets an answer for so long, the source is unavailable.
pub(super) const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// One thread records, and any thread reads.
#[derive(Debug, Default)]
pub struct Availability {
    is_away: AtomicBool,
    /// Whether one lookup may be made although the source is unavailable.
    is_open: AtomicBool,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The time of the last answer.
    answered: Option<Instant>,
    /// The first key without an answer since then, and when its lookup began, or that answer came if it came later.
    unanswered: Option<(Fingerprint, Instant)>,
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
        self.last.lock().unanswered = None;
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// Records an answer, usable or not. Returns whether the source was unavailable.
    pub(super) fn answered(&self, now: Instant) -> bool {
        *self.last.lock() = Last { answered: Some(now), unanswered: None };
        self.is_away.swap(false, Ordering::Relaxed)
    }

    /// Records a lookup that began at `begun` and has ended without an answer for its key. It counts if it has lasted for the
    /// longest time, or if another key had none either since that time, with no answer in between. Returns whether the source
    /// has become unavailable by it.
    pub(super) fn unanswered(&self, key: Fingerprint, begun: Instant, now: Instant) -> bool {
        let mut last = self.last.lock();
        let begun = last.answered.map_or(begun, |answered| answered.max(begun));
        let (first, since) = *last.unanswered.get_or_insert((key, begun));
        let since = if key == first { begun } else { since.min(begun) };
        now.saturating_duration_since(since) >= LOOKUP_LIMIT && !self.is_away.swap(true, Ordering::Relaxed)
    }

    /// Records that the source cannot be asked, as a lookup that began at `begun` has found. It does not count if another
    /// lookup was answered since. Returns whether the source has become unavailable by it.
    pub(super) fn failed(&self, begun: Instant) -> bool {
        if self.last.lock().answered.is_some_and(|answered| answered > begun) {
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

    /// Records lookups: when they begin and end, and a key that gets no answer, or `None` for an answer. Returns whether the
    /// source is unavailable after each.
    fn judged<const N: usize>(lookups: [(u64, u64, Option<&str>); N]) -> [bool; N] {
        let (source, start) = (Availability::default(), Instant::now());
        lookups.map(|(begun, ended, unanswered)| {
            let [begun, ended] = [begun, ended].map(|seconds| start + Duration::from_secs(seconds));
            match unanswered {
                Some(key) => source.unanswered(Fingerprint::of(key.as_bytes()), begun, ended),
                None => source.answered(ended),
            };
            source.is_away()
        })
    }

    #[test]
    fn keys_at_which_a_source_breaks_fail_alone_while_others_are_answered() {
        assert_eq!(judged([(0, 0, Some("a")), (60, 60, Some("a"))]), [false; 2], "one key");
        let broken = |begun| (begun, begun, Some("a"));
        assert_eq!(judged([broken(0), (1, 1, Some("b")), (2, 2, Some("c")), (3, 3, None)]), [false; 4]);
        assert_eq!(judged([broken(0), (4, 4, None), (6, 6, Some("b")), (8, 8, Some("c"))]), [false; 4]);
        assert_eq!(judged([broken(0), (4, 4, Some("b")), (5, 5, Some("c"))]), [false, false, true]);
        assert_eq!(
            judged([(0, 0, None), broken(60), (65, 65, Some("b")), (66, 66, None)]),
            [false, false, true, false]
        );
    }

    #[test]
    fn a_source_that_says_nothing_to_one_key_is_away_unless_another_is_answered() {
        assert_eq!(judged([(0, 5, Some("a"))]), [true]);
        assert_eq!(judged([(0, 0, Some("b")), (1, 1, Some("a")), (3, 8, Some("a"))]), [false, false, true]);
        assert_eq!(judged([(0, 3, None), (1, 6, Some("a")), (2, 7, Some("b"))]), [false; 3]);
        assert_eq!(judged([(0, 3, None), (1, 6, Some("a")), (3, 8, Some("b"))]), [false, false, true]);
    }
}
