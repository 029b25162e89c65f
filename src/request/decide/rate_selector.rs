//! Selects the rates for a request: those of an override for its key, else of a source of quotas, else of its tier, else the
//! limit's own. Overrides in the file come before those of the admin API.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::sent_rate::SentRate;
use super::temporary_overrides::{LimitOverrides, TemporaryRates};
use crate::base::fingerprint::Fingerprint;
use crate::config::overrides::{Allowance, Overrides};
use crate::config::{self, Key, MAX_LAYOUTS, PathPattern, Source};
use crate::limit::{Limit, Rate, Strategy};
use crate::request::descriptors::messages::RateLimitOverride;
use crate::request::identify::{KeyCache, KeyExtractor, RequestAttributes, Subject};
use crate::sources::quotas::{GrantedQuota, Quota, QuotaRates};
use crate::store::Replaced;

/// All sets of rates of one limit, for all routes.
#[derive(Clone)]
pub struct RateTable {
    /// How many gateways share the limit; `None` if each has the full rates.
    pub gateways: Option<u64>,
    pub default_limit: Arc<Limit>,
    /// With the names of the tiers.
    tiers: Vec<(String, Arc<Limit>)>,
    overrides: Arc<Overrides>,
    /// One for each allowance of the overrides; `None` if it grants no rates.
    granted: Vec<Option<Arc<Limit>>>,
    /// `None` if the admin API has set no overrides.
    temporary: Option<Arc<TemporaryRates>>,
    /// The limit's own rates, first, and those of the overrides, one set for each layout of cells.
    by_key: Vec<Arc<Limit>>,
    /// What counts refusals and bans. `None` if the limit bans no keys.
    pub ban: Option<BanLimits>,
}

#[derive(Clone)]
pub struct RateSelector {
    rate_table: Arc<RateTable>,
    tier: Option<KeyExtractor>,
    /// `None` if no proxy has sent a rate.
    sent: Option<SentRate>,
}

#[derive(Clone, Copy, Debug)]
pub enum SelectedRates<'a> {
    Rates(RateSet<'a>, &'a Arc<Limit>),
    /// The request passes without being counted.
    Exempt,
    Block,
}

#[derive(Clone, Copy, Debug)]
pub enum RateSet<'a> {
    /// The rates of the configuration, the admin API or a tier with this number; 0 is the limit's own.
    Listed(usize),
    /// The rates that a source of quotas has named.
    Quota(&'a QuotaRates),
}

impl RateSet<'_> {
    /// Identifies the rates within their limit.
    pub fn id(self) -> (bool, u64) {
        match self {
            Self::Listed(number) => (false, number as u64),
            Self::Quota(rates) => (true, rates.id),
        }
    }
}

impl<'a> SelectedRates<'a> {
    pub fn limit(self) -> Option<&'a Arc<Limit>> {
        match self {
            Self::Rates(_, limit) => Some(limit),
            Self::Exempt | Self::Block => None,
        }
    }
}

impl RateTable {
    pub fn new(limit: &config::Limit) -> Self {
        let of = |rates: &[Rate]| Arc::new(limit.counted(rates));
        let tiers = limit.tiers.iter().flat_map(|tiers| &tiers.rates);
        let granted = |allowance: &Allowance| match allowance {
            Allowance::Rates(rates) => Some(of(rates)),
            Allowance::Exempt | Allowance::Block => None,
        };
        let own = of(&limit.rates);
        let granted: Vec<_> = limit.overrides.allowances().iter().map(granted).collect();
        Self {
            gateways: limit.gateways,
            by_key: one_for_each_layout([&own].into_iter().chain(granted.iter().flatten())),
            default_limit: own,
            tiers: tiers.map(|(name, rates)| (name.clone(), of(rates))).collect(),
            overrides: limit.overrides.clone(),
            granted,
            temporary: None,
            ban: BanLimits::new(limit),
        }
    }

