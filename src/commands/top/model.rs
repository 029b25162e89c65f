//! What is known about the gateway: its last numbers, and what has changed lately.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::feed::{Away, Update};
use super::format::float;
use super::quantiles::quantile;
use super::recent::{Growth, Recent};
use crate::admin::dashboard::{Durations, History, KeyCount, LimitDescription, Numbers, ServerNumbers, StoreNumbers};
use crate::admin::outcome_groups::{ByGroup, by_group_of_names};

/// For how long requests are shown, in milliseconds.
const SHOWN: u64 = 300_000;
/// Rates are means of so many milliseconds.
const RECENT: u64 = 5_000;
/// Quantiles are those of so many milliseconds.
const QUANTILES_OF: u64 = 30_000;
/// The most keys of each list. A gateway sends fewer.
const MOST_KEYS: usize = 100;
/// For how many minutes refusals are shown.
pub(super) const MINUTES: usize = 60;

/// The last numbers of the gateway, with those before them.
#[derive(Debug)]
pub(super) struct Model {
    numbers: Option<Received>,
    away: Option<Away>,
    requests: Recent<ByGroup<u64>>,
    counters: Recent<Counters>,
    durations: Recent<StageDurations>,
    /// What each limit has refused in each minute, the one in progress last.
    refusals: BTreeMap<String, Vec<u64>>,
    /// The minute in progress, since 1970.
    minute: u64,
    described: Result<BTreeMap<String, LimitDescription>, String>,
    /// Since when keys are counted.
    keys_since: String,
}

/// The last numbers.
#[derive(Debug)]
struct Received {
    numbers: Numbers,
    at: Instant,
}

/// The counters of which rates are shown.
#[derive(Debug, Default)]
struct Counters {
    /// What each limit has admitted and refused.
    limits: HashMap<String, [u64; 2]>,
    /// The requests and failures of each server of an upstream.
    servers: HashMap<String, HashMap<String, [u64; 2]>>,
    round_trips: u64,
}

/// The histograms of which quantiles are shown.
#[derive(Debug, Default)]
struct StageDurations {
    forwarded: Durations,
    round_trips: Durations,
}

/// A frequent key of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrequentKey {
    pub(super) key: String,
    pub(super) refused: Option<KeyCount>,
    pub(super) busy: Option<KeyCount>,
}

