//! What reloads and overrides have changed about limits: which limits exist, and which limit continues the counts of which.
//!
//! A limit is identified by its name and the layout of its cells. A replaced limit is remembered while its counts can matter,
//! so that each of its keys can be migrated at its next request. A change of overrides is a reload of single keys. A limit
//! with a source of quotas may have cells of any layout, so none of its cells is dropped for its layout.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::base::clock::Time;
use crate::base::fingerprint::Fingerprint;
use crate::limit::{Cell, Limit, Rate, Verdict};
use crate::store::{LimitChanges, Replaced, Reply};

/// The most changes of one name or one key that are remembered. A key with an older cell begins at zero.
const MOST_CHANGES: usize = 16;
/// The most keys and names with migrations: more than the admin API allows overrides at a time.
const MOST_LISTS: usize = 1 << 14;
/// The most migrations of all keys and names together, in some 16 MiB.
const MOST: usize = 1 << 18;

#[derive(Clone, Debug)]
pub(super) struct Migration {
    pub(super) from: Arc<Limit>,
    pub(super) to: Arc<Limit>,
    pub(super) at: Time,
    /// When no count of the old limit matters any longer.
    until: Time,
    /// The number of the reload that made it necessary. If it joins two migrations, that reload is later than `at`.
    pub(super) reload: u32,
    /// Whether the old limit no longer counts the key of an override. It still does for keys without a tier if it has the
    /// layout of the limit's own rates, and the other way round.
    is_left: bool,
}

impl Migration {
    /// `None` if there are no counts to continue.
    fn new(from: &Arc<Limit>, to: &Arc<Limit>, at: Time, reload: u32) -> Option<Self> {
        let until = at.after(Duration::from_micros(to.migration_memory(from)));
        let is_needed = from.id() != to.id() && to.continues(from);
        is_needed.then(|| Self { from: from.clone(), to: to.clone(), at, until, reload, is_left: true })
    }

    pub(super) fn is_open(&self, now: Time) -> bool {
        self.until > now
    }

    /// Tells which of two took effect later. Overrides may follow each other within a microsecond.
    fn order(&self) -> (Time, u32) {
        (self.at, self.reload)
    }

    fn ids(&self) -> (Fingerprint, Fingerprint) {
        (self.to.id(), self.from.id())
    }
}

/// Everything that reloads have changed so far. An override that is set or ends is a reload of its key.
#[derive(Clone, Debug, Default)]
pub(super) struct Reloads {
    /// Under [`all_of`] for all keys of a limit, under the key for single keys; each list is sorted by the new limit.
    migrations: HashMap<Fingerprint, Vec<Migration>, RandomState>,
    /// The limits of the configuration, with the lowest rates that their keys may have; `None` before the first reload.
    in_use: Option<HashMap<Fingerprint, Vec<Rate>, RandomState>>,
    with_quotas: HashSet<String, RandomState>,
    /// The names of both.
    names: HashSet<String, RandomState>,
    /// The number of reloads; it may wrap.
    count: u32,
}

impl Reloads {
    /// Returns whether cells must be dropped because of this reload, now or later.
    pub(super) fn add(&mut self, changes: &LimitChanges, now: Time) -> bool {
        self.count = self.count.wrapping_add(1);
        let names: HashSet<&str, RandomState> = changes.in_use.iter().map(|limit| limit.name()).collect();
        self.retain(|migration| migration.is_open(now) && names.contains(migration.to.name()));
        let added = self.migrations_for(&changes.replaced, now);
        let extended: HashSet<Fingerprint, RandomState> = added.iter().map(|(of, _)| *of).collect();
        for (of, migration) in added {
            let list = self.migrations.entry(of).or_default();
            match list.binary_search_by_key(&migration.ids(), Migration::ids) {
                Ok(same) if list[same].at > migration.at => {}
                Ok(same) => list[same] = migration,
                Err(place) => list.insert(place, migration),
            }
        }
        let mut in_use: HashMap<_, Vec<Rate>, _> = HashMap::default();
        for limit in &changes.in_use {
            let lowest = in_use.entry(limit.id()).or_insert_with(|| limit.rates().to_vec());
            // Limits with the same id have the same windows in the same order.
            let lower = lowest.iter_mut().zip(limit.rates()).filter(|(lowest, rate)| rate.quota() < lowest.quota());
            lower.for_each(|(lowest, rate)| *lowest = rate.clone());
        }
        let is_in_use = |limit: &Limit| in_use.contains_key(&limit.id());
        for (_, list) in self.migrations.iter_mut().filter(|(of, _)| extended.contains(of)) {
            forget_detours(list, is_in_use);
            forget_old(list);
        }
        self.bound();
        let is_gone = |before: &HashMap<_, _, _>| before.keys().any(|id| !in_use.contains_key(id));
        let has_lost = self.in_use.as_ref().is_none_or(is_gone);
        (self.in_use, self.with_quotas) = (Some(in_use), changes.with_quotas.iter().cloned().collect());
        self.names = changes.names().map(str::to_owned).collect();
        has_lost || !changes.replaced.is_empty()
    }

