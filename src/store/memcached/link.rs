//! The connection to Memcached: the crate's client, and what is known of the other side.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memcache::exp::{AsyncMetaClient, Error, Op, OpResult};

use super::Health;
use super::keys::Placement;
use crate::clock::{Time, micros};
use crate::config;

/// How long a Memcached that did not answer is left alone.
const BACK_OFF: Duration = Duration::from_millis(250);
/// The shortest time between two log lines about a Memcached that is away.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// What came of one operation.
pub(super) type Outcome = Result<OpResult, Error>;

/// The client and what is known of the other side.
pub(super) struct Link {
    pub(super) config: config::Memcached,
    client: Option<AsyncMetaClient>,
    health: Arc<Health>,
    logged: Option<Instant>,
}

impl Link {
    pub(super) fn new(config: config::Memcached, health: Arc<Health>) -> Self {
        Self { config, client: None, health, logged: None }
    }

    /// Runs `ops` in one exchange. `None` if nothing came of it; what failed in part is an error in its place.
    pub(super) async fn run(&mut self, ops: Vec<Op>, now: Time) -> Option<Vec<Outcome>> {
        let begun = Instant::now();
        self.health.round_trips.one();
        let results = match self.client().await {
            Ok(client) => client.run_batch(ops).await,
            Err(error) => Err(error),
        };
        self.health.latency.observe(micros(begun.elapsed()));
        match results {
            Ok(results) => {
                let failed = results.iter().find_map(|result| result.as_ref().err());
                if let Some(error) = failed {
                    self.failed(error, results.iter().all(Result::is_err), now, begun.elapsed());
                } else if self.health.away_until.swap(0, Ordering::Relaxed) != 0 {
                    tracing::info!("memcached is back");
                }
                Some(results)
            }
            Err(error) => {
                self.failed(&error, true, now, begun.elapsed());
                None
            }
        }
    }

    async fn client(&mut self) -> Result<&AsyncMetaClient, Error> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                AsyncMetaClient::builder()
                    .router(Placement)
                    .connect_timeout(Some(self.config.timeout))
                    .io_timeout(Some(self.config.timeout))
                    .connect_multiple_async(&self.config.servers)
                    .await?
            }
        };
        Ok(self.client.insert(client))
    }

    fn failed(&mut self, error: &Error, all: bool, now: Time, took: Duration) {
        self.health.errors.one();
        if all {
            self.health.away_until.store(now.after(took + BACK_OFF).micros(), Ordering::Relaxed);
        }
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            tracing::warn!(%error, "memcached does not answer: requests are not counted");
        }
    }
}
