//! Forwards a request to an upstream and returns the response.
//!
//! An upstream is a balancer over endpoints. A connection to an endpoint comes from the pool of the worker or from the
//! connector, and a protocol carries the request over it. Only this file decides which endpoint gets the request, and
//! whether the request is sent a second time.

mod health;
mod adaptive_limit;
mod places;
mod endpoint_state;
mod retry_budget;
mod upstream_state;
mod endpoint;
mod in_flight;
mod balancer;
mod response_rules;
mod error;
mod call_deadline;
mod stall;
mod stream;
mod connection;
mod resolver;
mod names;
mod preamble;
mod connector;
mod keep;
mod header_policy;
mod request;
mod forwarded;
mod request_headers;
mod request_trailers;
mod outgoing_body;
mod exchange;
mod http2;
mod pool;
mod http1;
mod body;
mod attempts;
mod servers;
mod outcomes;
mod delivery;
mod happy_eyeballs;
mod health_check;
mod watch;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::sync::Mutex;
use tokio::time::{timeout, timeout_at};

pub use body::UpstreamBody;
pub use connection::UpstreamTunnel;
pub use endpoint::{Endpoint, Endpoints};
pub use endpoint_state::EndpointStatus;
pub use error::{BodyError, UpstreamError};
pub use health::Availability;
pub use keep::{Keep, Keeps};
pub use names::Names;
pub use pool::ConnectionPools;
pub use request::{ForwardedHeader, ForwardedInfo, Origin, PassInterim, Progress, Timing, UpstreamRequest};
pub use upstream_state::RetryCounts;
pub use watch::UpstreamWatch;

use crate::base::clock;
use crate::config;
use crate::request::decide::ConcurrencyPermit;
use crate::server::ClientBody;
use attempts::Attempts;
use balancer::{Balancer, Choice, Wish};
use call_deadline::CallDeadline;
use connector::Connector;
use error::{Failed, SendAgain};
use in_flight::InFlight;
use servers::Servers;
use upstream_state::UpstreamState;

/// Endpoints that share the requests of a route.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    servers: Servers,
    balancer: Balancer,
    connector: Connector,
    timeout: Duration,
    /// `None` if it is not limited.
    read_timeout: Option<Duration>,
    tunnel_idle_timeout: Option<Duration>,
    keep: Keep,
    retry: config::Retry,
    overload: config::Overload,
    health: Option<config::HealthCheck>,
    ejection: config::Ejection,
    /// How its servers are told who the client is; `None` if they are not.
    proxy_protocol: Option<config::ProxyProtocol>,
    /// How often the names of its servers are looked up.
    resolve_every: Duration,
    state: Arc<UpstreamState>,
    /// Held by the request that is sent next of those that wait with this configuration. The others wait for it in the order in
    /// which they came.
    turn: Mutex<()>,
}

/// Is told of each failure after which a request is sent again.
pub type OnFailedAttempt<'a> = dyn Fn(&Endpoint, &UpstreamError) + 'a;

/// A request that got no response.
#[derive(Debug)]
pub struct Unanswered {
    /// The endpoint to which it was sent last; `None` if there was none.
    pub endpoint: Option<Arc<Endpoint>>,
    /// Why there is no response.
    pub error: UpstreamError,
}

impl Upstream {
    /// The upstream as configured. `endpoints` are those of all upstreams, `names` the names of all servers, and `echo` is
    /// where the built-in server listens.
    pub fn new(
        config: &config::Upstream,
        endpoints: &Arc<Endpoints>,
        names: &Arc<Names>,
        echo: Option<SocketAddr>,
    ) -> Self {
        let servers = Servers::new(config, endpoints.clone(), names.clone(), echo);
        Self {
            name: config.name.clone(),
            balancer: Balancer::new(&config.balance, config.overload.into(), servers.endpoints()),
            servers,
            connector: Connector::new(config.connect_timeout, names.clone()),
            timeout: config.timeout,
            read_timeout: config.read_timeout,
            tunnel_idle_timeout: config.tunnel_idle_timeout,
            keep: Keep { idle: config.max_idle, age: config.max_age },
            retry: config.retry.clone(),
            overload: config.overload,
            health: config.health.clone(),
            ejection: config.ejection,
            proxy_protocol: config.proxy_protocol,
            resolve_every: config.resolve_every,
            state: endpoints.state(&config.name),
            turn: Mutex::new(()),
        }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The longest time for which it may send nothing where it is waited for; `None` is no limit.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.read_timeout
    }

