//! A key of a limit that the admin API was asked about.

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
