//! The banned keys of a limit as far as one worker knows them, for the admin API only. The store decides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::super::heavy_hitters::kept_text;
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::metrics::{Counter, PerWorker};

/// The most keys that a worker remembers for a limit. The one whose ban ends first is forgotten first.
const MOST: usize = 1000;

#[derive(Debug, Default)]
pub struct KnownBans {
    /// How many bans the worker has begun.
    pub begun: Counter,
    keys: Mutex<HashMap<Fingerprint, KnownBan, RandomState>>,
    /// The length of `keys`, readable without the lock.
    count: AtomicUsize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownBan {
    /// The text of the key, or its beginning and its end if it is long.
    pub text: String,
    pub until: Time,
    /// How many bans of the key have followed each other.
    pub times: u64,
}

impl KnownBans {
    /// Notes that a key is banned. `text` is called only if the key is new.
    pub(super) fn note(&self, key: Fingerprint, until: Time, times: u64, text: impl FnOnce() -> String) {
        let Some(mut keys) = self.keys.try_lock() else { return };
        if let Some(known) = keys.get_mut(&key) {
            (known.until, known.times) = (until, times);
            return;
        }
        if keys.len() >= MOST
            && let Some(first) = keys.iter().min_by_key(|(_, known)| known.until).map(|(key, _)| *key)
        {
            keys.remove(&first);
        }
        keys.insert(key, KnownBan { text: kept_text(&text()), until, times });
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// Notes that a key is not banned.
    pub fn forget(&self, key: Fingerprint) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut keys = self.keys.lock();
            keys.remove(&key);
            self.count.store(keys.len(), Ordering::Relaxed);
        }
    }

    /// The bans known to any worker that last at `now`, sorted by their end.
    pub fn all(workers: &PerWorker<Self>, now: Time) -> Vec<(Fingerprint, KnownBan)> {
        let mut all: HashMap<_, KnownBan, RandomState> = HashMap::default();
        for worker in workers.iter() {
            for (key, known) in worker.keys.lock().iter().filter(|(_, known)| known.until > now) {
                let newest = all.entry(*key).or_insert_with(|| known.clone());
                if newest.until < known.until {
                    newest.clone_from(known);
                }
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(key, known)| (known.until, *key));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Fingerprint {
        Fingerprint::of(&number.to_be_bytes())
    }

    fn note(bans: &KnownBans, number: usize, until: u64) {
        bans.note(key(number), Time::from_micros(until), 1, || format!("client-{number}"));
    }

    fn texts(workers: &PerWorker<KnownBans>, now: u64) -> Vec<String> {
        KnownBans::all(workers, Time::from_micros(now)).into_iter().map(|(_, known)| known.text).collect()
    }

    #[test]
    fn the_bans_of_all_workers_are_shown_while_they_last() {
        let workers = PerWorker::<KnownBans>::new(2);
        note(workers.of(0), 1, 30);
        note(workers.of(0), 2, 20);
        note(workers.of(1), 1, 40);
        assert_eq!(texts(&workers, 10), ["client-2", "client-1"]);
        assert_eq!(texts(&workers, 20), ["client-1"]);
        assert_eq!(KnownBans::all(&workers, Time::from_micros(30))[0].1.until, Time::from_micros(40));
        workers.iter().for_each(|worker| worker.forget(key(1)));
        assert_eq!(texts(&workers, 10), ["client-2"]);
    }

    #[test]
    fn invented_keys_do_not_make_it_grow() {
        let workers = PerWorker::<KnownBans>::new(1);
        for number in 0..MOST + 500 {
            workers.of(0).note(key(number), Time::from_micros(number as u64 + 1), 1, || "k".repeat(10_000));
        }
        let all = KnownBans::all(&workers, Time::from_micros(0));
        assert_eq!((all.len(), all[0].1.until), (MOST, Time::from_micros(501)), "those that end first are forgotten");
        assert!(all.iter().all(|(_, known)| known.text.len() < 100));
    }
}
