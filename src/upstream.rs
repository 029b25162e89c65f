//! Forwards a request to an upstream and returns the response.
//!
//! An upstream is a balancer over endpoints. A connection to an endpoint comes from the worker's pool or from the connector, and
//! a protocol carries the request over it. Only this file sends a request to one endpoint after the other, as `resend.rs`
//! decides.

pub mod overload;
mod health;
mod load;
mod connection_limits;
mod endpoint_state;
mod resend;
mod endpoint;
mod in_flight;
mod balancer;
mod response_rules;
mod error;
mod stall;
mod stream;
mod connection;
mod bound;
mod connector;
mod header_policy;
mod request;
mod request_headers;
mod exchange;
mod http2;
mod pool;
mod http1;
mod body;
mod servers;
mod delivery;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

pub use body::UpstreamBody;
pub use bound::BoundConnections;
pub use connection::UpstreamTunnel;
pub use connection_limits::{Keep, Keeps};
pub use delivery::Connections;
pub use endpoint::{DestinationAddress, Endpoint, Endpoints, RetryCounts};
pub use endpoint_state::EndpointStatus;
pub use error::{BodyError, UpstreamError};
pub use health::Availability;
pub use load::UpstreamLoad;
pub use pool::ConnectionPools;
pub use request::{
    BodyRules, ForwardedHeader, ForwardedInfo, Origin, PassInterim, Progress, RequestClient, RequestHead,
    UpstreamRequest,
};
pub use watch::UpstreamWatch;

use crate::base::clock;
use crate::base::concurrency::ConcurrencyPermit;
use crate::base::deadline::Deadline;
use crate::config;
use crate::net::Names;
use crate::server::ClientBody;
use balancer::{Balancer, Criteria, NotFound};
use connector::Connector;
use delivery::{Attempts, Delivery, cold};
use endpoint::UpstreamState;
use error::Failed;
use in_flight::InFlight;
use resend::Resend;
use servers::Servers;

#[derive(Debug)]
pub struct Upstream {
    pub config: config::Upstream,
    servers: Servers,
    balancer: Balancer,
    connector: Connector,
    keep: Keep,
    state: Arc<UpstreamState>,
    /// Held by the waiting request that is sent next, of those with this configuration. The others queue for it in their
    /// order of arrival.
    turn: Mutex<()>,
}

/// Is told of each failure after which a request is sent again.
pub type OnFailedAttempt<'a> = dyn Fn(&Endpoint, &UpstreamError) + 'a;

pub struct Unanswered {
    /// The last endpoint that was tried; `None` if there was none.
    pub endpoint: Option<Arc<Endpoint>>,
    pub error: UpstreamError,
}

/// A response after which another server was asked. If that server does not answer, the client gets this response.
struct GivenUp {
    status: StatusCode,
    headers: HeaderMap,
    /// Dropped first, so that a stream which is reset later keeps the place of the request.
    body: UpstreamBody,
    in_flight: InFlight,
}

impl Upstream {
    /// `endpoints` and `names` are those of all upstreams, and `echo` is the address of the built-in server.
    pub fn new(
        config: &config::Upstream,
        endpoints: &Arc<Endpoints>,
        names: &Arc<Names>,
        echo: Option<SocketAddr>,
    ) -> Self {
        let servers = Servers::new(config, endpoints.clone(), names.clone(), echo);
        Self {
            config: config.clone(),
            balancer: Balancer::new(config.balance.clone(), config.overload, servers.endpoints()),
            servers,
            connector: Connector { timeout: config.connect_timeout, names: names.clone() },
            keep: Keep { idle: config.max_idle, age: config.max_age },
            state: endpoints.state(&config.name),
            turn: Mutex::new(()),
        }
    }

    /// The ids of its endpoints, and how long their connections are kept.
    pub fn keeps(&self) -> impl Iterator<Item = (usize, Keep)> {
        self.balancer.endpoints().into_iter().map(|weighted| (weighted.endpoint.id, self.keep))
    }

    pub fn status(&self) -> Vec<(Arc<Endpoint>, u32, EndpointStatus)> {
        let status = |weighted: balancer::Weighted| {
            let status = weighted.endpoint.state.status();
            (weighted.endpoint, weighted.weight, status)
        };
        self.balancer.endpoints().into_iter().map(status).collect()
    }

    pub fn retries(&self) -> RetryCounts {
        RetryCounts { sent: self.state.retries.get(), refused: self.state.refused_retries.get() }
    }

    pub fn most_in_flight(&self, endpoint: &Endpoint) -> Option<usize> {
        self.balancer.most_in_flight(endpoint)
    }

    pub fn load(&self) -> UpstreamLoad {
        let endpoints = self.balancer.endpoints();
        let loads = endpoints.iter().map(|weighted| (weighted.endpoint.id, &weighted.endpoint.state.load));
        UpstreamLoad::new(loads, self.state.full.get())
    }

    pub fn waiting(&self) -> usize {
        self.state.waiting()
    }

    /// Like [`Self::send`], but the whole call, to the end of its response, has the time `limit`, which the client sets. The
    /// error is [`Unanswered`] if no head comes, or the time is over.
    pub async fn send_within(
        &self,
        limit: Duration,
        connections: Connections<'_>,
        request: &UpstreamRequest<'_>,
        body: Option<ClientBody>,
        headers: &mut HeaderMap,
        on_failure: &OnFailedAttempt<'_>,
    ) -> Result<(StatusCode, UpstreamBody), Unanswered> {
        let end = Instant::now() + limit;
        let sent = timeout_at(end, cold(self.send(connections, request, body, headers, on_failure))).await;
        let over = || Err(Unanswered { endpoint: None, error: UpstreamError::Deadline(limit) });
        let (status, mut body) = sent.unwrap_or_else(|_| over())?;
        body.deadline = Some(Deadline::at(end));
        Ok((status, body))
    }