    /// The same limit with other overrides from the admin API.
    #[must_use]
    pub fn with_temporary(&self, overrides: Option<&LimitOverrides>) -> Self {
        let temporary = overrides.map(|overrides| Arc::new(TemporaryRates::new(overrides)));
        let of_temporary = temporary.iter().flat_map(|temporary| temporary.limits());
        let (own, granted) = ([&self.default_limit].into_iter(), self.granted.iter().flatten());
        Self { by_key: one_for_each_layout(own.chain(granted).chain(of_temporary)), temporary, ..self.clone() }
    }

    /// Whether its overrides from the admin API are exactly these.
    pub fn has_temporary(&self, overrides: Option<&LimitOverrides>) -> bool {
        match (&self.temporary, overrides) {
            (Some(own), Some(overrides)) => own.is_of(overrides),
            (own, overrides) => own.is_none() && overrides.is_none(),
        }
    }

    pub fn temporary_count(&self) -> usize {
        self.temporary.as_ref().map_or(0, |temporary| temporary.count)
    }

    /// The allowance that the admin API has granted a key, and its end. An override in the file comes before it.
    pub fn temporary(&self, key: Fingerprint) -> Option<(&Allowance, Instant)> {
        self.temporary.as_ref()?.find(key).map(|(granted, _, ends)| (&granted.allowance, ends))
    }

    pub fn name(&self) -> &str {
        self.default_limit.name()
    }

