//! Overrides that the admin API has set for one key of a limit until a moment (monotonic). None outlives the process.
//!
//! A key is kept as written, together with its fingerprints, because a reload reads keys and rates again for the new limits.
//! A request borrows its rates from the snapshot, so a change makes a new snapshot with other rate tables, without reading
//! files or touching upstreams, connections and metrics. The control thread makes one for all waiting changes, and one when
//! an override ends. Overrides are found by the fingerprint of the key, so a limit without any pays one branch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::base::fingerprint::Fingerprint;
use crate::config::overrides::Allowance;
use crate::config::{self, Config};
use crate::limit::Limit;
use crate::request::identify::KeyExtractor;

/// The most overrides at the same time, over all limits.
pub const MAX_TEMPORARY: usize = 10_000;

#[derive(Debug, Default)]
pub struct TemporaryOverrides {
    /// By the name of the limit. No list is empty.
    by_limit: BTreeMap<String, LimitOverrides>,
    changes: u64,
}

#[derive(Debug, Default)]
pub struct LimitOverrides {
    list: Vec<TemporaryOverride>,
    /// Changes with the content of the list.
    version: u64,
}

#[derive(Debug)]
pub struct TemporaryOverride {
    /// The parts of the key. An empty one is missing.
    pub key: Vec<Vec<u8>>,
    /// One for each possible reading of the key, at least one.
    fingerprints: Vec<Fingerprint>,
    /// Shared by all overrides of the limit with the same allowance.
    granted: Arc<Granted>,
    pub ends: Instant,
}

#[derive(Debug)]
pub(super) struct Granted {
    pub(super) allowance: Allowance,
    /// `None` if the allowance has no rates.
    pub(super) limit: Option<Arc<Limit>>,
}

