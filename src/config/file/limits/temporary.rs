//! Overrides of the admin API: for one key and for a while. They are read by the same rules as overrides in the file.

use std::sync::Arc;
use std::time::Duration;

use super::exceptions;
use super::rates::{Terms, same_period};
use crate::config::overrides::Allowance;
use crate::config::read::{Section, Setting};
use crate::config::settings::temporary;
use crate::config::{Limit, values};
use crate::limit::Rate;

const EXAMPLE: &str =
    "an override is \"rates\": [\"100/s\"], \"exempt\": true or \"block\": true, with \"for\": \"1h\"";

const KEYS: [&Setting<()>; 3] = [&temporary::rates, &temporary::exempt, &temporary::block];

/// Reads what an override of this limit grants, and for how long.
pub(in crate::config) fn temporary(section: Section<'_>, limit: &Limit) -> Option<(Allowance, Duration)> {
    let allowance = exceptions::allowance(&section, KEYS, &Terms::of(limit), !limit.rates.is_empty(), EXAMPLE);
    let lasts = section.required(&temporary::r#for, EXAMPLE).and_then(|_| section.given(&temporary::r#for));
    section.close();
    allowance.zip(lasts)
}

/// Reads the rates that a source of quotas names for a key of this limit.
///
/// # Errors
/// What is wrong with them.
pub(in crate::config) fn quota_rates(texts: &[String], limit: &Limit) -> Result<Vec<Rate>, String> {
    if texts.len() > values::MOST {
        return Err(format!("there are {} rates, and allowed are at most {}", texts.len(), values::MOST));
    }
    let terms = Terms::of(limit);
    let mut rates = Vec::new();
    for text in texts {
        let rate = terms.rate(text).map_err(|wrong| wrong.message)?;
        if let Some(wrong) = same_period(&rates, &rate) {
            return Err(wrong.message);
        }
        rates.push(rate);
    }
    Ok(rates)
}

/// The same allowance by the terms that the limit has now; `None` if they do not permit it.
pub(in crate::config) fn again(allowance: &Allowance, limit: &Limit) -> Option<Allowance> {
    let Allowance::Rates(rates) = allowance else { return Some(allowance.clone()) };
    if limit.rates.is_empty() {
        return None;
    }
    let terms = Terms::of(limit);
    let rates: Option<Vec<_>> = rates.iter().map(|rate| terms.rate(&rate.to_string()).ok()).collect();
    Some(Allowance::Rates(Arc::from(rates?)))
}