    /// What an override from the admin API grants a key; `None` without one.
    pub fn temporarily_granted(&self, key: Fingerprint) -> Option<SelectedRates<'_>> {
        let (granted, index, _) = self.temporary.as_ref()?.find(key)?;
        Some(match (&granted.allowance, &granted.limit) {
            (_, Some(limit)) => listed(1 + self.tiers.len() + self.granted.len() + index, limit),
            (Allowance::Exempt, None) => SelectedRates::Exempt,
            (Allowance::Block | Allowance::Rates(_), None) => SelectedRates::Block,
        })
    }

    /// What an override in the file grants a key; `None` without one.
    pub fn granted(&self, subject: Subject<'_>) -> Option<SelectedRates<'_>> {
        let index = match subject {
            Subject::Text(text) => self.overrides.find(Some(text), None),
            Subject::Address(address) => self.overrides.find(None, Some(address)),
        }?;
        Some(match (self.overrides.allowances().get(index), self.granted.get(index)) {
            (_, Some(Some(limit))) => listed(1 + self.tiers.len() + index, limit),
            (Some(Allowance::Exempt), _) => SelectedRates::Exempt,
            _ => SelectedRates::Block,
        })
    }

    /// What a source of quotas grants a key. `None` if the quota names a tier that the limit no longer has.
    pub fn of_quota<'a>(&'a self, quota: &'a Quota) -> Option<SelectedRates<'a>> {
        match &quota.granted {
            GrantedQuota::Rates(rates) => Some(SelectedRates::Rates(RateSet::Quota(rates), &rates.limit)),
            GrantedQuota::Tier(name) => {
                let place = self.tiers.iter().position(|(tier, _)| tier == name)?;
                self.tiers.get(place).map(|(_, limit)| listed(1 + place, limit))
            }
            GrantedQuota::Exempt => Some(SelectedRates::Exempt),
            GrantedQuota::Block => Some(SelectedRates::Block),
        }
    }

    /// The sets of rates that a key without an override may have: the limit's own and those of tiers.
    pub fn without_override(&self) -> impl Iterator<Item = &Arc<Limit>> {
        [&self.default_limit].into_iter().chain(self.tiers.iter().map(|(_, limit)| limit))
    }

    /// All sets of rates of the file, and the limit that counts bans.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.without_override().chain(self.granted.iter().flatten()).chain(self.bans())
    }

    /// The sets of rates, at least one for each layout of cells.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.by_key.iter().chain(self.tiers.iter().map(|(_, limit)| limit))
    }

    /// Every limit that may have cells in the store, at least one for each layout.
    pub fn in_store(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits().chain(self.bans())
    }

    fn bans(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.ban.iter().map(|ban| &ban.bans)
    }

    /// The rates that keys may have had in `old` and may have now, if the layouts of their cells differ. If the configuration
    /// was not read again, only the rates of keys with overrides from the admin API.
    pub fn replaced(&self, old: &Self) -> Vec<Replaced> {
        if Arc::ptr_eq(&self.overrides, &old.overrides) {
            return self.changed_keys(old).flat_map(|key| self.replaced_of(key, old)).collect();
        }
        let by_key =
            if self.overrides.selects_like(&old.overrides) { self.same_override(old) } else { self.any_two(old) };
        let of_tier = |(name, to)| old.tiers.iter().find(|(tier, _)| tier == name).map(|(_, from)| (from, to));
        let by_tier = self.tiers.iter().filter_map(|(name, to)| of_tier((name, to)));
        let differ = by_key.into_iter().chain(self.by_temporary(old)).chain(by_tier);
        let mut known = BTreeSet::new();
        let differ = differ.filter(|(from, to)| from.id() != to.id() && known.insert((from.id(), to.id())));
        differ.map(|(from, to)| Replaced { key: None, from: from.clone(), to: to.clone() }).collect()
    }

    /// The keys to which the admin API grants something else than in `old`: mostly one of perhaps thousands.
    fn changed_keys<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = Fingerprint> {
        let granted = |table: &'a Self, key| Some(std::ptr::from_ref(table.temporary.as_ref()?.find(key)?.0));
        let all = [old, self].into_iter().filter_map(|table| table.temporary.as_ref()).flat_map(|all| all.keys());
        all.filter(move |key| granted(old, *key) != granted(self, *key))
    }

    /// If every key has the same override as before: the limit's own rates, and those of each override, before and now.
    fn same_override<'a>(&'a self, old: &'a Self) -> Vec<LimitPair<'a>> {
        // Without rates, a key may have been counted by the limit's own before, or will be again.
        let or_own =
            |table: &'a Self, granted: &'a Option<Arc<Limit>>| granted.as_ref().unwrap_or(&table.default_limit);
        let granted = old.granted.iter().zip(&self.granted).map(|(from, to)| (or_own(old, from), or_own(self, to)));
        [(&old.default_limit, &self.default_limit)].into_iter().chain(granted).collect()
    }

    /// A key may change between the limit's own rates and those of an override. Tiers keep counters of their own.
    fn any_two<'a>(&'a self, old: &'a Self) -> Vec<LimitPair<'a>> {
        let pairs = |to| old.by_key.iter().take(MAX_LAYOUTS).map(move |from| (from, to));
        self.by_key.iter().take(MAX_LAYOUTS).flat_map(pairs).collect()
    }

    /// The rates of keys with an override from the admin API, before and now. A reload may end it.
    fn by_temporary<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = LimitPair<'a>> {
        let all = [old, self].into_iter().filter_map(|table| table.temporary.as_ref());
        all.flat_map(|all| all.keys()).map(|key| (old.own_or_temporary(key), self.own_or_temporary(key)))
    }

    fn own_or_temporary(&self, key: Fingerprint) -> &Arc<Limit> {
        let granted = self.temporary.as_ref().and_then(|temporary| temporary.find(key));
        granted.and_then(|(granted, ..)| granted.limit.as_ref()).unwrap_or(&self.default_limit)
    }

    /// Like [`Self::replaced`], for one key with an override from the admin API. The key may also have a tier, so without the
    /// override any of these rates may count it. A pair with one layout says that the old counters continue.
    fn replaced_of(&self, key: Fingerprint, old: &Self) -> Vec<Replaced> {
        let (before, after) = (old.of_key(key), self.of_key(key));
        let is_same = before.iter().map(|limit| limit.id()).eq(after.iter().map(|limit| limit.id()));
        let pairs = before.iter().flat_map(|from| after.iter().map(move |to| (from, to)));
        let all = pairs.map(|(from, to)| Replaced { key: Some(key), from: from.clone(), to: to.clone() });
        if is_same { Vec::new() } else { all.collect() }
    }

    /// The rates that may count a key without an override in the file, one set for each layout.
    fn of_key(&self, key: Fingerprint) -> Vec<Arc<Limit>> {
        let granted = self.temporary.as_ref().and_then(|temporary| temporary.find(key));
        match granted.and_then(|(granted, ..)| granted.limit.clone()) {
            Some(limit) => vec![limit],
            None => one_for_each_layout(self.without_override()).into_iter().take(MAX_LAYOUTS).collect(),
        }
    }
}

