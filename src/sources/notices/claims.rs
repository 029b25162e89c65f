//! Remembers which notices were sent, until a little after their window: with the counters in memory, so that `snapshot` saves
//! it, or in the shared store, so that one gateway sends what all have seen. If servers of the store do not answer, a notice
//! may be sent several times, since it must not be lost.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::notice::Notice;
use crate::base::clock::{self, Time};
use crate::config;
use crate::limit::{Limit, MAX_WINDOW, Rate, Strategy};
use crate::store::memory::Memory;
use crate::store::shared::Notes;
use crate::store::{Ask, Counters, Store};

/// No limit of the configuration can have this name.
const NAME: &str = "#notices";
/// How long a notice is remembered: the shortest of these that lasts until a little after its window.
const SPANS: [Duration; 4] =
    [Duration::from_secs(60), Duration::from_secs(3_600), Duration::from_secs(86_400), MAX_WINDOW];
/// Clocks of gateways differ a little.
const LONGER: Duration = Duration::from_secs(10);
/// The most notices that a gateway with a shared store remembers itself, and their most bytes.
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 32 << 20;
/// For how long a store is not asked that has not answered.
const PAUSE: Duration = Duration::from_secs(10);

/// Admit one notice each, and count it in the store.
static LIMITS: LazyLock<Vec<Arc<Limit>>> = LazyLock::new(|| {
    let rates = SPANS.iter().filter_map(|span| Rate::new(1, *span).ok()?.with_strategy(Strategy::FixedWindow).ok());
    rates.map(|rate| Arc::new(Limit::new(NAME, &[rate]))).collect()
});

/// The limits that remember notices in the store, like those of the configuration.
pub fn remembered<'a>() -> impl Iterator<Item = &'a Arc<Limit>> {
    LIMITS.iter()
}

pub(super) struct Claims {
    store: Arc<Store>,
    /// `None` if the store is in memory.
    shared: Option<SharedClaims>,
}

struct SharedClaims {
    notes: Notes,
    /// What this gateway remembers, so that it sends nothing twice while the store does not answer.
    own: Memory,
    /// Until when the store is not asked, because it has not answered.
    away_until: Mutex<Option<Instant>>,
}

impl Claims {
    pub(super) fn new(store: &Arc<Store>, config: &config::Store) -> Self {
        let shared = match config {
            config::Store::Memory { .. } => None,
            config::Store::Shared(config) => {
                let (notes, own, away_until) = (Notes::new(config), Memory::new(MOST, MOST_BYTES), Mutex::default());
                Some(SharedClaims { notes, own, away_until })
            }
        };
        Self { store: store.clone(), shared }
    }

    pub(super) fn is_of(&self, store: &Arc<Store>) -> bool {
        Arc::ptr_eq(&self.store, store)
    }

    fn memory(&self) -> Option<&Memory> {
        match (&self.shared, self.store.counters()) {
            (Some(shared), _) => Some(&shared.own),
            (None, Counters::Memory(memory)) => Some(memory),
            (None, Counters::Shared(_)) => None,
        }
    }

    /// Whether this gateway is the one to send the notice, for the first time.
    pub(super) async fn claim(&self, notice: &Notice) -> bool {
        let now = clock::now();
        let lasts = lasts(notice, now);
        if let (Some(memory), Some(limit)) = (self.memory(), limit(lasts)) {
            let reply = memory.decide(&[Ask::new(limit, notice.id, 1)], now);
            if reply.verdict(0).is_some_and(|verdict| !verdict.admitted) {
                return false;
            }
        }
        match &self.shared {
            Some(shared) => shared.claim(notice, lasts).await,
            None => true,
        }
    }

    /// Forgets notices that were not sent.
    pub(super) async fn give_back(&self, notices: impl Iterator<Item = &Notice>) {
        for notice in notices {
            self.memory().iter().for_each(|memory| LIMITS.iter().for_each(|limit| memory.reset(limit, notice.id)));
            if let Some(shared) = &self.shared
                && let Err(error) = shared.notes.remove(&subject(notice)).await
            {
                tracing::debug!(%error, "a notice that was not sent cannot be forgotten");
                return;
            }
        }
    }
}

impl SharedClaims {
    async fn claim(&self, notice: &Notice, lasts: Duration) -> bool {
        if self.away_until.lock().is_some_and(|until| Instant::now() < until) {
            return true;
        }
        let claimed = self.notes.claim(&subject(notice), "-", lasts).await;
        *self.away_until.lock() = claimed.is_err().then(|| Instant::now() + PAUSE);
        claimed.unwrap_or(true)
    }
}

fn subject(notice: &Notice) -> String {
    format!("notice {}", String::from_utf8_lossy(&notice.id.digits()))
}

/// How long a notice must be remembered.
fn lasts(notice: &Notice, now: Time) -> Duration {
    Duration::from_micros(notice.until.micros_since(now)) + LONGER
}

fn limit(lasts: Duration) -> Option<&'static Arc<Limit>> {
    SPANS.iter().zip(LIMITS.iter()).find(|(span, _)| **span >= lasts).map(|(_, limit)| limit).or(LIMITS.last())
}
