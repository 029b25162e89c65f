//! New connections to endpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::UpstreamConnection;
use super::endpoint::Endpoint;
use super::error::UpstreamError;
use super::resolver::Lookups;
use super::stream::UpstreamStream;

/// How an upstream connects to its endpoints.
#[derive(Debug)]
pub(super) struct Connector {
    timeout: Duration,
    lookups: Arc<Lookups>,
}

impl Connector {
    /// The lookup of the name, the connection and its TLS handshake may take `timeout` together.
    pub(super) fn new(timeout: Duration, lookups: Arc<Lookups>) -> Self {
        Self { timeout, lookups }
    }

    /// A connection whose age counts from `now`.
    ///
    /// # Errors
    /// When the name has no address, no address accepts the connection, the server does not speak TLS or its certificate is
    /// not valid, or the time is over.
    pub(super) async fn connect(
        &self,
        endpoint: &Endpoint,
        now: Instant,
    ) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let connecting = async {
            let found = self.lookups.find(&endpoint.host, endpoint.port).await;
            let addresses = found.map_err(UpstreamError::Connect)?;
            let stream = UpstreamStream::connect(&addresses, endpoint.tls.as_ref()).await?;
            UpstreamConnection::new(stream, now).map_err(UpstreamError::Connect)
        };
        let timed = tokio::time::timeout(self.timeout, connecting).await;
        timed.unwrap_or(Err(UpstreamError::ConnectTimeout(self.timeout)))
    }
}
