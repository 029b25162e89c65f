//! Replaces `postgres.rs` in a gateway that was built without the feature `postgres`: no configuration uses it.

use std::convert::Infallible;
use std::future::{Pending, Ready};

use super::{LookupError, QuotaAnswer, QuotaChange};
use crate::config::PostgresSettings;

/// Has no values.
pub struct Postgres {
    never: Infallible,
}

impl Postgres {
    /// Cannot be called, since there are no settings without the feature.
    pub fn new(settings: &PostgresSettings, _: impl Fn(QuotaChange) + 'static) -> Self {
        match settings.url {}
    }

    pub fn run(&self) -> Pending<()> {
        match self.never {}
    }

    /// # Errors
    /// Never.
    pub fn look_up(&self, _: &str) -> Ready<Result<Option<QuotaAnswer>, LookupError>> {
        match self.never {}
    }
}
