//! One source of quotas, as workers see it: a cache, and two bounded queues to the thread that asks. One queue is for cached
//! keys, so that invented keys cannot prevent renewals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};

use super::availability::{Availability, LOOKUP_LIMIT};
use super::cache::{Cache, CacheAnswer, CachedQuota, LookupAnswer};
use super::origin::QuotaOrigin;
use super::quota::{Quota, Terms};
use super::{LookupError, QuotaAnswer};
use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::base::metrics::{Counter, Histogram, SharedCounter};
use crate::base::threads::block_on;
use crate::config::known_keys::whole_digest;
use crate::config::{self, Quotas, SentKey};

/// The length of each of the two queues.
const QUEUE: usize = 1024;

/// The longest key that is sent as it is, in bytes. A longer one gets the limit's own rates.
const MAX_KEY: usize = 1024;

pub(super) struct Lookup {
    pub(super) key: Fingerprint,
    /// The key in the form in which it is sent.
    pub(super) sent: String,
    /// Notified when the lookup has ended. Dropping it wakes all who wait, too, and they look into the cache again.
    pub(super) done: watch::Sender<()>,
}

/// The ends of the queues, for the thread that asks.
pub(super) struct Inbox {
    /// Lookups of unknown keys. Clients can fill this queue with invented keys.
    pub(super) new: mpsc::Receiver<Lookup>,
    pub(super) renewals: mpsc::Receiver<Lookup>,
}

/// How lookups have ended. Only one thread writes most of them.
#[derive(Debug, Default)]
pub struct LookupCounters {
    pub found: Counter,
    pub absent: Counter,
    pub unusable: Counter,
    /// The source cannot be reached, or does not answer in time.
    pub failed: Counter,
    /// The duration of lookups with an answer.
    pub duration: Histogram,
    /// Lookups that were not made because a queue was full.
    pub skipped: SharedCounter,
    /// Requests that have waited for the maximum time.
    pub timed_out: SharedCounter,
}

/// The quotas of the keys of one limit.
pub struct QuotaSource {
    pub settings: Quotas,
    terms: ArcSwap<Terms>,
    /// Of `terms`.
    version: AtomicU64,
    pub cache: Cache,
    new: mpsc::Sender<Lookup>,
    renewals: mpsc::Sender<Lookup>,
    inbox: Mutex<Inbox>,
    pub availability: Availability,
    pub counters: LookupCounters,
}

impl QuotaSource {
    pub(super) fn new(settings: &Quotas, terms: Terms) -> Self {
        let ((new, new_inbox), (renewals, renewals_inbox)) = (mpsc::channel(QUEUE), mpsc::channel(QUEUE));
        Self {
            settings: settings.clone(),
            version: AtomicU64::new(terms.version),
            terms: ArcSwap::from_pointee(terms),
            cache: Cache::new(settings.max_cached, settings.cache_for),
            new,
            renewals,
            inbox: Mutex::new(Inbox { new: new_inbox, renewals: renewals_inbox }),
            availability: Availability::default(),
            counters: LookupCounters::default(),
        }
    }

    pub fn limit(&self) -> String {
        self.terms.load().limit.name.clone()
    }

    /// Whether the cached answers are valid for this configuration too.
    pub(super) fn is_for(&self, limit: &config::Limit) -> bool {
        let terms = self.terms.load();
        // A key made from other sources has another fingerprint.
        terms.limit.name == limit.name && terms.limit.key == limit.key && limit.quotas.as_ref() == Some(&self.settings)
    }

    /// Reads answers by the terms of this limit from now on.
    pub(super) fn set_terms(&self, limit: &config::Limit) {
        let before = self.terms.load();
        if before.limit != *limit {
            let version = before.version + 1;
            self.terms.store(Arc::new(Terms::new(limit.clone(), version)));
            self.version.store(version, Ordering::Release);
        }
    }

