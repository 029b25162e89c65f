//! The connection to Memcached: the crate's client, and what is known of the other side.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memcache::exp::{AsyncMetaClient, Error, Op, OpResult, Router};

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
    /// For each server, until when nothing is asked of it, while it does not answer.
    away: Vec<Option<Time>>,
    logged: Option<Instant>,
}

impl Link {
    pub(super) fn new(config: config::Memcached, health: Arc<Health>) -> Self {
        let away = vec![None; config.servers.len()];
        Self { config, client: None, health, away, logged: None }
    }

    /// Which server all counters of a key are on.
    pub(super) fn place(&self, base: &str) -> usize {
        Placement.route(base.as_bytes(), &self.config.servers)
    }

    /// Whether a server is left alone for now: the others go on without it.
    pub(super) fn is_away(&self, server: usize, now: Time) -> bool {
        self.away.get(server).is_none_or(|away| away.is_some_and(|until| now < until))
    }

    /// Runs `ops`, each with its server, in one exchange. `None` if nothing came of it; what failed in part is an
    /// error in its place.
    pub(super) async fn run(&mut self, ops: Vec<(usize, Op)>, now: Time) -> Option<Vec<Outcome>> {
        let (servers, ops): (Vec<usize>, Vec<Op>) = ops.into_iter().unzip();
        let begun = Instant::now();
        self.health.round_trips.one();
        let results = match self.client().await {
            Ok(client) => client.run_batch(ops).await,
            Err(error) => Err(error),
        };
        self.health.latency.observe(micros(begun.elapsed()));
        let until = now.after(begun.elapsed() + BACK_OFF);
        match results {
            Ok(results) => {
                self.note(&servers, &results, until);
                Some(results)
            }
            Err(error) => {
                self.away.fill(Some(until));
                self.failed(&error);
                None
            }
        }
    }

    /// Notes which servers have answered, and leaves those alone that have not.
    fn note(&mut self, servers: &[usize], results: &[Outcome], until: Time) {
        let mut back = false;
        for (server, away) in self.away.iter_mut().enumerate() {
            let answers = servers.iter().zip(results).filter(|(at, _)| **at == server).map(|(_, answer)| answer);
            let (failed, asked) = answers.fold((0, 0), |(f, a), answer| (f + usize::from(answer.is_err()), a + 1));
            match failed {
                _ if asked == 0 => {}
                0 => back |= away.take().is_some(),
                failed if failed == asked => *away = Some(until),
                _ => {}
            }
        }
        if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
            self.failed(error);
        } else {
            self.tell();
            if back {
                tracing::info!("memcached is back");
            }
        }
    }

    /// Tells those who ask until when no server is to be had at all.
    fn tell(&self) {
        let all_away = self.away.iter().copied().collect::<Option<Vec<_>>>().and_then(|until| until.into_iter().min());
        self.health.away_until.store(all_away.map_or(0, Time::micros), Ordering::Relaxed);
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

    fn failed(&mut self, error: &Error) {
        self.tell();
        self.health.errors.one();
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            tracing::warn!(%error, "memcached does not answer: requests are not counted");
        }
    }
}
