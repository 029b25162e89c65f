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
    /// Whether the limit of the endpoint follows the latency of requests.
    is_adaptive: bool,
    /// Since when it is sent, if that limit has not learned its latency yet.
    sent: Cell<Option<Monotonic>>,
    has_body: bool,
    /// What it takes of its client's share of connections.
    pub(super) share: Option<ConcurrencyPermit>,
}

impl InFlight {
    /// A request that the state of the endpoint counts already, and that is not sent yet. The limit of the endpoint
    /// `is_adaptive` if it follows the latency of requests.
    pub(super) fn new(endpoint: Arc<Endpoint>, request: &UpstreamRequest<'_>, is_adaptive: bool) -> Self {
        let has_body = request.body.is_some();
        Self { endpoint, is_adaptive, sent: Cell::new(None), has_body, share: None }
    }

    /// The request is sent, for the first time or again.
    pub(super) fn begin(&self, request: &UpstreamRequest<'_>) {
        let now = clock::monotonic();
        request.progress.begin(now, self.has_body);
        self.sent.set(Some(now).filter(|_| self.is_adaptive));
    }

    /// Where it is in flight.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The head of its response is there, and is no failure of the server.
    pub(super) fn answered(&self, status: StatusCode, request: &UpstreamRequest<'_>) {
        // A client may send its body as slowly as it likes, which says nothing about the endpoint.
        let latency = request.progress.complete().map(micros_since);
        self.endpoint.state.succeeded(latency, request.client.map_or(0, |client| client.worker));
        // An error can be much faster than the work would have been.
        if self.sent.take().is_some()
            && let Some(latency) = latency.filter(|_| !status.is_server_error())
        {
            self.endpoint.state.adaptive().record(latency);
        }
    }

    /// There is no response, or none that says how long the work takes.
    pub(super) fn failed(&self, error: Option<&UpstreamError>, request: &UpstreamRequest<'_>) {
        if let Some(sent) = self.sent.take().filter(|_| error.is_some_and(|error| error.reason() == Reason::Timeout)) {
            // The time that the client took for its body says nothing, unless the server has not read all of it.
            self.endpoint.state.adaptive().record(micros_since(request.progress.complete().unwrap_or(sent)));
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
        if let Some(waited) = self.sent.take().filter(|_| !self.has_body).map(micros_since)
            && self.endpoint.state.latency().is_some_and(|latency| waited > clock::micros(latency))
        {
            self.endpoint.state.adaptive().record(waited);
        }
        self.endpoint.state.end();
        self.endpoint.upstream.has_room();
    }
}
