//! Quotas from PostgreSQL, in a gateway that was built without the feature `postgres`: the configuration has none.

use super::{LookupError, QuotaAnswer, QuotaChange};
use crate::config::PostgresSettings;

/// A PostgreSQL database. There is no value of this type.
pub enum Postgres {}

impl Postgres {
    /// Cannot be called, since there are no settings without the feature.
    pub fn new(settings: PostgresSettings, _: impl Fn(QuotaChange) + 'static) -> Self {
        match settings.url {}
    }

    /// Keeps connected.
    pub async fn run(&self) {
        match *self {}
    }

    /// What the database says about a key.
    ///
    /// # Errors
    /// Never.
    pub async fn look_up(&self, _: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        match *self {}
    }
}
