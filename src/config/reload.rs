//! What a change of the configuration means: which settings need a restart, which counters survive, whose overrides change; and
//! why a new configuration is refused.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::overrides::{Allowance, Changes};
use super::report::Problem;
use super::{AtStart, Config, Limit, Problems};
use crate::limit::Rate;

/// The most cell layouts of one limit and its overrides between which a key may change and keep its counts. Limits seldom have
/// more than two or three.
pub const MAX_LAYOUTS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The text is not valid.
    #[error("{0}")]
    Invalid(Box<Problems>),
    /// A sentence about something else.
    #[error("{0}")]
    Other(String),
}

impl ReloadError {
    /// The files that the refused configuration names, as far as they are known.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let problems = if let Self::Invalid(problems) = self { Some(problems) } else { None };
        problems.into_iter().flat_map(|problems| &problems.files)
    }
}

impl From<Problems> for ReloadError {
    fn from(problems: Problems) -> Self {
        Self::Invalid(Box::new(problems))
    }
}

impl From<String> for ReloadError {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// A limit or tier that both configurations have, but that counts differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recounted<'a> {
    pub limit: &'a str,
    /// `None` for the rates of the limit itself.
    pub tier: Option<&'a str>,
    pub changed: &'static str,
    /// Rates that keep their counts.
    pub carried: Vec<String>,
    /// Rates whose counts start at 0.
    pub anew: Vec<String>,
}

/// The limits of `new` that count differently than in `old`. Counters are found by the name and key of their limit. Their format
/// depends on everything in its rates except the quotas. A rate takes over the counts of the rate with the same period.
pub fn recounted<'a>(old: &Config, new: &'a Config) -> Vec<Recounted<'a>> {
    let mut all = Vec::new();
    for limit in &new.limits {
        let Some(before) = old.limits.iter().find(|before| before.name == limit.name) else { continue };
        let own = (None, &before.rates, &limit.rates);
        let tiers = before.tiers.iter().zip(&limit.tiers).flat_map(|(before, after)| {
            after.rates.iter().filter_map(|(name, rates)| {
                let (_, old) = before.rates.iter().find(|(before, _)| before == name)?;
                Some((Some(name.as_str()), old, rates))
            })
        });
        for (tier, old, new) in [own].into_iter().chain(tiers) {
            let (changed, is_same_key) = match changed_rates(old, new) {
                _ if before.key != limit.key => ("key", false),
                _ if before.cost.unit() != limit.cost.unit() => ("unit", false),
                Some(changed) => (changed, true),
                None => continue,
            };
            let is_carried = |rate: &&Rate| is_same_key && rate.predecessor(old).is_some();
            let (carried, anew): (Vec<_>, Vec<_>) = new.iter().partition(is_carried);
            let [carried, anew] = [carried, anew].map(|rates| rates.iter().map(ToString::to_string).collect());
            all.push(Recounted { limit: &limit.name, tier, changed, carried, anew });
        }
        let anew = in_further_layouts(before, limit);
        let changed = "overrides, with more than 16 combinations of periods";
        all.push(Recounted { limit: &limit.name, tier: None, changed, carried: Vec::new(), anew });
    }
    all.retain(|limit| !limit.carried.is_empty() || !limit.anew.is_empty());
    all
}

/// The rates of overrides that start at 0 for a key that had another override before, or none: one set for each layout.
fn in_further_layouts(old: &Limit, new: &Limit) -> Vec<String> {
    let mut further = Vec::new();
    for limit in [old, new].into_iter().filter(|_| !new.overrides.selects_like(&old.overrides)) {
        let mut known = BTreeSet::from([limit.counted(&limit.rates).id()]);
        for allowance in limit.overrides.allowances() {
            let Allowance::Rates(rates) = allowance else { continue };
            if known.insert(limit.counted(rates).id()) && known.len() > MAX_LAYOUTS {
                further.push(allowance.to_string());
            }
        }
    }
    further.sort_unstable();
    further.dedup();
    further
}

pub fn changed_overrides(old: &Config, new: &Config) -> Vec<(String, Changes)> {
    let changed = |limit: &Limit| {
        let before = old.limits.iter().find(|before| before.name == limit.name)?;
        let changes = limit.overrides.changes(&before.overrides);
        (!changes.is_empty()).then(|| (limit.name.clone(), changes))
    };
    new.limits.iter().filter_map(changed).collect()
}

/// The limits that only `old` has. Their counters are dropped.
pub fn dropped<'a>(old: &'a Config, new: &Config) -> impl Iterator<Item = &'a Limit> {
    old.limits.iter().filter(|old| new.limits.iter().all(|new| new.name != old.name))
}

fn changed_rates(old: &[Rate], new: &[Rate]) -> Option<&'static str> {
    let periods = |rates: &[Rate]| rates.iter().map(Rate::period).collect::<Vec<_>>();
    if periods(old) == periods(new) {
        let is_kept = old.iter().zip(new).all(|(old, new)| new.is_kept_like(old));
        (!is_kept).then_some("strategy, precision or time zone")
    } else {
        Some("periods")
    }
}

/// The changed settings that take effect only at the start, as problems of the text of `new`; `None` if there are none.
pub fn needs_restart(old: &Config, new: &Config) -> Option<Problems> {
    let differs = |one: &&AtStart| old.at_start.iter().any(|was| was.key == one.key && was.value != one.value);
    let problem = |one: &AtStart| {
        let message = format!("{} cannot change while the gateway runs", one.key);
        Problem::new(one.span.clone(), message, "restart the gateway, or leave this setting as it was")
    };
    let problems: Vec<_> = new.at_start.iter().filter(differs).map(problem).collect();
    (!problems.is_empty()).then(|| Problems { files: new.files.clone(), ..new.warnings.instead(problems) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A limit with so many overrides, each with a period of its own, and the rest of the limit.
    fn with_overrides(count: usize, more: &str) -> Config {
        let one = |minutes: usize| {
            format!("[[limits.l.overrides]]\nkeys = ['{minutes}-*']\nrates = ['9/d', '99/{minutes}m']\n")
        };
        let overrides: String = (1..=count).map(one).collect();
        let limit = format!("[limits.l]\nkey = 'header:a'\nrates = ['9/d']\n{more}\n{overrides}");
        let text = format!("{limit}[[routes]]\npath = '/*'\nlimits = ['l']\nrespond = {{ status = 200 }}\n");
        super::super::parse(text.as_bytes(), "test", Path::new("")).unwrap()
    }

    #[test]
    fn overrides_start_anew_if_they_change_and_are_too_many_to_follow() {
        let anew = |old: (usize, &str), new: (usize, &str)| {
            let [old, new] = [old, new].map(|(count, more)| with_overrides(count, more));
            recounted(&old, &new).into_iter().flat_map(|one| one.anew).collect::<Vec<_>>()
        };
        assert_eq!(anew((14, ""), (15, "")), [""; 0], "with the limit's own there are 16");
        assert_eq!(anew((15, ""), (17, "")), ["9/d 99/16m", "9/d 99/17m"]);
        assert_eq!(anew((16, ""), (15, "")), ["9/d 99/16m"]);
        assert_eq!(anew((17, ""), (17, "precision = 2")), [""; 0], "every key keeps its override");
    }
}
