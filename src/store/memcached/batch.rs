//! The one task that talks to Memcached: gather what waits, exchange, decide in order, go round again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memcache::exp::{Arithmetic, AsyncMetaClient, Error, Get, Op, OpResult};
use tokio::sync::mpsc::UnboundedReceiver;

use super::keys::{self, Placement};
use super::{Health, Job, Wish};
use crate::clock::{Time, micros};
use crate::config;
use crate::fingerprint::Fingerprint;
use crate::limit::{Cell, Rate};
use crate::store::Verdicts;

/// Decisions that share a round trip at most: more would wait for each other rather than for Memcached.
const BATCH: usize = 128;
/// How long a Memcached that did not answer is left alone.
const BACK_OFF: Duration = Duration::from_millis(250);
/// The shortest time between two log lines about a Memcached that is away.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Works until the last sender of jobs is gone.
pub(super) async fn run(config: config::Memcached, mut jobs: UnboundedReceiver<Job>, health: Arc<Health>) {
    let mut link = Link::new(config, health);
    let mut increments = Increments::default();
    loop {
        let mut batch = Vec::new();
        if increments.0.is_empty() {
            match jobs.recv().await {
                Some(job) => batch.push(job),
                None => return,
            }
        }
        while batch.len() < BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
        // Who no longer waits is not asked for.
        batch.retain(|job| !job.reply.is_closed());
        increments = exchange(&mut link, std::mem::take(&mut increments), batch).await;
    }
}

/// What was admitted and is not in Memcached yet: name, amount, lifetime.
#[derive(Default)]
struct Increments(HashMap<String, (u64, u32)>);

/// One round trip and the decisions that it allows; returns what they admitted.
///
/// On failure the replies are dropped, which tells those who wait.
async fn exchange(link: &mut Link, increments: Increments, batch: Vec<Job>) -> Increments {
    let Some(now) = batch.iter().map(|job| job.now).max().or(link.last) else { return Increments::default() };
    link.last = Some(now);
    let mut wanted = Wanted::gather(&link.config.prefix, &batch, now);

    let mut ops: Vec<Op> = Vec::with_capacity(increments.0.len() + wanted.counters.len());
    for (name, (amount, lifetime)) in &increments.0 {
        ops.push(Arithmetic::new(name).delta(*amount).initial(*amount, *lifetime).into());
    }
    let writes = ops.len();
    ops.extend(wanted.counters.iter().map(|name| Op::from(Get::new(name))));
    if ops.is_empty() {
        return Increments::default();
    }
    let Some(results) = link.run(ops, now).await else { return Increments::default() };
    wanted.fill(&results[writes..]);

    let mut admitted = Increments::default();
    for job in batch {
        if let Some(verdicts) = wanted.decide(&job.asks, now, &mut admitted) {
            // A receiver that is gone has given up waiting and let its request through: counting it is right.
            let _ = job.reply.send(verdicts);
        }
    }
    admitted
}

/// The counters that a batch reads: each key once, however many ask for it.
struct Wanted {
    keys: HashMap<Fingerprint, Key>,
    counters: Vec<String>,
}

/// One key of a batch.
struct Key {
    ask: Wish,
    base: String,
    /// Where its counters begin in the list.
    first: usize,
    /// `None` if they could not be read.
    cell: Option<Cell>,
}

impl Wanted {
    fn gather(prefix: &str, batch: &[Job], now: Time) -> Self {
        let mut wanted = Self { keys: HashMap::new(), counters: Vec::new() };
        for ask in batch.iter().flat_map(|job| &job.asks) {
            let Self { keys, counters } = &mut wanted;
            keys.entry(ask.key.with(ask.limit.shape())).or_insert_with(|| {
                let base = keys::base(prefix, &ask.limit, ask.key);
                let first = counters.len();
                for rate in ask.limit.rates() {
                    let newest = now.micros() / rate.width();
                    let ages = 0..rate.slots() as u64;
                    counters.extend(ages.map(|age| keys::counter(&base, rate, newest.saturating_sub(age))));
                }
                Key { ask: ask.clone(), base, first, cell: Some(Cell::new(ask.limit.rates(), now)) }
            });
        }
        wanted
    }

    /// Takes over what Memcached answered, in the order of `counters`. What is no number is no count.
    fn fill(&mut self, results: &[Result<OpResult, Error>]) {
        for key in self.keys.values_mut() {
            let rates = key.ask.limit.rates();
            let slots: usize = rates.iter().map(Rate::slots).sum();
            let answers = results.get(key.first..key.first + slots).unwrap_or_default();
            if answers.len() < slots || answers.iter().any(Result::is_err) {
                key.cell = None;
                continue;
            }
            let mut answers = answers.iter().map(count);
            if let Some(cell) = &mut key.cell {
                cell.fill(rates, |_, _| answers.next().unwrap_or(0));
            }
        }
    }

    /// Decides one request against the counts as they are after those before it.
    fn decide(&mut self, asks: &[Wish], now: Time, admitted: &mut Increments) -> Option<Verdicts> {
        let mut all = true;
        for ask in asks {
            let cell = self.keys.get(&ask.key.with(ask.limit.shape()))?.cell.as_ref()?;
            all &= ask.limit.admits(cell, now, ask.cost);
        }
        asks.iter()
            .map(|ask| {
                let key = self.keys.get_mut(&ask.key.with(ask.limit.shape()))?;
                let cell = key.cell.as_mut()?;
                if all {
                    ask.limit.charge(cell, ask.cost);
                    admitted.add(&key.base, ask, now);
                }
                Some((ask.place, ask.limit.judge(cell, now, ask.cost, all)))
            })
            .collect()
    }
}

impl Increments {
    fn add(&mut self, base: &str, ask: &Wish, now: Time) {
        for rate in ask.limit.rates() {
            let name = keys::counter(base, rate, now.micros() / rate.width());
            self.0.entry(name).or_insert((0, keys::lifetime(rate, now))).0 += ask.cost;
        }
    }
}

fn count(answer: &Result<OpResult, Error>) -> u64 {
    let value = answer.as_ref().ok().and_then(OpResult::as_get).and_then(|get| get.value.as_deref());
    value.and_then(|value| std::str::from_utf8(value).ok()).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The client and what is known of the other side.
struct Link {
    config: config::Memcached,
    client: Option<AsyncMetaClient>,
    health: Arc<Health>,
    logged: Option<Instant>,
    last: Option<Time>,
}

impl Link {
    fn new(config: config::Memcached, health: Arc<Health>) -> Self {
        Self { config, client: None, health, logged: None, last: None }
    }

    /// Runs `ops` in one exchange. `None` if nothing came of it; what failed in part is an error in its place.
    async fn run(&mut self, ops: Vec<Op>, now: Time) -> Option<Vec<Result<OpResult, Error>>> {
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
