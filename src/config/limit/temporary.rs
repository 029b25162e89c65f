//! Overrides of the admin API, for one key and for some time: JSON that is read by the rules for overrides in the file.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use toml::de::DeTable;

use super::Limit;
use super::exceptions::{self, TRUE};
use super::rates::{RATES, Terms};
use crate::config::kinds::{shaped, wait};
use crate::config::overrides::Allowance;
use crate::config::read::{Section, Source, tables};
use crate::config::report::Problems;
use crate::config::texts::Texts;
use crate::config::values;
use crate::limit::Rate;

const EXAMPLE: &str =
    "an override is \"rates\": [\"100/s\"], \"exempt\": true or \"block\": true, with \"for\": \"1h\"";

tables! {
    /// An override by the admin API.
    keys "an override" {
        /// The rates of the key.
        rates: () = shaped(RATES) => ["10/s", "3000/10m"];
        /// The key has no limit.
        exempt: () = shaped(TRUE) => true;
        /// Requests of the key get 403.
        block: () = shaped(TRUE) => true;
        /// How long the override lasts.
        r#for: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(31 * 86_400)).required() => "1h";
    }
}

/// What an override for a key of `limit` grants, and how long it lasts. The error is everything that is wrong, in the words in
/// which the same is said about a file.
pub fn temporary_override(written: &Map<String, Value>, limit: &Limit) -> Result<(Allowance, Duration), Problems> {
    // `null` is the only JSON value that TOML does not have.
    let text = toml::to_string(written).map_err(|_| {
        let message = "an override has a value that is null".to_owned();
        Problems::without_text("override", message, "leave out what is not set")
    })?;
    let texts = Arc::new(Texts::one("override", text));
    let (table, _) = DeTable::parse_recoverable(&texts.whole);
    let source = Source::new(&texts, None, Vec::new());
    let read = read(&Section::root(&table, &keys::TABLE, &source), limit);
    match read {
        Some(read) if source.is_clean() => Ok(read),
        _ => Err(Problems::new(texts.clone(), source.into_problems())),
    }
}

fn read(section: &Section<'_>, limit: &Limit) -> Option<(Allowance, Duration)> {
    let allowance = exceptions::allowance(section, &Terms::of(limit), EXAMPLE);
    let lasts = section.required(&keys::r#for, EXAMPLE).and_then(|_| section.given(&keys::r#for));
    allowance.zip(lasts)
}

/// The rates that a source of quotas returns for a key, by the terms of its limit. The error says what is wrong with them. It
/// may have a part of them in it, but no key.
pub fn quota_rates(texts: &[String], limit: &Limit) -> Result<Vec<Rate>, String> {
    if texts.len() > values::MOST {
        return Err(format!("there are {} rates, and at most {} are allowed", texts.len(), values::MOST));
    }
    Terms::of(limit).rates_in(texts.iter().map(String::as_str)).map_err(|wrong| wrong.message)
}

/// An allowance that was granted earlier, by the present terms of its limit; `None` if it is no longer valid, such as a rate with
/// a burst after the strategy has changed.
pub fn temporary_again(allowance: &Allowance, limit: &Limit) -> Option<Allowance> {
    let Allowance::Rates(rates) = allowance else { return Some(allowance.clone()) };
    if limit.rates.is_empty() {
        return None;
    }
    let terms = Terms::of(limit);
    let rates: Option<Vec<_>> = rates.iter().map(|rate| terms.rate(&rate.to_string()).ok()).collect();
    Some(Allowance::Rates(Arc::from(rates?)))
}