/// What counted a key, and what counts it now.
type LimitPair<'a> = (&'a Arc<Limit>, &'a Arc<Limit>);

fn listed(number: usize, limit: &Arc<Limit>) -> SelectedRates<'_> {
    SelectedRates::Rates(RateSet::Listed(number), limit)
}

fn one_for_each_layout<'l>(limits: impl Iterator<Item = &'l Arc<Limit>>) -> Vec<Arc<Limit>> {
    let mut ids = BTreeSet::new();
    limits.filter(|limit| ids.insert(limit.id())).cloned().collect()
}

impl RateSelector {
    /// `path` is the path of the route whose requests use the selector.
    pub fn new(rate_table: Arc<RateTable>, limit: &config::Limit, path: &PathPattern) -> Self {
        let key = |source: &Source| Key { parts: vec![vec![source.clone()]] };
        let tier = limit.tiers.as_ref().map(|tiers| KeyExtractor::new(&limit.name, &key(&tiers.source), path, None));
        Self { rate_table, tier, sent: None }
    }

    /// Selects the rate that was sent instead of any other.
    pub fn set_sent(&mut self, sent: RateLimitOverride) {
        self.sent = Some(SentRate::new(sent, self.rate_table.gateways));
    }

    pub fn default_limit(&self) -> &Arc<Limit> {
        &self.rate_table.default_limit
    }

    pub fn is_in_body(&self) -> bool {
        self.tier.as_ref().is_some_and(KeyExtractor::is_in_body)
    }

    /// Reads the tier as in [`KeyExtractor::set_place`].
    pub fn set_place(&mut self, index: usize) {
        self.tier.iter_mut().for_each(|tier| tier.set_place(index));
    }

    /// What was selected, or what the proxy has sent instead of any rates. A key that is exempt or blocked stays so.
    pub(super) fn or_sent<'a>(&'a self, selected: SelectedRates<'a>) -> SelectedRates<'a> {
        let (Some(sent), SelectedRates::Rates(_, limit)) = (&self.sent, selected) else { return selected };
        if sent.is_nothing() {
            return SelectedRates::Block;
        }
        let rates = sent.instead_of(limit);
        rates.map_or(selected, |rates| SelectedRates::Rates(RateSet::Quota(rates), &rates.limit))
    }

    /// How many sets of rates may be selected.
    pub fn profiles(&self) -> usize {
        let RateTable { tiers, granted, temporary, .. } = &*self.rate_table;
        1 + tiers.len() + granted.len() + temporary.as_ref().map_or(0, |temporary| temporary.granted.len())
    }

