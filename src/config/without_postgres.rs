//! URLs of PostgreSQL servers, in a gateway that was built without the feature `postgres`: there are none.

use std::fmt;
use std::path::PathBuf;

/// A server of PostgreSQL. There is no value of this type.
#[derive(Clone, Debug, PartialEq)]
pub enum PostgresUrl {}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl PostgresUrl {
    /// Refuses every URL.
    ///
    /// # Errors
    /// Always.
    pub fn parse(_: &str) -> Result<Self, String> {
        Err("this gateway was built without PostgreSQL (the feature postgres)".to_owned())
    }

    /// The same, where the name of the database is shown unless it is secret.
    #[must_use]
    pub fn with_secret_database(self, _: bool) -> Self {
        match self {}
    }

    /// The file of authorities that it names.
    pub fn root_certificates(&self) -> Option<&PathBuf> {
        match *self {}
    }

    /// Whether no authorities are needed.
    pub fn never_uses_tls(&self) -> bool {
        match *self {}
    }
}
