//! Connects to a server whose name has addresses of both families, although one of the families may not work.
//!
//! If the chosen address does not accept a connection soon, one of the other family is tried at the same time, and the first
//! that accepts gets the request (RFC 8305, section 5). The slower address has failed, so that it is ejected if that goes on.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::Upstream;
use super::error::UpstreamError;
use super::in_flight::InFlight;
use super::pool::ConnectionPools;
use super::request::UpstreamRequest;

/// How long the first address is tried alone: the Connection Attempt Delay of RFC 8305.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

impl Upstream {
    /// Puts a new connection into the pool of the endpoint that accepts one first: that of `in_flight`, or its sibling of the
    /// other family, at which the request is in flight then.
    ///
    /// # Errors
    /// When neither accepts a connection.
    pub(super) async fn race(
        &self,
        pools: &Rc<ConnectionPools>,
        in_flight: &mut InFlight,
        request: &UpstreamRequest<'_>,
    ) -> Result<(), UpstreamError> {
        let first_endpoint = in_flight.endpoint().clone();
        let mut first = pin!(self.connect(pools, &first_endpoint, request));
        if let Ok(connected) = timeout(ATTEMPT_DELAY, first.as_mut()).await {
            pools.put(first_endpoint.id, connected?);
            return Ok(());
        }
        let Some(sibling) = self.balancer.sibling(&first_endpoint).map(|sibling| self.in_flight(sibling)) else {
            pools.put(first_endpoint.id, first.await?);
            return Ok(());
        };
        let endpoint = sibling.endpoint().clone();
        let mut second = pin!(self.connect(pools, &endpoint, request));
        let (is_first, connected) = tokio::select! {
            connected = first.as_mut() => match connected {
                Ok(connection) => (true, Ok(connection)),
                Err(error) => {
                    self.failed(&first_endpoint, &error);
                    (false, second.await)
                }
            },
            connected = second.as_mut() => match connected {
                Ok(connection) => {
                    self.failed(&first_endpoint, &UpstreamError::ConnectTimeout(ATTEMPT_DELAY));
                    (false, Ok(connection))
                }
                Err(error) => {
                    self.failed(&endpoint, &error);
                    (true, first.await)
                }
            },
        };
        if !is_first {
            *in_flight = sibling;
        }
        pools.put(in_flight.endpoint().id, connected?);
        Ok(())
    }
}
