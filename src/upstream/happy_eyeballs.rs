//! Connects to a server whose name has addresses of both families, although one of the families may not work.
//!
//! If the chosen address does not accept a connection soon, one of the other family is tried at the same time, and the first
//! that accepts gets the request (RFC 8305, section 5). The slower address has failed, so that it is ejected if that goes on.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Upstream;
use super::endpoint::Endpoint;
use super::error::UpstreamError;
use super::http2::Spoken;
use super::in_flight::InFlight;
use super::pool::ConnectionPools;
use super::request::UpstreamRequest;

/// How long the first address is tried alone: the Connection Attempt Delay of RFC 8305.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

impl Upstream {
    /// Opens a connection in the pool of the endpoint that accepts one first: that of `in_flight`, or its sibling of the other
    /// family, at which the request is in flight then.
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
        let mut first = pin!(self.open(pools, &first_endpoint, request));
        if let Ok(opened) = timeout(ATTEMPT_DELAY, first.as_mut()).await {
            return opened;
        }
        let Some(sibling) = self.balancer.sibling(&first_endpoint).map(|sibling| self.in_flight(sibling, request))
        else {
            return first.await;
        };
        let endpoint = sibling.endpoint().clone();
        let mut second = pin!(self.open(pools, &endpoint, request));
        let (is_first, opened) = tokio::select! {
            opened = first.as_mut() => match opened {
                Ok(()) => (true, Ok(())),
                Err(error) => {
                    self.failed_at(&first_endpoint, &error);
                    (false, second.await)
                }
            },
            opened = second.as_mut() => match opened {
                Ok(()) => {
                    self.failed_at(&first_endpoint, &UpstreamError::ConnectTimeout(ATTEMPT_DELAY));
                    (false, Ok(()))
                }
                Err(error) => {
                    self.failed_at(&endpoint, &error);
                    (true, first.await)
                }
            },
        };
        if !is_first {
            *in_flight = sibling;
        }
        opened
    }

    /// Whether a connection has to be made for the request, and the endpoint has a sibling of the other family.
    pub(super) fn needs_race(
        &self,
        endpoint: &Endpoint,
        pools: &ConnectionPools,
        request: &UpstreamRequest<'_>,
    ) -> bool {
        endpoint.state.has_sibling()
            && !(endpoint.target.is_offered_http2(request.asks_for_websocket) && pools.http2.is_connected(endpoint.id))
            && !pools.has_idle(endpoint.id, self.announced(request))
    }

    /// Opens a connection that can take the request, in the pool of this endpoint.
    async fn open(
        &self,
        pools: &Rc<ConnectionPools>,
        endpoint: &Arc<Endpoint>,
        request: &UpstreamRequest<'_>,
    ) -> Result<(), UpstreamError> {
        if endpoint.target.is_offered_http2(request.asks_for_websocket) {
            let keep = (self.keep, pools.now());
            let found = pools.http2.stream(endpoint, &self.connector, self.timeout, request, keep);
            if let Spoken::Http2 { .. } = found.await? {
                return Ok(());
            }
        }
        pools.put(endpoint.id, self.connect(pools, endpoint, request).await?);
        Ok(())
    }
}
