//! Which rates hold for a request: what its key is granted, else those of its tier, else the limit's own.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::{self, Key, PathPattern, Source};
use crate::identify::{KeyCache, KeyExtractor, RequestAttributes, Subject};
use crate::limit::{Limit, Rate};
use crate::overrides::{Allowance, Overrides};

/// Of rates that count in so many different cells is known what they have become, if a reload changes them: a limit seldom
/// has more than two or three.
const MOST_BEFORE: usize = 16;

/// The rates that a limit may come to mean, on all routes.
pub struct RateTable {
    own: Arc<Limit>,
    /// By the name of the tier.
    tiers: Vec<(String, Arc<Limit>)>,
    overrides: Arc<Overrides>,
    /// For each allowance of the overrides; `None` where it grants no rates.
    granted: Vec<Option<Arc<Limit>>>,
    /// Its own rates and those of the overrides, one of each that count in the same cells: its own first.
    by_key: Vec<Arc<Limit>>,
}

/// What a limit means for requests of one route.
pub struct RateSelector {
    rate_table: Arc<RateTable>,
    /// Where the name of a request's tier comes from.
    tier: Option<KeyExtractor>,
}

/// What holds for one request.
#[derive(Clone, Copy, Debug)]
pub enum SelectedRates<'a> {
    /// These rates; the number tells them from the others of the limit, of which its own are 0.
    Rates(usize, &'a Arc<Limit>),
    /// It passes uncounted.
    Exempt,
    /// It does not pass.
    Block,
}

impl RateTable {
    /// Everything that the configuration of a limit grants.
    pub fn new(limit: &config::Limit) -> Self {
        let of = |rates: &[Rate]| Arc::new(Limit::new(&limit.name, rates));
        let tiers = limit.tiers.iter().flat_map(|tiers| &tiers.rates);
        let granted = |allowance: &Allowance| match allowance {
            Allowance::Rates(rates) => Some(of(rates)),
            Allowance::Exempt | Allowance::Block => None,
        };
        let own = of(&limit.rates);
        let granted: Vec<_> = limit.overrides.allowances().iter().map(granted).collect();
        let mut ids = BTreeSet::new();
        let by_key = [&own].into_iter().chain(granted.iter().flatten()).filter(|limit| ids.insert(limit.id()));
        Self {
            by_key: by_key.cloned().collect(),
            own,
            tiers: tiers.map(|(name, rates)| (name.clone(), of(rates))).collect(),
            overrides: limit.overrides.clone(),
            granted,
        }
    }

    /// The name of the limit.
    pub fn name(&self) -> &str {
        self.own.name()
    }

    /// Rates that it may come to mean, at least one of all that count in the same cells.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.by_key.iter().chain(self.tiers.iter().map(|(_, limit)| limit))
    }

    /// Which rates its keys may have had by `old`, where they were counted in other cells, and which they may have now. A
    /// key has its own rates or those of an override, by what it is; those of a tier are apart.
    pub fn replaced<'a>(&'a self, old: &'a Self) -> impl Iterator<Item = (&'a Arc<Limit>, &'a Arc<Limit>)> {
        let pairs = |new| old.by_key.iter().take(MOST_BEFORE).map(move |old| (old, new));
        let by_key = self.by_key.iter().take(MOST_BEFORE).flat_map(pairs);
        let of_tier = |(name, new)| old.tiers.iter().find(|(tier, _)| tier == name).map(|(_, old)| (old, new));
        let by_tier = self.tiers.iter().filter_map(move |(name, new)| of_tier((name, new)));
        by_key.chain(by_tier).filter(|(old, new)| old.id() != new.id())
    }
}

impl RateSelector {
    /// What a limit that grants this means for requests of a route with this path.
    pub fn new(rate_table: Arc<RateTable>, limit: &config::Limit, path: &PathPattern) -> Self {
        let key = |source: &Source| Key { parts: vec![vec![source.clone()]] };
        let tier = limit.tiers.as_ref().map(|tiers| KeyExtractor::new(&limit.name, &key(&tiers.source), path));
        Self { rate_table, tier }
    }

    /// The limit's own rates under its name.
    pub fn own(&self) -> &Arc<Limit> {
        &self.rate_table.own
    }

    /// How many rates there are to choose from.
    pub fn profiles(&self) -> usize {
        1 + self.rate_table.tiers.len() + self.rate_table.granted.len()
    }

    /// The rates with this number.
    pub fn rates(&self, profile: usize) -> Option<&Arc<Limit>> {
        let RateTable { own, tiers, granted, .. } = &*self.rate_table;
        match profile.checked_sub(1) {
            None => Some(own),
            Some(index) if index < tiers.len() => Some(&tiers[index].1),
            Some(index) => granted.get(index - tiers.len())?.as_ref(),
        }
    }

    /// What holds for a request; `identity` is how the limit reads its key, `keyed` whether the request has one.
    pub fn of(
        &self,
        key: &KeyExtractor,
        keyed: bool,
        attributes: &RequestAttributes<'_>,
        key_cache: &mut KeyCache,
    ) -> SelectedRates<'_> {
        let RateTable { own, tiers, overrides, granted, .. } = &*self.rate_table;
        if keyed && !overrides.is_empty() {
            let found = match key.subject(attributes, key_cache) {
                Some(Subject::Text(text)) => overrides.find(Some(text), None),
                Some(Subject::Address(address)) => overrides.find(None, Some(address)),
                None => None,
            };
            if let Some(index) = found {
                return match (overrides.allowances().get(index), granted.get(index)) {
                    (_, Some(Some(limit))) => SelectedRates::Rates(1 + tiers.len() + index, limit),
                    (Some(Allowance::Exempt), _) => SelectedRates::Exempt,
                    _ => SelectedRates::Block,
                };
            }
        }
        if let Some(tier) = &self.tier
            && let Some(Subject::Text(name)) = tier.subject(attributes, key_cache)
            && let Some(place) = tiers.iter().position(|(tier, _)| tier.as_bytes() == name)
        {
            return SelectedRates::Rates(1 + place, &tiers[place].1);
        }
        SelectedRates::Rates(0, own)
    }
}
