//! Notices: tells servers of the operator when a key has used a share of a rate, once for each key, rate, share and window.
//!
//! A request that reaches a share only adds a notice to a bounded queue. A filter before the queues knows most notices that
//! were added already, so that a flood of a key that is over its limit adds nothing. Each receiver has a queue and a task of
//! its own, so none waits for another. The task remembers with the counters which notices were sent (`claims.rs`). What requests
//! in flight have reserved does not count as used (`in_flight.rs`).

mod notice;
mod claims;
mod in_flight;
mod receiver;

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use foldhash::quality::RandomState;
use tokio::time::{Instant, timeout_at};

use crate::base::fingerprint::Fingerprint;
use crate::base::in_force::InForce;
use crate::base::key_mask::KeyMask;
use crate::base::metrics::SharedCounter;
use crate::config::{self, Config, NoticeReceiver};
use crate::limit::{Limit, Reached};
use crate::store::{Store, Watch};

use in_flight::{InFlight, WatchedRequest};
use notice::Notice;
use receiver::Receiver;

pub use claims::remembered;

/// The receivers in force, and what outlives them.
#[derive(Default)]
pub struct Notices {
    in_force: Arc<InForce<Receiver>>,
    shared: Arc<Shared>,
}

/// What all receivers share.
#[derive(Default)]
struct Shared {
    filter: LazyLock<Filter>,
    in_flight: InFlight,
    /// `None` before the start.
    mask: OnceLock<Arc<KeyMask>>,
    /// `None` before the start.
    store: ArcSwapOption<Store>,
    counts: NoticeCounts,
}

#[derive(Debug, Default)]
pub struct NoticeCounts {
    pub delivered: SharedCounter,
    /// Attempts, each of which is followed by another unless the notice is dropped.
    pub failed: SharedCounter,
    /// There was no room in the queue.
    pub full: SharedCounter,
    /// The receiver has not taken it within an hour.
    pub expired: SharedCounter,
    /// The receiver was removed, or the gateway has ended.
    pub ended: SharedCounter,
}

/// The receivers of one configuration.
#[derive(Clone, Default)]
pub struct Receivers(Vec<(Arc<Receiver>, NoticeReceiver)>);

/// The receivers that are told about one limit.
#[derive(Default)]
pub struct LimitNotices {
    receivers: Receivers,
    has_public_keys: bool,
    shared: Arc<Shared>,
}

/// The text of a key, and whether nothing of the key was cut or replaced.
#[derive(Clone)]
pub struct KeyText {
    pub text: String,
    pub is_whole: bool,
}

impl Notices {
    /// The receivers of this configuration: those in force that have the same URL, or new ones.
    pub fn get(&self, config: &Config) -> Receivers {
        let all = config.notices.iter().enumerate().map(|(index, terms)| {
            let same = config.notices[..index].iter().filter(|earlier| earlier.url == terms.url).count();
            let name = Fingerprint::of(format!("{} {same}", terms.url.whole()).as_bytes());
            let known = self.in_force.find(|receiver| receiver.name == name);
            (known.unwrap_or_else(|| Arc::new(Receiver::new(name, terms, self.shared.clone()))), terms.clone())
        });
        Receivers(all.collect())
    }

    /// Who is told about this limit; `None` if nobody is.
    pub fn about(&self, receivers: &Receivers, limit: &config::Limit) -> Option<Arc<LimitNotices>> {
        let is_told = |(_, terms): &&(Arc<Receiver>, NoticeReceiver)| terms.limits.contains(&limit.name);
        let receivers: Vec<_> = receivers.0.iter().filter(is_told).cloned().collect();
        (!receivers.is_empty()).then(|| {
            let (receivers, shared) = (Receivers(receivers), self.shared.clone());
            Arc::new(LimitNotices { receivers, has_public_keys: limit.has_public_keys(), shared })
        })
    }

    /// Masks keys by this mask from now on.
    pub fn mask_by(&self, mask: Arc<KeyMask>) {
        let _ = self.shared.mask.set(mask);
    }

    /// Puts these receivers in force. Notices for others are dropped. Those that were sent are remembered in `store`.
    pub fn apply(&self, receivers: &Receivers, store: &Arc<Store>) {
        self.shared.store.store(Some(store.clone()));
        receivers.0.iter().for_each(|(receiver, terms)| receiver.set_terms(terms));
        let all = receivers.0.iter().map(|(receiver, _)| receiver.clone()).collect();
        for removed in self.in_force.replace(all) {
            removed.end("a reload has removed the receiver");
        }
    }

    /// Sends the waiting notices at the end of the process, for at most `limit`, except to receivers that take none. The rest is
    /// dropped.
    pub async fn finish(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        for receiver in self.in_force.all() {
            let _ = timeout_at(deadline, receiver.drained()).await;
        }
        for receiver in self.in_force.replace(Vec::new()) {
            receiver.end("the gateway ends");
        }
    }

    /// How many notices wait for receivers in force.
    pub fn waiting(&self) -> usize {
        self.in_force.all().iter().map(|receiver| receiver.waiting()).sum()
    }

    pub fn counts(&self) -> &NoticeCounts {
        &self.shared.counts
    }
}

impl LimitNotices {
    /// Adds the notices that nobody has been sent yet to the queues of their receivers. Never waits. `text` is called only if
    /// there is one.
    pub fn tell(&self, key: Fingerprint, text: impl Fn() -> KeyText, limit: &Limit, reached: &Reached) {
        // Only a gateway that runs sends notices, no simulation.
        let Some(mask) = self.shared.mask.get() else { return };
        for (receiver, terms) in &self.receivers.0 {
            for share in terms.at.iter().filter(|share| **share <= reached.share) {
                let notice = (receiver.name, limit.terms(), reached.rate, reached.window, *share, key);
                if !self.shared.filter.is_new(&notice) {
                    continue;
                }
                let text = match text() {
                    KeyText { text, .. } if !terms.full_keys && !self.has_public_keys => mask.of(key, &text),
                    KeyText { text, is_whole: false } => mask.identified(key, &text),
                    KeyText { text, .. } => text,
                };
                let notice = Notice::new(receiver.name, limit, key, text, *share, reached);
                notice.into_iter().for_each(|notice| receiver.add(notice));
            }
        }
    }

    /// Tells of the charges of a request for this key when they are settled.
    pub fn watch(self: &Arc<Self>, key: Fingerprint, text: KeyText) -> Watch {
        Watch::new(Arc::new(WatchedRequest::new(self.clone(), key, text)))
    }

    /// What requests in flight have reserved of this key, as far as this gateway knows.
    pub fn reserved(&self, key: Fingerprint) -> u64 {
        self.shared.in_flight.of(key)
    }
}

/// Of the filter: a power of two.
const PLACES: usize = 1 << 14;

/// Knows most notices that were added to a queue already, in bounded memory and without locks: each has one place in a table,
/// where a later one replaces it. What was replaced may be added again, so this only spares work.
struct Filter {
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
    fn is_new(&self, notice: &impl Hash) -> bool {
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
