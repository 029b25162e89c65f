//! Which rates hold for a request: what its key is granted, else those of its tier, else the limit's own.

use std::sync::Arc;

use crate::config::{self, Key, PathPattern};
use crate::identify::{Facts, Identity, Memo, Subject};
use crate::limit::{Limit, Rate};
use crate::overrides::{Allowance, Overrides};

/// The rates that a limit may come to mean for a request.
#[derive(Clone)]
pub struct Terms {
    own: Arc<Limit>,
    tiers: Option<Tiers>,
    overrides: Arc<Overrides>,
    /// For each allowance of the overrides; `None` where it grants no rates.
    granted: Arc<[Option<Arc<Limit>>]>,
}

/// Rates by an attribute of the request.
#[derive(Clone)]
struct Tiers {
    attribute: Identity,
    rates: Arc<[(String, Arc<Limit>)]>,
}

/// What holds for one request.
#[derive(Clone, Copy, Debug)]
pub enum Term<'a> {
    /// These rates; the number tells them from the others of the limit, of which its own are 0.
    Rates(usize, &'a Arc<Limit>),
    /// It passes uncounted.
    Exempt,
    /// It does not pass.
    Block,
}

impl Terms {
    /// The terms of a limit for requests of a route with this path.
    pub fn new(limit: &config::Limit, path: &PathPattern) -> Self {
        let of = |rates: &[Rate]| Arc::new(Limit::new(&limit.name, rates));
        let tiers = limit.tiers.as_ref().map(|tiers| Tiers {
            attribute: Identity::new(&limit.name, &Key { parts: vec![vec![tiers.source.clone()]] }, path),
            rates: tiers.rates.iter().map(|(name, rates)| (name.clone(), of(rates))).collect(),
        });
        let granted = |allowance: &Allowance| match allowance {
            Allowance::Rates(rates) => Some(of(rates)),
            Allowance::Exempt | Allowance::Block => None,
        };
        let granted = limit.overrides.allowances().iter().map(granted).collect();
        Self { own: of(&limit.rates), tiers, overrides: limit.overrides.clone(), granted }
    }

    /// The same terms for requests of another route.
    #[must_use]
    pub fn on(&self, limit: &config::Limit, path: &PathPattern) -> Self {
        let Some(tiers) = limit.tiers.as_ref() else { return self.clone() };
        let attribute = Identity::new(&limit.name, &Key { parts: vec![vec![tiers.source.clone()]] }, path);
        let tiers = self.tiers.as_ref().map(|known| Tiers { attribute, rates: known.rates.clone() });
        Self { tiers, ..self.clone() }
    }

    /// The limit's own rates under its name.
    pub fn own(&self) -> &Arc<Limit> {
        &self.own
    }

    /// How many rates there are to choose from.
    pub fn profiles(&self) -> usize {
        1 + self.tiers.as_ref().map_or(0, |tiers| tiers.rates.len()) + self.granted.len()
    }

    /// What holds for a request; `identity` is how the limit reads its key, `keyed` whether the request has one.
    pub fn of(&self, identity: &Identity, keyed: bool, facts: &Facts<'_>, memo: &mut Memo) -> Term<'_> {
        if keyed && !self.overrides.is_empty() {
            let found = match identity.subject(facts, memo) {
                Some(Subject::Text(text)) => self.overrides.find(Some(text), None),
                Some(Subject::Address(address)) => self.overrides.find(None, Some(address)),
                None => None,
            };
            if let Some(index) = found {
                return match (self.overrides.allowances().get(index), self.granted.get(index)) {
                    (_, Some(Some(limit))) => Term::Rates(self.profiles() - self.granted.len() + index, limit),
                    (Some(Allowance::Exempt), _) => Term::Exempt,
                    _ => Term::Block,
                };
            }
        }
        if let Some(tiers) = &self.tiers
            && let Some(Subject::Text(text)) = tiers.attribute.subject(facts, memo)
            && let Some(place) = tiers.rates.iter().position(|(name, _)| name.as_bytes() == text)
        {
            return Term::Rates(1 + place, &tiers.rates[place].1);
        }
        Term::Rates(0, &self.own)
    }
}
