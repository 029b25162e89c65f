//! Describes what a reload changes.

use std::fmt::{Display, Write as _};

use super::listener;
use crate::config::{self, Config, Recounted};

/// Describes the reload that replaces `old`, read from `name`, with `new`. The error says why the reload is refused.
pub fn describe_reload(name: &impl Display, old: &Config, new: &Config) -> Result<String, String> {
    let mut text = format!("\na reload that replaces {name}\n");
    if let Some(problems) = config::needs_restart(old, new) {
        for (place, problem) in problems.located() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  is refused: {} ({place})", problem.message);
        }
        return Err(text);
    }
    let addresses = |config: &Config| config.listeners().map(listener).collect::<Vec<_>>();
    let (before, after) = (addresses(old), addresses(new));
    for address in after.iter().filter(|address| !before.contains(address)) {
        let _ = writeln!(text, "  listens on {address}, too");
    }
    for address in before.iter().filter(|address| !after.contains(address)) {
        let _ =
            writeln!(text, "  does not listen on {address} any more: its connections end after the request in flight");
    }
    if !old.store.is_same_place(&new.store) {
        let _ = writeln!(text, "  counts in another store: limits {}", new.store.first_counts());
        return Ok(text);
    }
    let (recounted, dropped): (Vec<_>, Vec<_>) = (config::recounted(old, new), config::dropped(old, new).collect());
    for Recounted { limit, tier, changed, carried, anew } in &recounted {
        let tier = tier.map_or(String::new(), |tier| format!(", tier {tier},"));
        for (rates, what) in [(carried, "carries over"), (anew, "starts anew")] {
            if !rates.is_empty() {
                let _ = writeln!(
                    text,
                    "  {what} what {limit}{tier} has counted: {} (changed: {changed})",
                    rates.join(", ")
                );
            }
        }
    }
    for limit in &dropped {
        let _ = writeln!(text, "  drops what {} has counted (the limit is removed)", limit.name);
    }
    if recounted.is_empty() && dropped.is_empty() {
        let _ = writeln!(text, "  keeps all counters");
    }
    Ok(text)
}
