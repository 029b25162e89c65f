//! `retries` and `[upstreams.NAME.retry]`: which requests are sent again.

use crate::config::file::statuses;
use crate::config::read::{Section, set};
use crate::config::{Retry, values};

const STATUSES: &str = "[\"502\", \"503\"]";

/// Reads `retries` and the section of the upstream.
pub(super) fn read(name: &str, section: &Section<'_>) -> Retry {
    let mut retry = Retry { retries: 1, budget: 200, statuses: Vec::new(), max_body: 64 << 10 };
    let retries = section.field("retries").and_then(|field| field.integer(0..=10));
    set(&mut retry.retries, retries.and_then(|retries| u32::try_from(retries).ok()));
    let Some(own) = section.field("retry").and_then(|field| field.section(format!("[upstreams.{name}.retry]"))) else {
        return retry;
    };
    set(&mut retry.budget, own.field("budget").and_then(|field| field.share()));
    if let Some(field) = own.field("status") {
        let list = field.list(STATUSES).unwrap_or_default();
        field.at_most(&list, 64);
        retry.statuses = list.iter().filter_map(|field| statuses::one(field, STATUSES)).collect();
    }
    set(&mut retry.max_body, values::bytes_or_none(&own, "max_body", 16 << 20, "0 to 16MiB"));
    own.close();
    retry
}
