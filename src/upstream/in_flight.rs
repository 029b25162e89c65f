//! A request in flight at an endpoint, until the end of its response.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::endpoint::Endpoint;
use super::error::UpstreamError;
use super::upstream_state::UpstreamState;
use crate::clock::{self, Time};
use crate::reason::Reason;

/// The request is in flight until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    endpoint: Arc<Endpoint>,
    /// Whom to tell that it has ended; `None` if no request waits for that.
    upstream: Option<Arc<UpstreamState>>,
    /// When it was sent, if its latency is measured and there is no response yet.
    begun: Cell<Option<Time>>,
    /// Whether it may still wait for the client's body, and not for the endpoint.
    has_body: Cell<bool>,
}

impl InFlight {
    /// A request that the state of the endpoint counts already. If it has `begun` at some time, its latency is measured.
    pub(super) fn new(endpoint: Arc<Endpoint>, upstream: Option<Arc<UpstreamState>>, begun: Option<Time>) -> Self {
        Self { endpoint, upstream, begun: Cell::new(begun), has_body: Cell::new(false) }
    }

    /// The request has a body, for which the endpoint has to wait.
    pub(super) fn set_has_body(&self) {
        self.has_body.set(true);
    }

    /// Where it is in flight.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The head of its response is there. `complete_since` says since when it could be.
    pub(super) fn answered(&self, status: StatusCode, complete_since: impl FnOnce(Time) -> Option<Time>) {
        // A failure can be much faster than the work would have been.
        if let Some(since) = self.begun.take().filter(|_| !status.is_server_error()).and_then(complete_since) {
            self.endpoint.state.adaptive().record(until_now(since));
        }
    }

    /// There is no response.
    pub(super) fn failed(&self, error: &UpstreamError) {
        if let Some(since) = self.begun.take().filter(|_| error.reason() == Reason::Timeout) {
            self.endpoint.state.adaptive().record(until_now(since));
        }
    }
}

fn until_now(since: Time) -> Duration {
    Duration::from_micros(clock::now().micros().saturating_sub(since.micros()))
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // A client that does not wait any longer shows how long a response takes at least. One that goes away early shows
        // nothing, and shall not make the server look fast.
        if let Some(waited) = self.begun.take().filter(|_| !self.has_body.get()).map(until_now)
            && self.endpoint.state.latency().is_some_and(|latency| waited > latency)
        {
            self.endpoint.state.adaptive().record(waited);
        }
        self.endpoint.state.end();
        if let Some(upstream) = &self.upstream {
            upstream.ended();
        }
    }
}