    /// The longest time for which no byte may pass through a tunnel; `None` is no limit.
    pub fn tunnel_idle_timeout(&self) -> Option<Duration> {
        self.tunnel_idle_timeout
    }

    /// The ids of its endpoints, and how long their connections are kept.
    pub fn keeps(&self) -> impl Iterator<Item = (usize, Keep)> {
        self.balancer.endpoints().into_iter().map(|weighted| (weighted.endpoint.id, self.keep))
    }

    /// Its endpoints with their weights, and what is known of each.
    pub fn status(&self) -> Vec<(Arc<Endpoint>, u32, EndpointStatus)> {
        let status = |weighted: balancer::Weighted| {
            let status = weighted.endpoint.state.status();
            (weighted.endpoint, weighted.weight, status)
        };
        self.balancer.endpoints().into_iter().map(status).collect()
    }

    /// How often its requests were sent again.
    pub fn retries(&self) -> RetryCounts {
        self.state.retries()
    }

    /// How many requests this endpoint may have in flight; `None` is no limit.
    pub fn most_in_flight(&self, endpoint: &Endpoint) -> Option<usize> {
        self.balancer.most_in_flight(endpoint)
    }

    /// How many requests wait for an endpoint.
    pub fn waiting(&self) -> usize {
        self.state.waiting()
    }

    /// What [`Self::send`] does, within the time that the client gives the whole call, to the end of its response.
    ///
    /// # Errors
    /// [`Unanswered`] if no head comes, or the time is over.
    pub async fn send_within(
        &self,
        limit: Duration,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        body: Option<ClientBody>,
        headers: &mut HeaderMap,
        on_failure: &OnFailedAttempt<'_>,
    ) -> Result<(StatusCode, UpstreamBody), Unanswered> {
        let deadline = CallDeadline::new(limit);
        // This future is large, and other requests need not have room for it.
        let sent = timeout_at(deadline.at(), Box::pin(self.send(pools, request, body, headers, on_failure))).await;
        let over = || Err(Unanswered { endpoint: None, error: UpstreamError::Deadline(limit) });
        let (status, body) = sent.unwrap_or_else(|_| over())?;
        Ok((status, body.until(deadline)))
    }

    /// Sends the request to one endpoint after the other, as long as that is allowed and necessary. Returns the response as
    /// soon as its head is there. Its headers go to `headers`: they are large, and would be moved from each function to the
    /// one that calls it. Failures after which the request is sent again go to `on_failure`.
    ///
    /// # Errors
    /// [`Unanswered`] if no head comes.
    pub async fn send(
        &self,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        body: Option<ClientBody>,
        headers: &mut HeaderMap,
        on_failure: &OnFailedAttempt<'_>,
    ) -> Result<(StatusCode, UpstreamBody), Unanswered> {
        self.state.begin();
        let mut attempts = Attempts::new(&self.retry, request, body);
        let wish = Wish { key: request.balanced_by, tried: &[] };
        let mut in_flight = match self.begin(wish) {
            Choice::Endpoint(endpoint) => self.in_flight(endpoint, request),
            Choice::None => return Err(Unanswered { endpoint: None, error: UpstreamError::NoEndpoint }),
            Choice::Full => Box::pin(self.wait(wish, request)).await?,
        };
        let share = share(in_flight.endpoint(), request)?;
        loop {
            if let Some(spans) = request.spans() {
                spans.begin_attempt(clock::now());
            }
            if in_flight.endpoint().places.are_taken() {
                pools.make_room(in_flight.endpoint().id, self.announced(request)).await;
            }
            let is_doubtful = self.needs_race(in_flight.endpoint(), pools, request);
            let raced = if is_doubtful { Box::pin(self.race(pools, &mut in_flight, request)).await } else { Ok(()) };
            let endpoint = in_flight.endpoint();
            if let Some(spans) = request.spans() {
                spans.attempt_at(endpoint.server());
            }
            let sent = match raced {
                Ok(()) => self.send_to(endpoint, pools, request, &mut attempts.body, headers).await,
                Err(error) => Err(Failed::from(error)),
            };
            if let Some(spans) = request.spans() {
                let status = sent.as_ref().map(|(status, _)| *status);
                spans.end_attempt(status.map_err(|failed| failed.error.reason().name()), clock::now());
            }
            let next = match sent {
                Ok((status, mut body)) => {
                    self.answered(&in_flight, status, request);
                    let again = attempts.after_status(status);
                    let Some(next) = self.next(&mut attempts, again, request, endpoint) else {
                        in_flight.share = share;
                        body.count(in_flight);
                        return Ok((status, body));
                    };
                    next
                }
                Err(Failed { error, again, .. }) => {
                    self.failed(&in_flight, &error);
                    let Some(next) = self.next(&mut attempts, again, request, endpoint) else {
                        return Err(Unanswered { endpoint: Some(endpoint.clone()), error });
                    };
                    on_failure(endpoint, &error);
                    next
                }
            };
            headers.clear();
            in_flight = next;
        }
    }

