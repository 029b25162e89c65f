//! `[limits.NAME.quotas]` as it runs: where quotas of keys are read from, and how long they are used.

use std::fmt;
use std::time::Duration;

use super::PostgresUrl;
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

#[derive(Clone, Debug, PartialEq)]
pub struct Quotas {
    pub server: QuotaServer,
    /// The time after which an answer is renewed.
    pub cache_for: Duration,
    /// The maximum number of cached answers, at least 1.
    pub max_cached: usize,
    /// The longest time that a request waits for an answer.
    pub timeout: Duration,
    pub send: SentKey,
}

#[derive(Clone, Debug, PartialEq)]
pub enum QuotaServer {
    Http(HttpQuotas),
    Postgres(PostgresSettings),
}

/// A server with a document for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpQuotas {
    /// `{key}` in the target is replaced by a key.
    pub url: Url,
    /// `None` without `https`.
    pub tls: Option<ConnectorTls>,
}

/// A database with a row for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    /// With the user and the password.
    pub url: PostgresUrl,
    /// `None` if no connection can use TLS.
    pub tls: Option<ConnectorTls>,
    /// `$1` is the key.
    pub query: String,
    /// The channel on which the database announces keys whose quotas have changed.
    pub channel: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentKey {
    Key,
    /// The SHA-256 digest in lower-case hexadecimal digits.
    Sha256,
}

/// Without parts that may be secret.
impl fmt::Display for QuotaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(settings) => write!(f, "{}", settings.url),
            Self::Postgres(settings) => write!(f, "{}", settings.url),
        }
    }
}
