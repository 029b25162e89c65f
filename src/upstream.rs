//! Forwards a request to an upstream and returns the response.
//!
//! An upstream is a balancer over endpoints. A connection to an endpoint comes from the pool of the worker or from the
//! connector, and a protocol carries the request over it. Only this file decides which endpoint gets the request, and
//! whether the request is sent a second time.

mod endpoint;
mod balancer;
mod error;
mod stall;
mod stream;
mod connection;
mod resolver;
mod connector;
mod pool;
mod header_policy;
mod request;
mod request_headers;
mod http1;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;

pub use connection::UpstreamTunnel;
pub use endpoint::{Endpoint, EndpointTls, Endpoints};
pub use error::UpstreamError;
pub use http1::{BodyError, UpstreamBody};
pub use pool::{ConnectionPools, Keep, Keeps};
pub use request::{ForwardedInfo, UpstreamRequest};
pub use resolver::Lookups;

use crate::config;
use balancer::Balancer;
use connector::Connector;
use http1::Exchange;

/// Endpoints that share the requests of a route.
#[derive(Debug)]
pub struct Upstream {
    balancer: Balancer,
    connector: Connector,
    timeout: Duration,
    /// `None` if it is not limited.
    read_timeout: Option<Duration>,
    tunnel_idle_timeout: Option<Duration>,
    keep: Keep,
}

/// A request that got no response.
#[derive(Debug)]
pub struct Unanswered<'a> {
    /// The endpoint to which it was sent; `None` if the upstream has none.
    pub endpoint: Option<&'a Endpoint>,
    /// Why there is no response.
    pub error: UpstreamError,
}

impl Upstream {
    /// The upstream as configured, with its endpoints and their weights. `lookups` are those of the whole process.
    pub fn new(config: &config::Upstream, endpoints: Vec<(Endpoint, u32)>, lookups: Arc<Lookups>) -> Self {
        Self {
            balancer: Balancer::new(endpoints),
            connector: Connector::new(config.connect_timeout, lookups),
            timeout: config.timeout,
            read_timeout: config.read_timeout,
            tunnel_idle_timeout: config.tunnel_idle_timeout,
            keep: Keep { idle: config.max_idle, age: config.max_age },
        }
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
        self.balancer.endpoints().iter().map(|endpoint| (endpoint.id, self.keep))
    }

    /// Sends the request and returns the response as soon as its head is there.
    ///
    /// # Errors
    /// [`Unanswered`] if no head comes.
    pub async fn send(
        &self,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        body: Option<Incoming>,
    ) -> Result<Response<UpstreamBody>, Unanswered<'_>> {
        let Some(endpoint) = self.balancer.choose() else {
            return Err(Unanswered { endpoint: None, error: UpstreamError::NoEndpoint });
        };
        let unanswered = |error| Unanswered { endpoint: Some(endpoint), error };
        self.send_to(endpoint, pools, request, body).await.map_err(unanswered)
    }

    /// Sends the request to this endpoint. If a connection from the pool ends before a byte of the response has come, and
    /// the request may be sent twice, it is sent again on a new connection.
    async fn send_to(
        &self,
        endpoint: &Endpoint,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        mut body: Option<Incoming>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let exchange = Exchange {
            request,
            named: &request_headers::named_by_connection(request.headers)?,
            authority: (!request.preserve_host).then_some(&endpoint.authority),
            timeout: self.timeout,
            read_timeout: self.read_timeout,
            pool: (pools, endpoint.id),
        };
        // RFC 9110, section 9.2.2, says which methods may be sent twice. A body can be sent only once.
        let is_replayable = request.method.is_idempotent() && body.is_none();
        if let Some(connection) = pools.take(endpoint.id, self.keep) {
            match exchange.send(connection, body.take()).await {
                // The server may have closed the connection before the request came. If the server closes it because of
                // the request, the second attempt costs only one more connection.
                Err(UpstreamError::Closed(_)) if is_replayable => {}
                sent => return sent,
            }
        }
        let connection = self.connector.connect(endpoint, pools.now()).await?;
        exchange.send(connection, body).await
    }
}
