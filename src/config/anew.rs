//! Which counters a new configuration can go on with.

use super::{Config, Limit};
use crate::limit::{self, Rate};

/// The limits of `new` that are in `old` too, but whose counters start anew, each with what has changed. Counters are
/// found by the name and key of their limit, and their layout depends on all but the quotas of its rates.
pub fn counted_anew<'a>(old: &Config, new: &'a Config) -> Vec<(&'a str, &'static str)> {
    let anew = |limit: &'a Limit| {
        let before = old.limits.iter().find(|before| before.name == limit.name)?;
        Some((limit.name.as_str(), changed(before, limit)?))
    };
    new.limits.iter().filter_map(anew).collect()
}

fn changed(old: &Limit, new: &Limit) -> Option<&'static str> {
    if old.key != new.key {
        return Some("key");
    }
    if let Some(part) = changed_rates(&old.rates, &new.rates) {
        return Some(part);
    }
    let (before, after) = (old.tiers.as_ref()?, new.tiers.as_ref()?);
    let same = |name: &str| before.rates.iter().find(|(before, _)| before == name).map(|(_, rates)| rates);
    after.rates.iter().find_map(|(name, rates)| changed_rates(same(name)?, rates).map(|_| "rates of a tier"))
}

fn changed_rates(old: &[Rate], new: &[Rate]) -> Option<&'static str> {
    let periods = |rates: &[Rate]| rates.iter().map(Rate::period).collect::<Vec<_>>();
    let shape = |rates: &[Rate]| limit::Limit::new("", rates).shape();
    if periods(old) == periods(new) {
        (shape(old) != shape(new)).then_some("strategy, precision or time zone")
    } else {
        Some("periods")
    }
}
