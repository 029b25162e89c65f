//! What reloads have changed about limits: which limits exist, and which limit continues the counts of which.
//!
//! A limit is identified by its name and the layout of its cells. A replaced limit is remembered for as long as its
//! counts can matter, so that each of its keys can be migrated when it is used next.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::{Limit, Rate, Verdict};
use crate::store::LimitChanges;

/// The most migrations that are remembered for one name. A key with an older cell begins again from zero.
const MOST_PER_NAME: usize = 16;

/// A limit whose counts another limit continues.
#[derive(Clone, Debug)]
pub(super) struct Migration {
    pub(super) from: Arc<Limit>,
    pub(super) to: Arc<Limit>,
    /// When the reload took effect.
    pub(super) at: Time,
    /// When it expires, because no count of the old limit matters any longer.
    until: Time,
    /// The number of the reload because of which it is needed. That is later than `at` if it joins two others.
    pub(super) reload: u32,
}

impl Migration {
    /// `None` if there are no counts to continue.
    fn new(from: &Arc<Limit>, to: &Arc<Limit>, at: Time, reload: u32) -> Option<Self> {
        let until = at.after(Duration::from_micros(to.migration_memory(from)));
        let is_needed = from.id() != to.id() && to.continues(from);
        is_needed.then(|| Self { from: from.clone(), to: to.clone(), at, until, reload })
    }

    /// Whether counts of the old limit may still matter.
    pub(super) fn is_open(&self, now: Time) -> bool {
        self.until > now
    }

    fn ids(&self) -> (Fingerprint, Fingerprint) {
        (self.from.id(), self.to.id())
    }
}

/// Everything that reloads have changed, up to a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Reloads {
    /// The newest first.
    migrations: Vec<Migration>,
    /// The limits of the configuration, and for each the lowest of the rates that its keys may have; `None` before the first
    /// reload.
    in_use: Option<HashMap<Fingerprint, Vec<Rate>, RandomState>>,
    /// The names of those whose keys may have any rates.
    with_quotas: HashSet<String, RandomState>,
    /// How many reloads there were; it may wrap.
    count: u32,
}

impl Reloads {
    /// After another reload, at `now`.
    pub(super) fn next(&self, changes: &LimitChanges, now: Time) -> Self {
        let count = self.count.wrapping_add(1);
        let new = changes.replaced.iter().filter_map(|(from, to)| Migration::new(from, to, now, count));
        // A key that was not used since an earlier reload is migrated to the newest limit in one step.
        let earlier = self.migrations.iter().filter(|earlier| earlier.is_open(now));
        let joined = earlier.clone().flat_map(|earlier| {
            let further = changes.replaced.iter().filter(|(from, _)| from.id() == earlier.to.id());
            further.filter_map(|(_, to)| Migration::new(&earlier.from, to, earlier.at, count))
        });
        let mut migrations: Vec<_> = new.chain(joined).chain(earlier.cloned()).collect();
        migrations.sort_by_key(|migration| Reverse(migration.at));
        let (mut seen, mut counts) = (HashSet::new(), HashMap::new());
        let names: HashSet<&str> = changes.in_use.iter().map(|limit| limit.name()).collect();
        migrations.retain(|migration| {
            let name = migration.to.name();
            let count = counts.entry(name.to_owned()).or_insert(0);
            let stays = migration.is_open(now)
                && names.contains(name)
                && *count < MOST_PER_NAME
                && seen.insert(migration.ids());
            *count += usize::from(stays);
            stays
        });
        let mut in_use: HashMap<_, Vec<Rate>, _> = HashMap::default();
        for limit in &changes.in_use {
            let lowest = in_use.entry(limit.id()).or_insert_with(|| limit.rates().to_vec());
            // Limits with the same id have the same windows in the same order.
            let lower = lowest.iter_mut().zip(limit.rates()).filter(|(lowest, rate)| rate.quota() < lowest.quota());
            lower.for_each(|(lowest, rate)| *lowest = rate.clone());
        }
        let in_use = Some(in_use);
        Self { migrations, in_use, with_quotas: changes.with_quotas.iter().cloned().collect(), count }
    }

    /// Without the migrations that have expired at `now`; `None` if none has.
    pub(super) fn expired(&self, now: Time) -> Option<Self> {
        if self.migrations.iter().all(|migration| migration.is_open(now)) {
            return None;
        }
        let migrations = self.migrations.iter().filter(|migration| migration.is_open(now)).cloned().collect();
        Some(Self { migrations, ..self.clone() })
    }

    /// How many reloads there were; it may wrap.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// When the last migration expires.
    pub(super) fn until(&self) -> Time {
        self.migrations.iter().map(|migration| migration.until).max().unwrap_or(Time::from_micros(0))
    }

    /// The migrations to this limit, the latest first.
    pub(super) fn before(&self, limit: &Limit) -> impl Iterator<Item = &Migration> {
        self.migrations.iter().filter(|migration| migration.to.id() == limit.id())
    }

    /// The migrations from this limit, the latest first.
    pub(super) fn after(&self, limit: &Limit) -> impl Iterator<Item = &Migration> {
        self.migrations.iter().filter(|migration| migration.from.id() == limit.id())
    }

    /// Whether the configuration has the limit.
    pub(super) fn is_in_use(&self, limit: &Limit) -> bool {
        let Some(in_use) = &self.in_use else { return true };
        in_use.contains_key(&limit.id()) || self.with_quotas.contains(limit.name())
    }

    /// The lowest rates that a key of this limit may have since the last reload, if the configuration has the limit. A lower
    /// one takes longer until nothing counts any more.
    pub(super) fn lowest_rates(&self, limit: &Limit) -> Option<&[Rate]> {
        self.in_use.as_ref()?.get(&limit.id()).map(Vec::as_slice)
    }

    /// Whether cells of this limit may still be used.
    pub(super) fn is_needed(&self, limit: &Limit) -> bool {
        self.is_in_use(limit) || self.after(limit).next().is_some()
    }
}

/// The verdict of the limit that was asked, from that of the limit that counts the key. Rates correspond by their
/// periods.
pub(super) fn translated(asked: &Limit, counted: &Limit, verdict: Verdict) -> Verdict {
    let rate = counted.rates().get(verdict.rate).and_then(|rate| rate.predecessor(asked.rates()));
    Verdict { rate: rate.unwrap_or(0), ..verdict }
}