impl Granted {
    fn new(limit: &config::Limit, allowance: Allowance) -> Self {
        let limit = match &allowance {
            Allowance::Rates(rates) => Some(Arc::new(limit.counted(rates))),
            Allowance::Exempt | Allowance::Block => None,
        };
        Self { allowance, limit }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSet {
    /// There are [`MAX_TEMPORARY`] already.
    Full,
    /// A reload has changed the limit meanwhile, so it has no such key or no such rates.
    Changed,
}

impl TemporaryOverrides {
    /// Sets the override of a key of this limit, and replaces an earlier one. The error says why it is not set; then the
    /// earlier one stays.
    pub fn set(
        &mut self,
        limit: &config::Limit,
        key: Vec<Vec<u8>>,
        allowance: &Allowance,
        ends: Instant,
    ) -> Result<(), NotSet> {
        let allowance = config::temporary_again(allowance, limit).ok_or(NotSet::Changed)?;
        let fingerprints = fingerprints(limit, &key);
        if fingerprints.is_empty() {
            return Err(NotSet::Changed);
        }
        let replaced = self.by_limit.get(&limit.name).map_or(0, |of_limit| of_limit.sharing(&fingerprints));
        if self.count() - replaced >= MAX_TEMPORARY {
            return Err(NotSet::Full);
        }
        self.changes += 1;
        let of_limit = self.by_limit.entry(limit.name.clone()).or_default();
        if replaced > 0 {
            of_limit.list.retain(|earlier| !earlier.has_one_of(&fingerprints));
        }
        let same = of_limit.list.iter().find(|other| other.granted.allowance == allowance);
        let granted = same.map(|other| other.granted.clone());
        let granted = granted.unwrap_or_else(|| Arc::new(Granted::new(limit, allowance)));
        of_limit.list.push(TemporaryOverride { key, fingerprints, granted, ends });
        of_limit.version = self.changes;
        Ok(())
    }

    /// Returns whether there was an override.
    pub fn remove(&mut self, limit: &config::Limit, key: &[Vec<u8>]) -> bool {
        let fingerprints = fingerprints(limit, key);
        self.retain(|name, one| name != limit.name || !one.has_one_of(&fingerprints)).pop().is_some()
    }

    /// Removes the overrides that end by `now`. Returns the names of their limits, and how many each lost.
    pub fn end(&mut self, now: Instant) -> Vec<(String, usize)> {
        self.retain(|_, one| one.ends > now)
    }

    /// Applies a reload: removes overrides whose limit is gone, or has another `key`, and those that its `known_keys` or
    /// rates no longer allow. Returns the names of the limits, and how many each lost.
    pub fn reload(&mut self, config: &Config) -> Vec<(String, usize)> {
        let limits: HashMap<_, _, RandomState> = config.limits.iter().map(|limit| (&*limit.name, limit)).collect();
        // An allowance that many overrides share is read once.
        let mut read: HashMap<_, _, RandomState> = HashMap::default();
        let removed = self.retain(|name, one| {
            let Some(limit) = limits.get(name) else { return false };
            let again = read.entry(Arc::as_ptr(&one.granted)).or_insert_with(|| {
                let allowance = config::temporary_again(&one.granted.allowance, limit);
                // Keep the previous allowance, too, so that no other gets its address.
                (one.granted.clone(), allowance.map(|allowance| Arc::new(Granted::new(limit, allowance))))
            });
            let Some(granted) = &again.1 else { return false };
            one.granted = granted.clone();
            one.fingerprints = fingerprints(limit, &one.key);
            !one.fingerprints.is_empty()
        });
        // Overrides that stay may have another allowance or other fingerprints now.
        self.changes += 1;
        self.by_limit.values_mut().for_each(|of_limit| of_limit.version = self.changes);
        removed
    }

    pub fn next_end(&self) -> Option<Instant> {
        self.by_limit.values().flat_map(|of_limit| &of_limit.list).map(|one| one.ends).min()
    }

    pub fn of(&self, limit: &str) -> Option<&LimitOverrides> {
        self.by_limit.get(limit)
    }

    /// The overrides of this limit, sorted by their end.
    pub fn listed(&self, limit: &str) -> Vec<&TemporaryOverride> {
        let mut all: Vec<_> = self.of(limit).into_iter().flat_map(|of_limit| &of_limit.list).collect();
        all.sort_by_key(|one| one.ends);
        all
    }

    pub fn is_empty(&self) -> bool {
        self.by_limit.is_empty()
    }

    fn count(&self) -> usize {
        self.by_limit.values().map(|of_limit| of_limit.list.len()).sum()
    }

    /// Keeps the overrides for which `stays` is true. Returns the names of the limits that have lost some, and how many.
    fn retain(&mut self, mut stays: impl FnMut(&str, &mut TemporaryOverride) -> bool) -> Vec<(String, usize)> {
        let mut removed = Vec::new();
        for (name, of_limit) in &mut self.by_limit {
            let before = of_limit.list.len();
            of_limit.list.retain_mut(|one| stays(name, one));
            if of_limit.list.len() < before {
                self.changes += 1;
                of_limit.version = self.changes;
                removed.push((name.clone(), before - of_limit.list.len()));
            }
        }
        self.by_limit.retain(|_, of_limit| !of_limit.list.is_empty());
        removed
    }
}

impl LimitOverrides {
    /// How many overrides share a reading with a key that has these fingerprints.
    fn sharing(&self, fingerprints: &[Fingerprint]) -> usize {
        self.list.iter().filter(|one| one.has_one_of(fingerprints)).count()
    }
}

impl TemporaryOverride {
    /// One of the fingerprints by which the key is counted.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprints[0]
    }

    pub fn allowance(&self) -> &Allowance {
        &self.granted.allowance
    }

    fn has_one_of(&self, fingerprints: &[Fingerprint]) -> bool {
        self.fingerprints.iter().any(|own| fingerprints.contains(own))
    }
}

fn fingerprints(limit: &config::Limit, key: &[Vec<u8>]) -> Vec<Fingerprint> {
    let values = limit.key.counted_values(key, limit.forms).unwrap_or_default();
    let readings = KeyExtractor::of_written(limit).written(&values).into_iter();
    readings.filter(|reading| reading.has_override).map(|reading| reading.fingerprint).collect()
}

pub(super) struct TemporaryRates {
    version: u64,
    pub(super) count: usize,
    /// For each possible reading of a key, the index in `granted` and the end.
    by_key: HashMap<Fingerprint, (usize, Instant), RandomState>,
    /// Without duplicates.
    pub(super) granted: Vec<Arc<Granted>>,
}

impl TemporaryRates {
    pub(super) fn new(overrides: &LimitOverrides) -> Self {
        let mut by_key = HashMap::with_capacity_and_hasher(overrides.list.len(), RandomState::default());
        let mut all = Vec::new();
        let mut known: HashMap<_, usize, RandomState> = HashMap::default();
        for TemporaryOverride { fingerprints, granted, ends, .. } in &overrides.list {
            let index = *known.entry(Arc::as_ptr(granted)).or_insert_with(|| {
                all.push(granted.clone());
                all.len() - 1
            });
            by_key.extend(fingerprints.iter().map(|fingerprint| (*fingerprint, (index, *ends))));
        }
        Self { version: overrides.version, count: overrides.list.len(), by_key, granted: all }
    }