    /// The migrations that a reload at `now` makes necessary, each with the key of its list.
    fn migrations_for(&self, replaced: &[Replaced], now: Time) -> Vec<(Fingerprint, Migration)> {
        let mut by_id: HashMap<Fingerprint, Vec<&Replaced>, RandomState> = HashMap::default();
        let changed = replaced.iter().filter(|one| one.from.id() != one.to.id());
        changed.for_each(|one| by_id.entry(one.from.id()).or_default().push(one));
        // Limits that begin or continue to count the key of an override.
        let counts: HashSet<_, RandomState> = replaced.iter().map(|one| (one.key, one.to.id())).collect();
        let mut added = Vec::new();
        // A key that was not used since an earlier reload is migrated to the newest limit in one step.
        let lists = self.migrations.iter();
        for (of, earlier) in lists.flat_map(|(of, list)| list.iter().map(|earlier| (*of, earlier))) {
            for Replaced { key, to, .. } in by_id.get(&earlier.to.id()).into_iter().flatten() {
                let is_back = key.is_some() && counts.contains(&(*key, earlier.from.id()));
                if !is_back && key.is_none_or(|key| key == of || all_of(to) == of) {
                    let joined = Migration::new(&earlier.from, to, earlier.at, self.count);
                    added.extend(joined.map(|joined| (key.unwrap_or(of), joined)));
                }
            }
        }
        let new = replaced.iter().filter_map(|Replaced { key, from, to }| {
            let is_left = !counts.contains(&(*key, from.id()));
            let migration = Migration { is_left, ..Migration::new(from, to, now, self.count)? };
            Some((key.unwrap_or_else(|| all_of(to)), migration))
        });
        added.extend(new);
        added
    }

    /// If there are too many, forgets the half that has not changed for longest, but none of all keys of a limit.
    fn bound(&mut self) {
        if self.migrations.len() > MOST_LISTS || self.migrations.values().map(Vec::len).sum::<usize>() > MOST {
            let last = |list: &Vec<Migration>| list.iter().map(|migration| migration.at).max();
            let mut changed: Vec<Time> = self.migrations.values().filter_map(last).collect();
            let half = changed.len() / 2;
            let since = *changed.select_nth_unstable(half).1;
            self.migrations.retain(|of, list| list.iter().any(|one| one.at >= since || all_of(&one.to) == *of));
        }
    }

    fn retain(&mut self, stays: impl Fn(&Migration) -> bool) {
        self.migrations.retain(|_, list| {
            list.retain(&stays);
            !list.is_empty()
        });
    }