    /// Sends the request to one endpoint after the other, as long as that is allowed and necessary. Returns the response as
    /// soon as its head has come. Its headers go to `headers`: they are large, and each function would move them to its caller.
    /// Failures after which the request is sent again go to `on_failure`. The error is [`Unanswered`] if no head comes.
    pub async fn send(
        &self,
        connections: Connections<'_>,
        request: &UpstreamRequest<'_>,
        body: Option<ClientBody>,
        headers: &mut HeaderMap,
        on_failure: &OnFailedAttempt<'_>,
    ) -> Result<(StatusCode, UpstreamBody), Unanswered> {
        self.state.requests.one();
        let mut attempts = Attempts::new(self, request, body);
        let delivery = Delivery { upstream: self, connections, request };
        let key = request.client.and_then(|client| client.balanced_by);
        let criteria = Criteria { key, tried: &[] };
        let mut in_flight = match self.choose(criteria) {
            Ok(endpoint) => InFlight::new(endpoint, request),
            Err(NotFound::NoneLeft) => return Err(Unanswered { endpoint: None, error: UpstreamError::NoEndpoint }),
            Err(NotFound::Full) => cold(self.wait(criteria, request)).await?,
        };
        let share = share(&in_flight.endpoint, request)?;
        let mut given_up: Option<Box<GivenUp>> = None;
        loop {
            in_flight.begin(request);
            if let Some(spans) = request.spans() {
                spans.begin_attempt(clock::now());
            }
            let sent = delivery.attempt(&mut in_flight, &mut attempts, headers).await;
            if let Some(spans) = request.spans() {
                let status = sent.as_ref().map(|(status, _)| *status);
                spans.end_attempt(status.map_err(|failed| failed.error.reason().name()), clock::now());
            }
            let endpoint = &in_flight.endpoint;
            let ending = sent.as_ref().map_or_else(|failed| failed.ending, |(status, _)| attempts.answered(*status));
            let again = attempts.again(ending, endpoint.id);
            if again == Some(Resend::SameServer) {
                continue;
            }
            match &sent {
                Ok((status, _)) => self.answered(&in_flight, *status),
                Err(failed) => self.failed(&in_flight, failed),
            }
            // The request has had its turn already, so it does not wait behind others again.
            let criteria = Criteria { key, tried: &attempts.tried };
            match again.map(|_| self.balancer.choose(criteria)) {
                Some(Ok(next)) => {
                    let next = InFlight::new(next, request);
                    match sent {
                        Ok((status, body)) => {
                            let headers = std::mem::take(headers);
                            given_up = Some(Box::new(GivenUp { status, headers, body, in_flight }));
                        }
                        Err(Failed { error, .. }) => on_failure(endpoint, &error),
                    }
                    headers.clear();
                    in_flight = next;
                }
                Some(Err(_)) | None => {
                    let (status, mut body) = match sent {
                        Ok(answered) => answered,
                        Err(Failed { error, .. }) => {
                            let Some(response) = given_up else {
                                return Err(Unanswered { endpoint: Some(endpoint.clone()), error });
                            };
                            on_failure(endpoint, &error);
                            (in_flight, *headers) = (response.in_flight, response.headers);
                            (response.status, response.body)
                        }
                    };
                    in_flight.share = share;
                    body.in_flight = Some(in_flight);
                    return Ok((status, body));
                }
            }
        }
    }

    /// For a request that was not sent yet.
    fn choose(&self, criteria: Criteria<'_>) -> Result<Arc<Endpoint>, NotFound> {
        // Waiting requests come first.
        if self.config.overload.max_waiting > 0 && self.state.waiting() > 0 {
            return Err(NotFound::Full);
        }
        self.balancer.choose(criteria)
    }

    /// Waits until an endpoint has room for the request, as long as the configuration allows. Requests are served in the order
    /// in which they came.
    async fn wait(&self, criteria: Criteria<'_>, request: &UpstreamRequest<'_>) -> Result<InFlight, Unanswered> {
        let overloaded = || {
            self.state.full.one();
            Unanswered { endpoint: None, error: UpstreamError::Overloaded }
        };
        let waiting = self.state.wait(self.config.overload.max_waiting).ok_or_else(overloaded)?;
        let first_come = async {
            let _turn = self.turn.lock().await;
            loop {
                let room = waiting.room();
                // Nothing else refreshes a configuration that is no longer in force.
                self.balancer.refresh();
                match self.balancer.choose(criteria) {
                    Ok(endpoint) => return Ok(InFlight::new(endpoint, request)),
                    Err(NotFound::NoneLeft) => {
                        return Err(Unanswered { endpoint: None, error: UpstreamError::NoEndpoint });
                    }
                    Err(NotFound::Full) => room.await,
                }
            }
        };
        timeout(self.config.overload.max_wait, first_come).await.map_err(|_| overloaded())?
    }
}

/// The request's part of its client's share of connections, if the client may send many requests at a time.
fn share(endpoint: &Arc<Endpoint>, request: &UpstreamRequest<'_>) -> Result<Option<ConcurrencyPermit>, Unanswered> {
    // Requests over HTTP/2 share connections, so there the connections are counted instead.
    let client = request.many_from().filter(|_| !endpoint.target.http2);
    let refused = |error| Unanswered { endpoint: Some(endpoint.clone()), error };
    client.map(|client| endpoint.places.share(client).map_err(refused)).transpose()
}
