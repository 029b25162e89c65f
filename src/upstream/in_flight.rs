//! A request in flight at an endpoint, until the end of its response.

use std::sync::Arc;

use super::endpoint::Endpoint;
use super::upstream_state::UpstreamState;

/// The request is in flight until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    endpoint: Arc<Endpoint>,
    /// Whom to tell that it has ended; `None` if no request waits for that.
    upstream: Option<Arc<UpstreamState>>,
}

impl InFlight {
    /// A request that the state of the endpoint counts already.
    pub(super) fn new(endpoint: Arc<Endpoint>, upstream: Option<Arc<UpstreamState>>) -> Self {
        Self { endpoint, upstream }
    }

    /// Where it is in flight.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.state.end();
        if let Some(upstream) = &self.upstream {
            upstream.ended();
        }
    }
}
