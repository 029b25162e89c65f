//! Overrides of the admin API as they are written: JSON that is checked like a table of the file.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use toml::de::DeTable;

use super::read::{Section, Source};
use super::report::Problems;
use super::settings::temporary_overrides;
use super::texts::Texts;
use super::{Limit, file};
use crate::config::overrides::Allowance;
use crate::limit::Rate;

/// Reads an override for a key of `limit`: what it grants, and how long it lasts.
///
/// # Errors
/// Everything that is wrong, in the words in which the same is said about a file.
pub fn temporary_override(written: &Map<String, Value>, limit: &Limit) -> Result<(Allowance, Duration), Problems> {
    let name = temporary_overrides::r#override.name;
    // TOML has no null, so this is the one value of JSON that it cannot say.
    let text = toml::to_string(&Map::from_iter([(name.to_owned(), Value::Object(written.clone()))]));
    let texts = Arc::new(Texts::one(name, text.unwrap_or_default()));
    let (table, _) = DeTable::parse_recoverable(texts.whole());
    let source = Source::new(&texts, None, Vec::new());
    let section = Section::root(&table, &temporary_overrides::TABLE, &source).table(&temporary_overrides::r#override);
    if section.is_none() {
        source.report(0..0, "an override has a value that is null", "leave out what is not set");
    }
    let read = section.and_then(|section| file::temporary(section, limit));
    match read {
        Some(read) if source.is_clean() => Ok(read),
        _ => Err(Problems::new(texts.clone(), source.into_problems())),
    }
}

/// An allowance that was granted before, by the terms that its limit has now; `None` if it is not valid for the limit any
/// longer, such as a rate with a burst where the strategy has none.
pub fn temporary_again(allowance: &Allowance, limit: &Limit) -> Option<Allowance> {
    file::again(allowance, limit)
}

/// The rates that a source of quotas names for a key, by the terms of its limit.
///
/// # Errors
/// What is wrong with them. It may have a part of them in it, but no key.
pub fn quota_rates(texts: &[String], limit: &Limit) -> Result<Vec<Rate>, String> {
    file::quota_rates(texts, limit)
}