    /// Selects what applies to a request whose `key` is counted. `has_key` says whether the request has a key of its own.
    pub fn select<'a>(
        &'a self,
        extractor: &KeyExtractor,
        key: Fingerprint,
        has_key: bool,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
        quota: Option<&'a Quota>,
    ) -> SelectedRates<'a> {
        let overridden = self.overridden(extractor, key, has_key, attributes, key_cache);
        overridden.unwrap_or_else(|| self.select_without_override(attributes, key_cache, quota))
    }

    pub fn select_without_override<'a>(
        &'a self,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
        quota: Option<&'a Quota>,
    ) -> SelectedRates<'a> {
        let RateTable { default_limit, tiers, .. } = &*self.rate_table;
        if let Some(granted) = quota.and_then(|quota| self.rate_table.of_quota(quota)) {
            return granted;
        }
        match self.tier(attributes, key_cache).and_then(|place| Some((place, tiers.get(place)?))) {
            Some((place, (_, limit))) => listed(1 + place, limit),
            None => listed(0, default_limit),
        }
    }

    /// What an override grants a key: one in the file, otherwise one from the admin API. See [`Self::select`].
    pub fn overridden(
        &self,
        extractor: &KeyExtractor,
        key: Fingerprint,
        has_key: bool,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
    ) -> Option<SelectedRates<'_>> {
        if has_key
            && !self.rate_table.overrides.is_empty()
            && let Some(granted) = self.overridden_in_file(extractor, attributes, key_cache)
        {
            return Some(granted);
        }
        self.rate_table.temporarily_granted(key)
    }

    /// Not inline, because most limits have no overrides.
    #[inline(never)]
    fn overridden_in_file(
        &self,
        extractor: &KeyExtractor,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
    ) -> Option<SelectedRates<'_>> {
        self.rate_table.granted(extractor.subject(attributes, key_cache)?)
    }

    pub fn tier(&self, attributes: &RequestAttributes<'_>, key_cache: &mut KeyCache) -> Option<usize> {
        let Some(Subject::Text(name)) = self.tier.as_ref()?.subject(attributes, key_cache) else { return None };
        self.rate_table.tiers.iter().position(|(tier, _)| tier.as_bytes() == name)
    }
}

/// The two limits that count the bans and the refusals of a limit.
#[derive(Clone, Debug)]
pub struct BanLimits {
    /// Counts bans, in the store.
    pub bans: Arc<Limit>,
    /// Counts refusals, in this process: how many a key may have within a time.
    pub strikes: Arc<Limit>,
}

impl BanLimits {
    pub fn new(limit: &config::Limit) -> Option<Self> {
        let ban = limit.ban.as_ref()?;
        let bans = Limit::bans(&limit.name, ban.first, ban.longest).ok()?;
        let strikes =
            Rate::new(ban.after, ban.within).and_then(|rate| rate.with_strategy(Strategy::SlidingLog)).ok()?;
        Some(Self { bans: Arc::new(bans), strikes: Arc::new(Limit::new(&limit.name, &[strikes])) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::temporary_overrides::TemporaryOverrides;
    use super::*;

    #[test]
    fn a_change_of_one_override_touches_no_other_key() {
        let text = "[limits.l]\nkey = \"header:x-a\"\nrates = [\"1/s\"]\n[[routes]]\npath = \"/*\"\nrespond = { status = 200 }\n";
        let config = config::parse(text.as_bytes(), "test", Path::new("")).unwrap();
        let (limit, mut overrides) = (&config.limits[0], TemporaryOverrides::default());
        let ends = Instant::now() + Duration::from_secs(60);
        let mut table = RateTable::new(limit);
        for number in 0..100 {
            let rates = Allowance::Rates(vec!["5/h".parse().unwrap()].into());
            overrides.set(limit, vec![format!("key {number}").into_bytes()], &rates, ends).unwrap();
            let next = table.with_temporary(overrides.of("l"));
            assert_eq!((next.changed_keys(&table).count(), next.replaced(&table).len()), (1, 1), "{number}");
            table = next;
        }
        overrides.remove(limit, &[b"key 7".to_vec()]);
        let next = table.with_temporary(overrides.of("l"));
        assert_eq!((next.changed_keys(&table).count(), next.replaced(&table).len()), (1, 1));
    }
}