    /// A copy without the migrations that have expired; `None` if none has.
    pub(super) fn expired(&self, now: Time) -> Option<Self> {
        if self.migrations.values().flatten().all(|migration| migration.is_open(now)) {
            return None;
        }
        let mut rest = self.clone();
        rest.retain(|migration| migration.is_open(now));
        Some(rest)
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn until(&self) -> Time {
        let until = self.migrations.values().flatten().map(|migration| migration.until);
        until.max().unwrap_or(Time::from_micros(0))
    }

    /// The migrations of a key to this limit, the latest first.
    pub(super) fn before(&self, limit: &Limit, key: Fingerprint) -> impl Iterator<Item = &Migration> {
        let (id, lists) = (limit.id(), self.lists(limit, key));
        latest_first(lists.flat_map(move |list| {
            let begin = list.partition_point(|migration| migration.to.id() < id);
            list[begin..].iter().take_while(move |migration| migration.to.id() == id)
        }))
    }

    /// The migrations of a key from this limit, the latest first.
    pub(super) fn after(&self, limit: &Limit, key: Fingerprint) -> impl Iterator<Item = &Migration> {
        latest_first(self.lists(limit, key).flatten().filter(|migration| migration.from.id() == limit.id()))
    }

    fn lists(&self, limit: &Limit, key: Fingerprint) -> impl Iterator<Item = &Vec<Migration>> {
        [key, all_of(limit)].into_iter().filter_map(|of| self.migrations.get(&of))
    }

    /// The migration to the limit that counts the key now, if `limit` does not any more. If there are several, because the
    /// key may have a tier, prefers the one whose cell `is_known`.
    pub(super) fn successor(
        &self,
        limit: &Limit,
        key: Fingerprint,
        is_known: impl Fn(&Limit) -> bool,
    ) -> Option<&Migration> {
        let after = (!self.is_in_use(limit, key)).then(|| self.after(limit, key))?;
        let all: SmallVec<[_; 4]> = after.filter(|migration| self.is_in_use(&migration.to, key)).collect();
        let known = all.iter().find(|migration| all.len() > 1 && is_known(&migration.to));
        known.or(all.first()).copied()
    }

    /// The limits that this reload adds again, or for the first time.
    pub(super) fn added<'c>(&self, changes: &'c LimitChanges) -> Vec<&'c str> {
        changes.names().filter(|name| self.in_use.is_some() && !self.names.contains(*name)).collect()
    }

    /// Whether the configuration, or an override, has the limit.
    pub(super) fn has(&self, limit: &Limit) -> bool {
        let Some(in_use) = &self.in_use else { return true };
        in_use.contains_key(&limit.id()) || self.with_quotas.contains(limit.name())
    }

    /// Whether the limit exists, and no override has replaced it for this key.
    pub(super) fn is_in_use(&self, limit: &Limit, key: Fingerprint) -> bool {
        let of_key = self.migrations.get(&key).into_iter().flatten();
        let left = of_key.filter(|migration| migration.is_left && migration.from.id() == limit.id());
        let left = left.max_by_key(|migration| migration.order());
        let is_back = |left: &Migration| self.before(limit, key).any(|migration| migration.order() > left.order());
        left.is_none_or(is_back) && self.has(limit)
    }

    /// Whether nothing in a cell of this limit matters any more. The key may have other rates by now than at its last
    /// request, and with a lower rate counts matter for longer.
    pub(super) fn is_spent(&self, limit: &Limit, cell: &Cell, now: Time) -> bool {
        let lowest = self.in_use.as_ref().and_then(|in_use| in_use.get(&limit.id()));
        cell.is_spent(limit.rates(), now) && lowest.is_none_or(|rates| cell.is_spent(rates, now))
    }

    pub(super) fn is_needed(&self, limit: &Limit, key: Fingerprint) -> bool {
        self.is_in_use(limit, key) || self.after(limit, key).next().is_some()
    }
}

/// Forgets migrations to limits that are no longer in use, if there is one from the same limit to one that is.
fn forget_detours(list: &mut Vec<Migration>, is_in_use: impl Fn(&Limit) -> bool) {
    let goes_on = list.iter().filter(|migration| is_in_use(&migration.to)).map(|migration| migration.from.id());
    let goes_on: HashSet<Fingerprint, RandomState> = goes_on.collect();
    list.retain(|migration| is_in_use(&migration.to) || !goes_on.contains(&migration.from.id()));
}

/// Forgets all but the latest changes.
fn forget_old(list: &mut Vec<Migration>) {
    let mut changes: Vec<Time> = list.iter().map(|migration| migration.at).collect();
    changes.sort_unstable_by_key(|at| Reverse(*at));
    changes.dedup();
    let Some(oldest) = changes.get(MOST_CHANGES - 1).filter(|_| changes.len() > MOST_CHANGES) else { return };
    list.retain(|migration| migration.at >= *oldest);
    if let Some(limit) = list.first().map(|migration| migration.to.name()) {
        tracing::warn!(
            limit,
            "keys that were last used more than {MOST_CHANGES} changes of their limit ago start anew"
        );
    }
}

fn latest_first<'a>(migrations: impl Iterator<Item = &'a Migration>) -> impl Iterator<Item = &'a Migration> {
    let mut found: SmallVec<[&Migration; 4]> = migrations.collect();
    found.sort_by_key(|migration| Reverse(migration.order()));
    found.into_iter()
}

/// Stands for all keys of a limit: the fingerprint of its name.
fn all_of(limit: &Limit) -> Fingerprint {
    // Combining a value twice removes it again, since XOR cancels.
    limit.id().with(limit.shape())
}

impl Reply {
    pub(super) fn translate(&mut self, place: usize, requested: &Limit, counted: &Limit) {
        let own = self.verdicts.iter_mut().filter(|(of, _)| *of == place).map(|(_, verdict)| verdict);
        let pooled = self.pooled.iter_mut().filter(|pooled| pooled.place == place).map(|pooled| &mut pooled.verdict);
        own.chain(pooled).for_each(|verdict| *verdict = translated(requested, counted, *verdict));
    }
}

/// Converts a verdict to the limit that was asked. Rates correspond by their periods.
pub(super) fn translated(requested: &Limit, counted: &Limit, verdict: Verdict) -> Verdict {
    let rate = counted.deciding_rate(&verdict).and_then(|rate| rate.predecessor(requested.rates()));
    Verdict { rate: rate.and_then(|rate| u16::try_from(rate).ok()).unwrap_or(0), ..verdict }
}