    /// What a key is granted, the index in `granted`, and the end.
    pub(super) fn find(&self, key: Fingerprint) -> Option<(&Granted, usize, Instant)> {
        let (index, ends) = self.by_key.get(&key)?;
        Some((self.granted.get(*index)?, *index, *ends))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Fingerprint> {
        self.by_key.keys().copied()
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.granted.iter().filter_map(|granted| granted.limit.as_ref())
    }

    /// Whether these are the overrides from which it was made, unchanged.
    pub(super) fn is_of(&self, overrides: &LimitOverrides) -> bool {
        self.version == overrides.version
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn config(limit: &str) -> Config {
        let text = format!("[limits.l]\n{limit}\n[[routes]]\npath = \"/*\"\nrespond = {{ status = 200 }}\n");
        config::parse(text.as_bytes(), "test", Path::new("")).unwrap()
    }

    fn rates(text: &str) -> Allowance {
        Allowance::Rates(vec![text.parse().unwrap()].into())
    }

    fn parts(key: &str) -> Vec<Vec<u8>> {
        vec![key.as_bytes().to_vec()]
    }

    #[test]
    fn they_are_bounded_in_number_and_those_that_replace_others_are_not_more() {
        let config = config("key = \"header:x-api-key\"\nrates = [\"1/s\"]");
        let limit = &config.limits[0];
        let (mut overrides, ends) = (TemporaryOverrides::default(), Instant::now() + Duration::from_secs(60));
        let block = Arc::new(Granted::new(limit, Allowance::Block));
        // Without optimization it would take long to set all of them one by one.
        for number in 0..MAX_TEMPORARY {
            let key = parts(&number.to_string());
            let fingerprints = fingerprints(limit, &key);
            let one = TemporaryOverride { key, fingerprints, granted: block.clone(), ends };
            overrides.by_limit.entry("l".to_owned()).or_default().list.push(one);
        }
        assert_eq!(overrides.set(limit, parts("one more"), &Allowance::Exempt, ends), Err(NotSet::Full));
        assert_eq!(overrides.set(limit, parts("7"), &Allowance::Exempt, ends), Ok(()));
        assert_eq!(overrides.count(), MAX_TEMPORARY);
        assert!(overrides.remove(limit, &parts("8")) && !overrides.remove(limit, &parts("8")));
        assert_eq!(overrides.set(limit, parts("one more"), &Allowance::Exempt, ends), Ok(()));
        let table = TemporaryRates::new(overrides.of("l").unwrap());
        assert_eq!((table.count, table.granted.len()), (MAX_TEMPORARY, 2), "equal allowances are stored once");
        let granted =
            |key: &str| table.find(fingerprints(limit, &parts(key))[0]).map(|(granted, ..)| &granted.allowance);
        assert_eq!(granted("7"), Some(&Allowance::Exempt));
        assert_eq!((granted("8"), granted("9")), (None, Some(&Allowance::Block)));
    }

    #[test]
    fn each_ends_at_its_time() {
        let config = config("key = \"client-ip\"\nrates = [\"1/s\"]");
        let (limit, mut overrides, now) = (&config.limits[0], TemporaryOverrides::default(), Instant::now());
        assert_eq!(overrides.next_end(), None);
        for (address, seconds) in [("192.0.2.1", 2), ("192.0.2.2", 1), ("2001:db8::1", 3)] {
            overrides.set(limit, parts(address), &rates("5/s"), now + Duration::from_secs(seconds)).unwrap();
        }
        // This address is in the same network, so it has the same key.
        overrides.set(limit, parts("2001:db8::2"), &Allowance::Block, now + Duration::from_secs(2)).unwrap();
        assert_eq!(overrides.set(limit, parts("no address"), &Allowance::Block, now), Err(NotSet::Changed));
        assert_eq!(overrides.next_end(), Some(now + Duration::from_secs(1)));
        assert_eq!(overrides.end(now), []);
        assert_eq!(overrides.end(now + Duration::from_secs(1)), [("l".to_owned(), 1)]);
        assert_eq!(overrides.end(now + Duration::from_secs(2)), [("l".to_owned(), 2)]);
        assert!(overrides.is_empty() && overrides.of("l").is_none());
    }

    #[test]
    fn a_reload_reads_them_by_what_the_limit_is_now() {
        let before = config("key = \"client-ip\"\nrates = [\"1/s\"]\nstrategy = \"token-bucket\"");
        let (limit, mut overrides) = (&before.limits[0], TemporaryOverrides::default());
        let ends = Instant::now() + Duration::from_secs(60);
        let burst = config::temporary_override(&written("5/s burst 9"), limit).unwrap().0;
        let plain = config::temporary_override(&written("5/s"), limit).unwrap().0;
        overrides.set(limit, parts("2001:db8::1"), &plain, ends).unwrap();
        overrides.set(limit, parts("192.0.2.1"), &burst, ends).unwrap();
        assert_eq!(overrides.reload(&before), []);
        let after = config("key = \"client-ip:48\"\nrates = [\"1/s\"]\nstrategy = \"fixed-window\"");
        assert_eq!(overrides.reload(&after), [("l".to_owned(), 1)]);
        let table = TemporaryRates::new(overrides.of("l").unwrap());
        let (granted, ..) = table.find(fingerprints(&after.limits[0], &parts("2001:db8:0:7::"))[0]).unwrap();
        let Allowance::Rates(rates) = &granted.allowance else { panic!("{granted:?}") };
        assert_eq!((&*rates[0].to_string(), rates[0].strategy()), ("5/s", &crate::limit::Strategy::FixedWindow));
        let none = config("key = \"client-ip\"\nmax_in_flight = 1");
        assert_eq!(overrides.reload(&none), [("l".to_owned(), 1)]);
    }

    fn written(rate: &str) -> serde_json::Map<String, serde_json::Value> {
        let body = serde_json::json!({ "rates": [rate], "for": "1h" });
        body.as_object().unwrap().clone()
    }
}
