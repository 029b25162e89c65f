//! A request in flight at an endpoint, until the end of its response. The endpoint's load learns how long each attempt waits
//! for the head of the response.

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

use http::StatusCode;

use super::Upstream;
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::load::ClientBit;
use super::request::UpstreamRequest;
use super::resend::Ending;
use crate::base::clock::{self, Monotonic};
use crate::base::concurrency::ConcurrencyPermit;

/// The request is in flight until this is dropped.
pub(super) struct InFlight {
    pub(super) endpoint: Arc<Endpoint>,
    worker: usize,
    pub(super) client: ClientBit,
    /// Since when the server can answer the current attempt; `None` if the server cannot yet, or the attempt has ended.
    waits_since: Cell<Option<Monotonic>>,
    /// Its part of its client's share of connections.
    pub(super) share: Option<ConcurrencyPermit>,
}

impl InFlight {
    /// The endpoint counts the request already, but the request is not sent yet.
    pub(super) fn new(endpoint: Arc<Endpoint>, request: &UpstreamRequest<'_>) -> Self {
        let worker = request.client.map_or(0, |client| client.worker);
        Self { endpoint, worker, client: request.client_bit(), waits_since: Cell::new(None), share: None }
    }

    /// The request is sent, for the first time or again.
    pub(super) fn begin(&self, request: &UpstreamRequest<'_>) {
        let now = clock::monotonic();
        let first = &request.progress.begun;
        first.set(first.get().or(Some(now)));
        self.ends();
        if request.body.is_none() {
            self.waits(now);
        }
    }

    /// All of its body was sent. The time before that depends on the client, so it is no latency of the server.
    pub(super) fn is_sent(&self) {
        if self.waits_since.get().is_none() {
            self.waits(clock::monotonic());
        }
    }

    /// The head of its response has come. `is_work` says whether that shows how long the work takes.
    fn answered(&self, is_work: bool, now: Monotonic) {
        let since = self.ends().filter(|_| is_work);
        self.endpoint.state.load.answered(self.worker, self.client, since.map(|since| now.micros_since(since)));
    }

    /// There is no response. Only if the server was too slow, this shows how long the work takes.
    pub(super) fn failed(&self, error: &UpstreamError) {
        let since = self.ends();
        if let UpstreamError::Timeout(limit) = error {
            // The server has not even read the whole request.
            let unread = || clock::micros(*limit);
            self.endpoint.state.load.unanswered(self.worker, self.client, since.map_or_else(unread, micros_since));
        }
    }

    fn waits(&self, now: Monotonic) {
        self.waits_since.set(Some(now));
        self.endpoint.state.load.waits(self.worker, now);
    }

    /// The attempt does not wait any more. Returns since when it has waited.
    fn ends(&self) -> Option<Monotonic> {
        let since = self.waits_since.take()?;
        self.endpoint.state.load.waits_no_more(self.worker, since);
        Some(since)
    }
}

fn micros_since(since: Monotonic) -> u64 {
    clock::monotonic().micros_since(since)
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let load = &self.endpoint.state.load;
        // A client that gives up shows how long a response takes at least. A client that goes away early shows nothing, and
        // must not make the server look fast.
        if let Some(waited) = self.ends().map(micros_since)
            && load.latency().is_some_and(|latency| waited > clock::micros(latency))
        {
            load.unanswered(self.worker, self.client, waited);
        }
        self.endpoint.free_place();
    }
}

