//! The servers that can be asked for quotas.

use std::future::pending;

use super::Postgres;
use super::answer::{LookupError, QuotaAnswer, QuotaChange};
use super::http::Http;
use crate::config::QuotaServer;

/// A server that is asked. It lives in one thread.
pub(super) enum QuotaOrigin {
    Http(Box<Http>),
    Postgres(Box<Postgres>),
}

impl QuotaOrigin {
    /// `changes` is told what the server announces by itself.
    pub(super) fn new(server: &QuotaServer, changes: impl Fn(QuotaChange) + 'static) -> Self {
        match server {
            QuotaServer::Http(settings) => Self::Http(Box::new(Http::new(settings.clone()))),
            QuotaServer::Postgres(settings) => Self::Postgres(Box::new(Postgres::new(settings, changes))),
        }
    }

    /// Does what the server needs besides lookups. It never ends.
    pub(super) async fn run(&self) {
        match self {
            Self::Http(_) => pending().await,
            Self::Postgres(postgres) => postgres.run().await,
        }
    }

    /// What the server says about a key, in the form in which it is asked. The caller bounds the time.
    pub(super) async fn look_up(&self, key: &str) -> Result<Option<QuotaAnswer>, LookupError> {
        match self {
            Self::Http(http) => http.look_up(key).await,
            Self::Postgres(postgres) => postgres.look_up(key).await,
        }
    }
}
