//! New connections to endpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::UpstreamConnection;
use super::endpoint::Endpoint;
use super::error::UpstreamError;
use super::resolver::Lookups;

/// How an upstream connects to its endpoints.
#[derive(Debug)]
pub(super) struct Connector {
    timeout: Duration,
    lookups: Arc<Lookups>,
}

impl Connector {
    /// The lookup of the name and the connection may take `timeout` together.
    pub(super) fn new(timeout: Duration, lookups: Arc<Lookups>) -> Self {
        Self { timeout, lookups }
    }

    /// A connection whose age counts from `now`.
    ///
    /// # Errors
    /// When the name has no address, no address accepts the connection, or the time is over.
    pub(super) async fn connect(
        &self,
        endpoint: &Endpoint,
        now: Instant,
    ) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let connecting = async {
            let addresses = self.lookups.find(&endpoint.host, endpoint.port).await?;
            UpstreamConnection::connect(&addresses, now).await
        };
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(connected) => connected.map_err(UpstreamError::Connect),
            Err(_) => Err(UpstreamError::ConnectTimeout(self.timeout)),
        }
    }
}
