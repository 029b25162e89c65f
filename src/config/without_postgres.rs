//! Replaces `postgres.rs` in a gateway that was built without the feature `postgres`: there are no valid URLs.

use std::fmt;
use std::path::PathBuf;

/// Has no values.
#[derive(Clone, Debug, PartialEq)]
pub enum PostgresUrl {}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl PostgresUrl {
    /// # Errors
    /// Always.
    pub fn parse(_: &str) -> Result<Self, String> {
        Err("this gateway was built without PostgreSQL (the feature postgres)".to_owned())
    }

    #[must_use]
    pub fn with_secret_database(self, _: bool) -> Self {
        match self {}
    }

    pub fn root_certificates(&self) -> Option<&PathBuf> {
        match *self {}
    }

    pub fn never_uses_tls(&self) -> bool {
        match *self {}
    }
}
