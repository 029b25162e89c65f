//! The one task that talks to Memcached: gather what waits, exchange, decide in order, go round again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memcache::exp::{Arithmetic, AsyncMetaClient, Error, Get, Op, OpResult, Router};
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
    let mut wanted = Wanted::gather(link, &batch, now);

    let mut ops: Vec<(usize, Op)> = Vec::with_capacity(increments.0.len() + wanted.counters.len());
    for (name, (amount, lifetime)) in &increments.0 {
        if let Some(server) = link.server(name, now) {
            ops.push((server, Arithmetic::new(name).delta(*amount).initial(*amount, *lifetime).into()));
        }
    }
    let writes = ops.len();
    ops.extend(wanted.counters.iter().map(|(server, name)| (*server, Get::new(name).into())));
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
    /// Each with its server.
    counters: Vec<(usize, String)>,
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
    fn gather(link: &Link, batch: &[Job], now: Time) -> Self {
        let mut wanted = Self { keys: HashMap::new(), counters: Vec::new() };
        for ask in batch.iter().flat_map(|job| &job.asks) {
            let Self { keys, counters } = &mut wanted;
            keys.entry(ask.key.with(ask.limit.shape())).or_insert_with(|| {
                let base = keys::base(&link.config.prefix, &ask.limit, ask.key);
                let first = counters.len();
                let Some(server) = link.server(&base, now) else {
                    return Key { ask: ask.clone(), base, first, cell: None };
                };
                for rate in ask.limit.rates() {
                    let newest = now.micros() / rate.width();
                    let ages = 0..rate.slots() as u64;
                    let name = |age| keys::counter(&base, rate, newest.saturating_sub(age));
                    counters.extend(ages.map(|age| (server, name(age))));
                }
                Key { ask: ask.clone(), base, first, cell: Some(Cell::new(ask.limit.rates(), now)) }
            });
        }
        wanted
    }

    /// Takes over what Memcached answered, in the order of `counters`. What is no number is no count.
    fn fill(&mut self, results: &[Result<OpResult, Error>]) {
        for key in self.keys.values_mut().filter(|key| key.cell.is_some()) {
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
    /// For each server, until when nothing is asked of it, while it does not answer.
    away: Vec<Option<Time>>,
    logged: Option<Instant>,
    last: Option<Time>,
}

impl Link {
    fn new(config: config::Memcached, health: Arc<Health>) -> Self {
        let away = vec![None; config.servers.len()];
        Self { config, client: None, health, away, logged: None, last: None }
    }

    /// The server of a counter, unless it is away: the others go on without it.
    fn server(&self, name: &str, now: Time) -> Option<usize> {
        let server = Placement.route(name.as_bytes(), &self.config.servers);
        let away = self.away.get(server)?.is_some_and(|until| now < until);
        (!away).then_some(server)
    }

    /// Runs `ops`, each with its server, in one exchange. `None` if nothing came of it; what failed in part is an
    /// error in its place.
    async fn run(&mut self, ops: Vec<(usize, Op)>, now: Time) -> Option<Vec<Result<OpResult, Error>>> {
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
    fn note(&mut self, servers: &[usize], results: &[Result<OpResult, Error>], until: Time) {
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
