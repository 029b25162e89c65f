//! `[limits.NAME.quotas]` as it runs: where quotas of keys are read from, and how long they hold.

use std::fmt;
use std::time::Duration;

use super::PostgresUrl;
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// `[limits.NAME.quotas]`: rates of keys from a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Quotas {
    /// Which server is asked.
    pub server: QuotaServer,
    /// How long an answer is used before it is renewed.
    pub cache_for: Duration,
    /// The most keys whose answers are cached, at least 1.
    pub max_cached: usize,
    /// The longest time for which a request waits for an answer.
    pub timeout: Duration,
    /// In which form keys are sent.
    pub send: SentKey,
}

/// Which server is asked for quotas.
#[derive(Clone, Debug, PartialEq)]
pub enum QuotaServer {
    /// A server that speaks HTTP.
    Http(HttpQuotas),
    /// A PostgreSQL database.
    Postgres(PostgresSettings),
}

/// A server that speaks HTTP: a document for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpQuotas {
    /// Where it is. Of its target, `{key}` is replaced by a key.
    pub url: Url,
    /// How it is connected to with `https`.
    pub tls: Option<ConnectorTls>,
}

/// A PostgreSQL database: a row for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    /// Where it is, and as whom it is asked.
    pub url: PostgresUrl,
    /// Whose certificates it may have; `None` if no connection can use TLS.
    pub tls: Option<ConnectorTls>,
    /// The query, in which `$1` is the key.
    pub query: String,
    /// The channel on which the database announces keys whose quotas have changed.
    pub channel: Option<String>,
}

/// In which form a key is sent to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentKey {
    /// As it is.
    Key,
    /// Its SHA-256 in lower-case hexadecimal digits.
    Sha256,
}

/// Without what may be secret.
impl fmt::Display for QuotaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(settings) => write!(f, "{}", settings.url),
            Self::Postgres(settings) => write!(f, "{}", settings.url),
        }
    }
}
