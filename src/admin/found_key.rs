//! A key of a limit that the admin API was asked about.

use super::{View, temporary};
use crate::config::Limit as ConfiguredLimit;
use crate::request::decide::RateTable;
use crate::request::identify::WrittenKey;
use crate::sources::quotas::QuotaSource;

/// A key of a limit as the configuration in force reads it.
pub(super) struct FoundKey<'a> {
    pub(super) limit: &'a ConfiguredLimit,
    pub(super) table: &'a RateTable,
    /// The source of its quotas, if there is one.
    pub(super) source: Option<&'a QuotaSource>,
    pub(super) parts: &'a [Vec<u8>],
    /// At least one.
    pub(super) readings: &'a [WrittenKey<'a>],
}

impl FoundKey<'_> {
    /// The key as logs show it: masked like everywhere else.
    pub(super) fn shown(&self, view: &View) -> String {
        let fingerprint = self.readings.first().map(|reading| reading.fingerprint);
        fingerprint.map_or(String::new(), |key| temporary::shown_key(view, self.limit, key, self.parts))
    }
}
