//! Quotas from PostgreSQL, in a gateway that was built without the feature `postgres`: the configuration has none.

use std::convert::Infallible;
use std::future::{Pending, Ready};

use super::{LookupError, QuotaAnswer, QuotaChange};
use crate::config::PostgresSettings;

/// A PostgreSQL database. There is no value of this type.
pub struct Postgres {
    never: Infallible,
}

impl Postgres {
    /// Cannot be called, since there are no settings without the feature.
    pub fn new(settings: &PostgresSettings, _: impl Fn(QuotaChange) + 'static) -> Self {
        match settings.url {}
    }

    /// Keeps connected.
    pub fn run(&self) -> Pending<()> {
        match self.never {}
    }

    /// What the database says about a key.
    ///
    /// # Errors
    /// Never.
    pub fn look_up(&self, _: &str) -> Ready<Result<Option<QuotaAnswer>, LookupError>> {
        match self.never {}
    }
}