impl Model {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self {
            numbers: None,
            away: None,
            requests: Recent::new(SHOWN),
            counters: Recent::new(RECENT),
            durations: Recent::new(QUANTILES_OF),
            refusals: BTreeMap::new(),
            minute: 0,
            described: Ok(BTreeMap::new()),
            keys_since: String::new(),
        }
    }

    /// Takes over what the gateway has sent at `now`.
    pub(super) fn take(&mut self, update: Update, now: Instant) {
        match update {
            Update::History(history) => self.load(&history),
            Update::Numbers(numbers) => self.add(*numbers, now),
            Update::Limits(limits) => {
                self.keys_since = limits.keys_since;
                let by_name = limits.limits.into_iter().map(|limit| (limit.name.clone(), limit));
                self.described = Ok(by_name.collect());
            }
            Update::NoLimits(why) => self.described = Err(why),
            Update::Away(away) => self.away = Some(away),
        }
    }

    /// Replaces the past by what the gateway knows.
    fn load(&mut self, history: &History) {
        self.requests.clear();
        for (index, time) in history.times_ms.iter().enumerate() {
            let totals = history.requests.iter();
            let totals = totals.filter_map(|(outcome, totals)| Some((outcome.clone(), *totals.get(index)?)));
            self.requests.add(*time, by_group_of_names(&totals.collect()));
        }
        self.minute = history.minute;
        self.refusals = history.refused_by_minute.clone();
        // Others than the last are not shown.
        for minutes in self.refusals.values_mut() {
            *minutes = last_minutes(std::mem::take(minutes));
        }
    }

    fn add(&mut self, numbers: Numbers, now: Instant) {
        let last = self.numbers.as_ref().map(|last| &last.numbers);
        if last.is_some_and(|last| last.started != numbers.started || last.uptime_seconds > numbers.uptime_seconds) {
            // Another process has begun to count. Its history has come before.
            self.counters.clear();
            self.durations.clear();
        }
        let time = numbers.time_ms;
        self.requests.add(time, by_group_of_names(&numbers.requests));
        self.counters.add(time, Counters::of(&numbers));
        let round_trips = match &numbers.store {
            Some(StoreNumbers::Memcached(store)) => store.round_trip_seconds.clone(),
            _ => Durations::default(),
        };
        self.durations.add(time, StageDurations { forwarded: numbers.forwarded_seconds.clone(), round_trips });
        let passed = usize::try_from(numbers.minute.saturating_sub(self.minute)).unwrap_or(MINUTES).min(MINUTES);
        self.minute = numbers.minute;
        let mut earlier = std::mem::take(&mut self.refusals);
        for limit in &numbers.limits {
            let mut minutes = earlier.remove(&limit.name).unwrap_or_default();
            minutes.extend(std::iter::repeat_n(0, passed));
            minutes = last_minutes(minutes);
            if let Some(last) = minutes.last_mut() {
                *last = limit.refused_this_minute;
            }
            self.refusals.insert(limit.name.clone(), minutes);
        }
        self.away = None;
        self.numbers = Some(Received { numbers, at: now });
    }

    /// The last numbers, and how old they are at `now`.
    pub(super) fn numbers(&self, now: Instant) -> Option<(&Numbers, Duration)> {
        self.numbers.as_ref().map(|last| (&last.numbers, now.saturating_duration_since(last.at)))
    }

    /// Why there are no new numbers; `None` if there are.
    pub(super) fn away(&self) -> Option<&Away> {
        self.away.as_ref()
    }

    /// The requests per second of each group; `None` if nothing is known yet.
    pub(super) fn rates(&self) -> Option<ByGroup<f64>> {
        self.requests.growth(RECENT).map(rates)
    }

    /// The same for equal parts of the last five minutes, the oldest first.
    pub(super) fn rates_of_parts(&self, count: usize) -> Vec<Option<ByGroup<f64>>> {
        self.requests.parts(count).into_iter().map(|part| part.map(rates)).collect()
    }

    /// What a limit admits and refuses per second.
    pub(super) fn decisions(&self, limit: &str) -> Option<[f64; 2]> {
        pair(&self.counters.growth(RECENT)?, |counters| counters.limits.get(limit))
    }

    /// What a limit has refused in each of the last minutes, the one in progress last.
    pub(super) fn refusals(&self, limit: &str) -> &[u64] {
        self.refusals.get(limit).map_or(&[], Vec::as_slice)
    }

    /// The rates of a limit, and its keys.
    pub(super) fn described(&self, limit: &str) -> Option<&LimitDescription> {
        self.described.as_ref().ok()?.get(limit)
    }

    /// Why keys are not known, if so.
    pub(super) fn no_keys(&self) -> Option<&str> {
        self.described.as_ref().err().map(String::as_str)
    }

    /// Since when keys are counted, as RFC 3339 writes it; empty if that is not known.
    pub(super) fn keys_since(&self) -> &str {
        &self.keys_since
    }

    /// The keys of a limit that are most refused or most busy.
    pub(super) fn keys(&self, limit: &str) -> Vec<FrequentKey> {
        let Some(limit) = self.described(limit) else { return Vec::new() };
        let mut keys: Vec<_> = limit
            .most_refused
            .iter()
            .take(MOST_KEYS)
            .map(|count| FrequentKey { key: count.key.clone(), refused: Some(count.clone()), busy: None })
            .collect();
        for count in limit.most_busy.iter().take(MOST_KEYS) {
            match keys.iter_mut().find(|known| known.key == count.key) {
                Some(known) => known.busy = Some(count.clone()),
                None => keys.push(FrequentKey { key: count.key.clone(), refused: None, busy: Some(count.clone()) }),
            }
        }
        keys
    }

    /// The requests and failures per second of a server of an upstream.
    pub(super) fn server(&self, upstream: &str, server: &ServerNumbers) -> Option<[f64; 2]> {
        pair(&self.counters.growth(RECENT)?, |counters| counters.servers.get(upstream)?.get(&server.server))
    }

    /// The exchanges with Memcached per second.
    pub(super) fn round_trips(&self) -> Option<f64> {
        let growth = self.counters.growth(RECENT)?;
        Some(per_second(growth.before.round_trips, growth.now.round_trips, growth.seconds))
    }

    /// Within which time this share of the requests was answered by upstreams, in seconds.
    pub(super) fn forwarded_within(&self, share: f64) -> Option<f64> {
        let growth = self.durations.growth(QUANTILES_OF)?;
        quantile(&growth.before.forwarded, &growth.now.forwarded, share)
    }

    /// Within which time this share of the exchanges with Memcached was done, in seconds.
    pub(super) fn round_trips_within(&self, share: f64) -> Option<f64> {
        let growth = self.durations.growth(QUANTILES_OF)?;
        quantile(&growth.before.round_trips, &growth.now.round_trips, share)
    }
}

impl Counters {
    fn of(numbers: &Numbers) -> Self {
        let limits = numbers.limits.iter();
        let limits =
            limits.map(|limit| (limit.name.clone(), [limit.decisions.admitted, limit.decisions.refused()])).collect();
        let servers = |servers: &[ServerNumbers]| {
            servers.iter().map(|server| (server.server.clone(), [server.requests, server.failures])).collect()
        };
        let upstreams = numbers.upstreams.iter();
        let servers = upstreams.map(|upstream| (upstream.name.clone(), servers(&upstream.servers))).collect();
        let round_trips = match &numbers.store {
            Some(StoreNumbers::Memcached(store)) => store.round_trips,
            _ => 0,
        };
        Self { limits, servers, round_trips }
    }
}

/// The last minutes, with 0 for those that are not known.
fn last_minutes(mut minutes: Vec<u64>) -> Vec<u64> {
    let more = minutes.len().saturating_sub(MINUTES);
    minutes.drain(..more);
    let missing = MINUTES - minutes.len();
    minutes.splice(0..0, std::iter::repeat_n(0, missing));
    minutes
}

fn per_second(before: u64, now: u64, seconds: f64) -> f64 {
    float(now.saturating_sub(before)) / seconds
}

fn rates(growth: Growth<'_, ByGroup<u64>>) -> ByGroup<f64> {
    std::array::from_fn(|group| per_second(growth.before[group], growth.now[group], growth.seconds))
}

/// How much two counters that `read` finds grow in a second; `None` if there is nothing to compare.
fn pair<'a>(growth: &Growth<'a, Counters>, read: impl Fn(&'a Counters) -> Option<&'a [u64; 2]>) -> Option<[f64; 2]> {
    let (before, now) = (read(growth.before)?, read(growth.now)?);
    Some([0, 1].map(|index| per_second(before[index], now[index], growth.seconds)))
}