    /// For the one task that makes the lookups.
    pub(super) async fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().await
    }

    /// The form in which a key is sent; `None` if it cannot be sent.
    pub fn sent(&self, key: &[u8]) -> Option<String> {
        match self.settings.send {
            SentKey::Sha256 => Some(whole_digest(key)),
            SentKey::Key if key.len() > MAX_KEY || key.contains(&0) => None,
            SentKey::Key => std::str::from_utf8(key).ok().map(str::to_owned),
        }
    }

    /// The quota of a key; a lookup is queued if one is due. `text` is called only for a lookup and returns the key, if the
    /// source can be asked about it.
    pub fn get(&self, key: Fingerprint, now: Time, text: impl FnOnce() -> Option<Vec<u8>>) -> CacheAnswer {
        let CacheAnswer { quota, wait } = self.cache.get(key, now, |is_renewal| self.begin(key, is_renewal, text));
        let quota = quota.and_then(|quota| self.current(key, quota));
        CacheAnswer { quota, wait: wait.filter(|_| !self.availability.is_away()) }
    }

    /// The cached quota of a key, after a wait.
    pub fn cached(&self, key: Fingerprint, now: Time) -> Option<Arc<Quota>> {
        let quota = self.cache.get(key, now, |_| None).quota?;
        self.current(key, quota)
    }

    /// The cache entry of a key, for people.
    pub fn peek(&self, key: Fingerprint) -> Option<CachedQuota> {
        let mut cached = self.cache.peek(key)?;
        cached.quota = cached.quota.and_then(|quota| self.current(key, quota));
        Some(cached)
    }

    /// The quota by the terms in force, which a reload may have changed since the answer was read.
    fn current(&self, key: Fingerprint, quota: Arc<Quota>) -> Option<Arc<Quota>> {
        if quota.version >= self.version.load(Ordering::Acquire) {
            return Some(quota);
        }
        let terms = self.terms.load();
        let read = Arc::new(terms.read(quota.answer.clone()).ok().flatten()?);
        self.cache.replace(key, &read);
        Some(read)
    }

    /// Queues a lookup, and returns its end; `None` if the queue is full, the source is unavailable, or the key cannot be sent.
    fn begin(
        &self,
        key: Fingerprint,
        is_renewal: bool,
        text: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<watch::Receiver<()>> {
        if !self.availability.may_admit() {
            return None;
        }
        let queue = if is_renewal { &self.renewals } else { &self.new };
        let Ok(place) = queue.try_reserve() else {
            self.counters.skipped.one();
            return None;
        };
        let sent = self.sent(&text()?)?;
        // Last, so that no key which cannot be sent takes the one lookup of an unavailable source.
        if !self.availability.admits() {
            return None;
        }
        let (done, end) = watch::channel(());
        place.send(Lookup { key, sent, done });
        Some(end)
    }

    /// Reads and records the answer of the server.
    pub(super) fn end(&self, lookup: &Lookup, result: Result<Option<QuotaAnswer>, LookupError>, now: Time) {
        let (found, counter) = match result {
            Ok(None) => (LookupAnswer::Absent, &self.counters.absent),
            Ok(Some(answer)) => match self.terms.load().read(answer) {
                Ok(Some(quota)) => (LookupAnswer::Quota(Arc::new(quota)), &self.counters.found),
                Ok(None) => (LookupAnswer::Absent, &self.counters.absent),
                Err(why) => (self.unusable(&why), &self.counters.unusable),
            },
            Err(LookupError::Unusable(why)) => (self.unusable(&why), &self.counters.unusable),
            Err(LookupError::Away(_) | LookupError::Unanswered(_)) => match self.availability.is_away() {
                true => (LookupAnswer::Nothing, &self.counters.failed),
                // Other keys may get answers.
                false => (LookupAnswer::Unusable, &self.counters.failed),
            },
        };
        counter.one();
        self.cache.end(lookup.key, Fingerprint::of(lookup.sent.as_bytes()), found, now);
        // All who wait look into the cache again.
        let _ = lookup.done.send(());
    }

    fn unusable(&self, why: &str) -> LookupAnswer {
        // Only powers of ten are logged, so that a source that answers each key wrongly does not fill the log.
        let count = self.counters.unusable.get() + 1;
        if count == 10_u64.pow(count.ilog10()) {
            tracing::warn!(
                limit = self.limit(),
                count,
                why,
                "a source of quotas has given an answer that cannot be used"
            );
        }
        LookupAnswer::Unusable
    }

    /// Asks the source about a key without the cache, and blocks until the answer. `None` if the key cannot be sent or has no
    /// quota. The error says why there is no answer that can be used.
    pub fn ask(&self, key: &[u8]) -> Result<Option<Quota>, String> {
        let Some(sent) = self.sent(key) else { return Ok(None) };
        let asked = block_on(async {
            let origin = QuotaOrigin::new(&self.settings.server, |_| {});
            let limit = humantime::format_duration(LOOKUP_LIMIT);
            tokio::select! {
                answer = origin.look_up(&sent) => answer,
                () = origin.run() => Err(LookupError::Away("the connection has ended".to_owned())),
                () = tokio::time::sleep(LOOKUP_LIMIT) => Err(LookupError::Unanswered(format!("no answer within {limit}"))),
            }
        });
        match asked.map_err(|error| error.to_string())? {
            Ok(None) => Ok(None),
            Ok(Some(answer)) => self.terms.load().read(answer),
            Err(LookupError::Away(why)) => Err(format!("the source is away: {why}")),
            Err(LookupError::Unanswered(why) | LookupError::Unusable(why)) => Err(why),
        }
    }
}