/// What an attempt says about its endpoint, which is ejected after failures in a row that more clients have than get answers.
impl Upstream {
    pub(super) fn answered(&self, in_flight: &InFlight, status: StatusCode) {
        let mut failures = self.config.ejection.iter().flat_map(|rules| &rules.statuses);
        let is_failure = failures.any(|statuses| statuses.contains(&status.as_u16()));
        // An error can be much faster than the work would have been.
        let now = clock::monotonic();
        in_flight.answered(!is_failure && !status.is_server_error(), now);
        let endpoint = &in_flight.endpoint;
        match status {
            _ if is_failure => self.failed_with(endpoint, in_flight.client, &status),
            // The application fails: another server would fail, too.
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                endpoint.state.answered_in_vain();
            }
            _ => endpoint.state.succeeded(in_flight.worker, in_flight.client, now),
        }
    }

    /// Records that a request got no response, if the endpoint caused that.
    pub(super) fn failed(&self, in_flight: &InFlight, failed: &Failed) {
        let error = &failed.error;
        in_flight.failed(error);
        self.failed_at(&in_flight.endpoint, in_flight.client, error);
    }

    pub(super) fn failed_at(&self, endpoint: &Endpoint, client: ClientBit, error: &UpstreamError) {
        if error.ending() != Ending::Final {
            self.failed_with(endpoint, client, error);
        }
    }

    #[cold]
    fn failed_with(&self, endpoint: &Endpoint, client: ClientBit, why: &dyn Display) {
        let (failures, now) = (endpoint.state.failed(client), clock::monotonic());
        let Some(rules) = &self.config.ejection else { return };
        if failures < rules.failures
            || !endpoint.state.fails_for_most(now)
            || endpoint.state.is_doubted(self.balancer.served_lately(now))
            || !self.balancer.has_other(endpoint)
        {
            return;
        }
        if let Some(time) = endpoint.state.eject(rules, now) {
            self.balancer.refresh();
            tracing::warn!(
                upstream = self.config.name,
                server = %endpoint,
                failures,
                r#for = ?time,
                last = %why,
                "a server is ejected: it gets no requests for a time"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::upstream::endpoint::{Destination, DestinationAddress, Endpoints};
    use crate::upstream::load::UpstreamLoad;
    use crate::upstream::request::{BodyRules, ForwardedInfo, Progress, RequestHead};

    const SECOND: u64 = 1_000_000;

    fn endpoint() -> Arc<Endpoint> {
        let address = DestinationAddress::Name("a".to_owned(), 1);
        let target = Destination { address, authority: HeaderValue::from_static("a"), tls: None, http2: false };
        Endpoints::new(1, 100).get("a", target, false)
    }

    fn with_request(has_body: bool, test: impl FnOnce(&UpstreamRequest<'_>)) {
        let (headers, counted, progress) = (HeaderMap::new(), Arc::default(), Progress::default());
        let head = RequestHead {
            method: &Method::GET,
            target: "/",
            headers: &headers,
            preserve_host: false,
            forwarded: ForwardedInfo::OWN,
            changes: None,
            asks_for_websocket: false,
        };
        let body = has_body.then_some(BodyRules { counted: &counted, timeout: None, max_size: 0 });
        let (timeout, client, response_changes) = (None, None, None);
        test(&UpstreamRequest { head, body, timeout, client, response_changes, progress: &progress });
    }

    fn waiting(endpoint: &Endpoint) -> f64 {
        let load = || UpstreamLoad::new([(1, &endpoint.state.load)].into_iter(), 0);
        load().window(&load(), 1.0, clock::monotonic()).waiting.0
    }

    #[test]
    fn each_attempt_waits_once_its_body_was_sent() {
        with_request(true, |request| {
            let endpoint = endpoint();
            let (work, waiting) = (|| endpoint.state.load.work(), || waiting(&endpoint));
            let in_flight = InFlight::new(endpoint.clone(), request);
            in_flight.begin(request);
            let begun = request.progress.begun.get();
            assert!(begun.is_some() && waiting() < 1.0);
            in_flight.is_sent();
            in_flight.is_sent();
            assert!((waiting() - 1.0).abs() < 0.1);
            in_flight.begin(request);
            assert!(waiting() < 1.0, "its body is sent again");
            in_flight.is_sent();
            in_flight.answered(true, clock::monotonic());
            assert!(waiting() < 1.0);
            assert_eq!(work().responses, 1);
            in_flight.begin(request);
            in_flight.is_sent();
            in_flight.answered(false, clock::monotonic());
            assert!(work().responses == 1 && waiting() < 1.0, "an error can be faster than the work");
            in_flight.begin(request);
            in_flight.failed(&UpstreamError::Timeout(Duration::from_secs(9)));
            assert!(work().responses == 2 && work().micros >= 9 * SECOND, "it has not read the body");
            in_flight.begin(request);
            in_flight.is_sent();
            in_flight.failed(&UpstreamError::NoEndpoint);
            assert!(work().responses == 2 && waiting() < 1.0, "a failure tells nothing");
            assert_eq!(request.progress.begun.get(), begun, "the moment of the first attempt");
        });
        with_request(false, |request| {
            let endpoint = endpoint();
            let in_flight = InFlight::new(endpoint.clone(), request);
            in_flight.begin(request);
            assert!((waiting(&endpoint) - 1.0).abs() < 0.1, "there is no body");
        });
    }

    #[test]
    fn clients_that_go_away_early_do_not_make_a_server_look_fast() {
        with_request(false, |request| {
            let endpoint = endpoint();
            let load = &endpoint.state.load;
            let leave_after = |micros| {
                let in_flight = InFlight::new(endpoint.clone(), request);
                in_flight.waits(Monotonic::from_micros(clock::monotonic().micros() - micros));
            };
            leave_after(9 * SECOND);
            assert_eq!(load.work().responses, 0, "nothing is known of the server yet");
            load.answered(0, ClientBit::OWN, Some(SECOND));
            leave_after(0);
            assert_eq!(load.work().responses, 1);
            leave_after(2 * SECOND);
            assert!(load.work().responses == 2 && load.work().micros >= 3 * SECOND);
            assert!(waiting(&endpoint) < 1.0);
        });
    }
}