    /// The request at another endpoint, if it is to be sent again.
    fn next(
        &self,
        attempts: &mut Attempts<'_>,
        again: SendAgain,
        request: &UpstreamRequest<'_>,
        endpoint: &Endpoint,
    ) -> Option<InFlight> {
        if again == SendAgain::No {
            return None;
        }
        attempts.tried.push(endpoint.id);
        if attempts.tried.len() >= self.balancer.count() || !attempts.may_send_again(again, request) {
            return None;
        }
        if again == SendAgain::Idempotent && !self.state.take_retry(self.retry.budget, clock::monotonic()) {
            return None;
        }
        // It has had its turn already, so it does not wait behind others again.
        match self.balancer.choose(Wish { key: request.balanced_by, tried: &attempts.tried }) {
            Choice::Endpoint(next) => {
                attempts.begin_again(again);
                Some(self.in_flight(next, request))
            }
            Choice::Full | Choice::None => None,
        }
    }

    /// The client that is announced to servers, so that the connection can be used for no other.
    fn announced(&self, request: &UpstreamRequest<'_>) -> Option<SocketAddr> {
        self.proxy_protocol.and(request.client)
    }

    /// Chooses an endpoint for a request that was not sent yet.
    fn begin(&self, wish: Wish<'_>) -> Choice {
        // Those that wait are first.
        if self.overload.max_waiting > 0 && self.state.waiting() > 0 {
            return Choice::Full;
        }
        self.balancer.choose(wish)
    }

    /// The request, which is sent to this endpoint now.
    fn in_flight(&self, endpoint: Arc<Endpoint>, request: &UpstreamRequest<'_>) -> InFlight {
        let now = clock::monotonic();
        request.timing.begin(now);
        InFlight::new(endpoint, request, now, self.overload.adaptive.is_some())
    }

    /// Waits until an endpoint has room for the request, as long as the configuration allows. Those that have waited longer are
    /// first.
    async fn wait(&self, wish: Wish<'_>, request: &UpstreamRequest<'_>) -> Result<InFlight, Unanswered> {
        let overloaded = || Unanswered { endpoint: None, error: UpstreamError::Overloaded };
        let waiting = self.state.wait(self.overload.max_waiting).ok_or_else(overloaded)?;
        let first_come = async {
            let _turn = self.turn.lock().await;
            loop {
                let room = waiting.room();
                // Nobody else does this for a configuration that is not in force any more.
                self.balancer.refresh();
                match self.balancer.choose(wish) {
                    Choice::Endpoint(endpoint) => return Ok(self.in_flight(endpoint, request)),
                    Choice::None => return Err(Unanswered { endpoint: None, error: UpstreamError::NoEndpoint }),
                    Choice::Full => room.await,
                }
            }
        };
        timeout(self.overload.max_wait, first_come).await.map_err(|_| overloaded())?
    }
}

/// What the request takes of its client's share of connections, if the client may send many requests at a time.
fn share(endpoint: &Arc<Endpoint>, request: &UpstreamRequest<'_>) -> Result<Option<ConcurrencyPermit>, Unanswered> {
    // Requests over HTTP/2 share connections, so those are counted.
    let client = request.many_from().filter(|_| !endpoint.target.http2);
    let refused = |error| Unanswered { endpoint: Some(endpoint.clone()), error };
    client.map(|client| endpoint.places.share(client).map_err(refused)).transpose()
}
