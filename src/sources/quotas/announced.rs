//! Changes that a source has announced and that are not yet followed, in bounded memory.
//!
//! Changed keys are searched in the whole cache, because an index by what is sent to the source would be as large as the
//! cache. So the search makes pauses, and takes at most a fifth of the thread's time.

use std::cell::RefCell;
use std::collections::HashSet;

use foldhash::fast::RandomState;
use tokio::sync::Notify;

use super::QuotaChange;
use crate::base::fingerprint::Fingerprint;

/// If there are more, all keys count as changed.
const MOST_KEYS: usize = 65_536;

#[derive(Debug)]
pub(super) enum Changed {
    /// Perhaps all keys.
    All,
    /// The hashes of these keys, in the form in which they are sent.
    Keys(HashSet<Fingerprint, RandomState>),
}

impl Changed {
    pub(super) fn has(&self, sent: Fingerprint) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => keys.contains(&sent),
        }
    }
}

/// Changes that are not yet followed.
#[derive(Debug, Default)]
pub(super) struct Announced {
    waiting: RefCell<Option<Changed>>,
    added: Notify,
}

impl Announced {
    pub(super) fn add(&self, change: QuotaChange) {
        let mut waiting = self.waiting.borrow_mut();
        let changed = waiting.get_or_insert_with(|| Changed::Keys(HashSet::default()));
        match (&mut *changed, change) {
            (Changed::All, _) => {}
            (Changed::Keys(keys), QuotaChange::Key(key)) if keys.len() < MOST_KEYS => {
                keys.insert(Fingerprint::of(key.as_bytes()));
            }
            (Changed::Keys(_), _) => *changed = Changed::All,
        }
        self.added.notify_one();
    }

    /// Waits until there is a change, and takes all changes.
    pub(super) async fn next(&self) -> Changed {
        loop {
            if let Some(changed) = self.waiting.take() {
                return changed;
            }
            self.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn too_many_keys_are_all_keys() {
        let announced = Announced::default();
        let add = |key: usize| announced.add(QuotaChange::Key(key.to_string()));
        let has = |changed: &Changed, key: &str| changed.has(Fingerprint::of(key.as_bytes()));
        (0..MOST_KEYS).for_each(add);
        let some = announced.next().await;
        assert!(has(&some, "7") && !has(&some, "other"));
        (0..=MOST_KEYS).for_each(add);
        assert!(matches!(announced.next().await, Changed::All));
        add(1);
        announced.add(QuotaChange::Any);
        add(2);
        assert!(has(&announced.next().await, "other"));
        add(3);
        assert!(!has(&announced.next().await, "1"), "what was taken is gone");
    }
}
