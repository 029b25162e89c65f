//! What reloads have changed about limits, as far as it matters to cells: which limits there are, and which cells go on
//! from which.
//!
//! A limit is known by its name and by what its cells look like. One that a reload has replaced is remembered for as long
//! as what it has counted can matter, so that each of its keys can be migrated when it is seen next.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::clock::Time;
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::LimitChanges;

/// The most migrations that are remembered for one name: a key that has none of these cells begins anew.
const MOST_PER_NAME: usize = 16;

/// A limit whose keys go on under another.
#[derive(Clone, Debug)]
pub(super) struct Migration {
    pub(super) from: Arc<Limit>,
    pub(super) to: Arc<Limit>,
    /// The reload.
    pub(super) at: Time,
    /// From when on nothing of it matters.
    until: Time,
}

impl Migration {
    /// `None` where there is nothing to go on from.
    fn new(from: &Arc<Limit>, to: &Arc<Limit>, at: Time) -> Option<Self> {
        let until = at.after(Duration::from_micros(to.migration_memory(from)));
        (from.id() != to.id() && to.continues(from)).then(|| Self { from: from.clone(), to: to.clone(), at, until })
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
    /// The limits that there are; `None` before the first reload.
    in_use: Option<HashSet<Fingerprint, RandomState>>,
}

impl Reloads {
    /// After another reload, at `now`.
    pub(super) fn next(&self, changes: &LimitChanges, now: Time) -> Self {
        let new = changes.replaced.iter().filter_map(|(from, to)| Migration::new(from, to, now));
        // Whoever was not seen since an earlier reload goes on under the newest limit at once, from all that was counted.
        let earlier = self.migrations.iter().filter(|earlier| earlier.until > now);
        let joined = earlier.clone().flat_map(|earlier| {
            let further = changes.replaced.iter().filter(|(from, _)| from.id() == earlier.to.id());
            further.filter_map(|(_, to)| Migration::new(&earlier.from, to, earlier.at))
        });
        let mut migrations: Vec<_> = new.chain(joined).chain(earlier.cloned()).collect();
        migrations.sort_by_key(|migration| Reverse(migration.at));
        let (mut seen, mut counts) = (HashSet::new(), HashMap::new());
        let names: HashSet<&str> = changes.in_use.iter().map(|limit| limit.name()).collect();
        migrations.retain(|migration| {
            let name = migration.to.name();
            let count = counts.entry(name.to_owned()).or_insert(0);
            let stays =
                migration.until > now && names.contains(name) && *count < MOST_PER_NAME && seen.insert(migration.ids());
            *count += usize::from(stays);
            stays
        });
        Self { migrations, in_use: Some(changes.in_use.iter().map(|limit| limit.id()).collect()) }
    }

    /// Without what does not matter any more at `now`; `None` if everything does.
    pub(super) fn expired(&self, now: Time) -> Option<Self> {
        let matters = |migration: &Migration| migration.until > now;
        if self.migrations.iter().all(matters) {
            return None;
        }
        let migrations = self.migrations.iter().filter(|migration| matters(migration)).cloned().collect();
        Some(Self { migrations, in_use: self.in_use.clone() })
    }

    /// From when on no migration matters.
    pub(super) fn until(&self) -> Time {
        self.migrations.iter().map(|migration| migration.until).max().unwrap_or(Time::from_micros(0))
    }

    /// From which limits keys of this one may come, the latest first.
    pub(super) fn before(&self, limit: &Limit) -> impl Iterator<Item = &Migration> {
        self.migrations.iter().filter(|migration| migration.to.id() == limit.id())
    }

    /// To which limits keys of this one may have gone, the latest first.
    pub(super) fn after(&self, limit: &Limit) -> impl Iterator<Item = &Migration> {
        self.migrations.iter().filter(|migration| migration.from.id() == limit.id())
    }

    /// Whether the limit is one of those that there are.
    pub(super) fn is_in_use(&self, limit: &Limit) -> bool {
        self.in_use.as_ref().is_none_or(|in_use| in_use.contains(&limit.id()))
    }

    /// Whether cells of this limit matter to anybody.
    pub(super) fn is_needed(&self, limit: &Limit) -> bool {
        self.is_in_use(limit) || self.after(limit).next().is_some()
    }
}
