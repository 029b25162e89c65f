//! The kinds of servers that can be asked for quotas.

use std::future::pending;

use super::Postgres;
use super::answer::{LookupError, QuotaAnswer, QuotaChange};
use super::http::Http;
use crate::config::QuotaServer;

/// Used by one thread only.
pub(super) enum QuotaOrigin {
    Http(Box<Http>),
    Postgres(Box<Postgres>),
}

impl QuotaOrigin {
    /// `changes` is called for what the server announces.
    pub(super) fn new(server: &QuotaServer, changes: impl Fn(QuotaChange) + 'static) -> Self {
        match server {
            QuotaServer::Http(settings) => Self::Http(Box::new(Http::new(settings.clone()))),
            QuotaServer::Postgres(settings) => Self::Postgres(Box::new(Postgres::new(settings, changes))),
        }
    }

    /// Does what the server needs besides lookups. Never returns.
    pub(super) async fn run(&self) {
        match self {
            Self::Http(_) => pending().await,
            Self::Postgres(postgres) => postgres.run().await,
        }
    }

    /// The key is in the form in which it is sent. The caller bounds the time.
    pub(super) async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        match self {
            Self::Http(http) => http.look_up(key).await,
            Self::Postgres(postgres) => postgres.look_up(key).await,
        }
    }
}
