//! `retries` and `[upstreams.NAME.retry]`: which requests are sent again.

use crate::config::Retry;
use crate::config::file::statuses;
use crate::config::read::Section;
use crate::config::settings::{retry, upstream};

/// Reads `retries` and the section of the upstream.
pub(super) fn read(section: &Section<'_>) -> Retry {
    let own = section.table_or_empty(&upstream::retry);
    let retry = Retry {
        retries: section.read(&upstream::retries),
        budget: own.read(&retry::budget),
        statuses: own.read_as(&retry::status, |field| statuses::read(field, &retry::status)),
        max_body: own.read(&retry::max_body),
    };
    own.close();
    retry
}
