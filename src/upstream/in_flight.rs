//! A request in flight at an endpoint, until the end of its response.

use std::cell::Cell;
use std::sync::Arc;

use http::StatusCode;

use super::endpoint::Endpoint;
use super::error::UpstreamError;
use super::request::UpstreamRequest;
use crate::base::clock::{self, Monotonic};
use crate::base::reason::Reason;
use crate::request::decide::ConcurrencyPermit;

/// The request is in flight until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    endpoint: Arc<Endpoint>,
    begun: Monotonic,
    /// Whether the limit of the endpoint follows its latency, and has not learned that of this request yet.
    is_adaptive: Cell<bool>,
    has_body: bool,
    /// What it takes of its client's share of connections.
    pub(super) share: Option<ConcurrencyPermit>,
}

impl InFlight {
    /// A request that the state of the endpoint counts already, and that is sent at `begun`. The limit of the endpoint
    /// `is_adaptive` if it follows the latency of requests.
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        request: &UpstreamRequest<'_>,
        begun: Monotonic,
        is_adaptive: bool,
    ) -> Self {
        let has_body = request.timing.has_body();
        Self { endpoint, begun, is_adaptive: Cell::new(is_adaptive), has_body, share: None }
    }

    /// Where it is in flight.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The head of its response is there, and is no failure of the server.
    pub(super) fn answered(&self, status: StatusCode, request: &UpstreamRequest<'_>) {
        // A client may send its body as slowly as it likes, which says nothing about the endpoint.
        let latency = request.timing.complete_since(self.begun).map(micros_since);
        self.endpoint.state.succeeded(latency, request.worker);
        // An error can be much faster than the work would have been.
        if self.is_adaptive.take()
            && let Some(latency) = latency.filter(|_| !status.is_server_error())
        {
            self.endpoint.state.adaptive().record(latency);
        }
    }

    /// There is no response, or none that says how long the work takes.
    pub(super) fn failed(&self, error: Option<&UpstreamError>) {
        if self.is_adaptive.take() && error.is_some_and(|error| error.reason() == Reason::Timeout) {
            self.endpoint.state.adaptive().record(micros_since(self.begun));
        }
    }
}

/// Microseconds from `since` until now.
fn micros_since(since: Monotonic) -> u64 {
    clock::monotonic().micros_since(since)
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // A client that does not wait any longer shows how long a response takes at least. One that goes away early shows
        // nothing, and shall not make the server look fast.
        if self.is_adaptive.take() && !self.has_body {
            let waited = micros_since(self.begun);
            if self.endpoint.state.latency().is_some_and(|latency| waited > clock::micros(latency)) {
                self.endpoint.state.adaptive().record(waited);
            }
        }
        self.endpoint.state.end();
        self.endpoint.upstream.has_room();
    }
}
