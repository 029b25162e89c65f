//! Connects to a server whose name has addresses of both families, although one of the families may not work.
//!
//! If the chosen address does not accept a connection soon, one of the other family is tried at the same time, and the first
//! that accepts gets the request (RFC 8305, section 5). The slower address counts as failed, so that repeated failures eject it.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::attempts::Attempts;
use super::delivery::{Connection, Delivery};
use super::endpoint::Endpoint;
use super::error::UpstreamError;
use super::in_flight::InFlight;

/// How long the first address is tried alone: the Connection Attempt Delay of RFC 8305.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

impl Delivery<'_> {
    /// A connection to the endpoint that accepts one first: that of `in_flight`, or its sibling of the other family, which then
    /// replaces it in `in_flight`. An endpoint that has not accepted counts as tried.
    ///
    /// # Errors
    /// When neither accepts a connection.
    pub(super) async fn race(
        self,
        in_flight: &mut InFlight,
        attempts: &mut Attempts<'_>,
    ) -> Result<Connection, UpstreamError> {
        let Self { upstream, request, .. } = self;
        let endpoint = in_flight.endpoint().clone();
        let mut first = pin!(self.open(&endpoint));
        if let Ok(opened) = timeout(ATTEMPT_DELAY, first.as_mut()).await {
            return opened;
        }
        let Some(sibling) = upstream.balancer.sibling(&endpoint, &attempts.tried) else { return first.await };
        let sibling = InFlight::new(sibling, request);
        let other = sibling.endpoint().clone();
        let mut second = pin!(self.open(&other));
        let (is_first, opened) = tokio::select! {
            opened = first.as_mut() => (true, opened),
            opened = second.as_mut() => (false, opened),
        };
        let (is_first, opened) = match opened {
            Ok(connection) => {
                if !is_first {
                    upstream.failed_at(&endpoint, &UpstreamError::ConnectTimeout(ATTEMPT_DELAY));
                }
                (is_first, Ok(connection))
            }
            Err(error) => {
                let failed = if is_first { &endpoint } else { &other };
                upstream.failed_at(failed, &error);
                attempts.tried.push(failed.id);
                (!is_first, if is_first { second.await } else { first.await })
            }
        };
        if !is_first {
            in_flight.failed(&UpstreamError::ConnectTimeout(ATTEMPT_DELAY));
            sibling.begin(request);
            *in_flight = sibling;
        }
        opened
    }

    /// Whether the endpoint has a sibling of the other family, and no connection of its own.
    pub(super) fn needs_race(self, endpoint: &Endpoint) -> bool {
        endpoint.state.has_sibling()
            && !(self.is_offered_http2(endpoint) && self.connections.pools.http2.is_connected(endpoint.id))
    }
}
