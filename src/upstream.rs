//! Sending a request on to an upstream and bringing its answer back.
//!
//! An upstream is a balancer over endpoints. A connection to an endpoint comes from the pool of the worker or from the
//! connector, and a protocol carries the request over it. Which endpoint is asked, and whether the request is sent once
//! more, is decided here alone.

mod endpoint;
mod balancer;
mod error;
mod stall;
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

pub use endpoint::{Endpoint, Endpoints};
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
    /// `None` is for ever.
    read_timeout: Option<Duration>,
    keep: Keep,
}

/// A request that got no response.
#[derive(Debug)]
pub struct Unanswered<'a> {
    /// The endpoint that was asked; `None` if the upstream has none.
    pub endpoint: Option<&'a Endpoint>,
    /// Why.
    pub error: UpstreamError,
}

impl Upstream {
    /// The upstream as configured, with its endpoints and their weights. Their names are looked up among all `lookups`.
    pub fn new(config: &config::Upstream, endpoints: Vec<(Endpoint, u32)>, lookups: Arc<Lookups>) -> Self {
        Self {
            balancer: Balancer::new(endpoints),
            connector: Connector::new(config.connect_timeout, lookups),
            timeout: config.timeout,
            read_timeout: config.read_timeout,
            keep: Keep { idle: config.max_idle, age: config.max_age },
        }
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

    /// Sends the request to this endpoint. If a connection that was used before ends without a byte of an answer, and the
    /// request can be sent twice without harm, it is sent once more, on a new connection.
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
        // RFC 9110, section 9.2.2, says which methods may be sent twice. A body would be gone.
        let is_replayable = request.method.is_idempotent() && body.is_none();
        if let Some(connection) = pools.take(endpoint.id, self.keep) {
            match exchange.send(connection, body.take()).await {
                // The server may have closed the connection before the request came. If it is the request that makes the
                // server close, only one more connection is lost.
                Err(UpstreamError::Closed(_)) if is_replayable => {}
                sent => return sent,
            }
        }
        let connection = self.connector.connect(endpoint, pools.now()).await?;
        exchange.send(connection, body).await
    }
}
