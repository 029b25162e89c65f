//! Forwards a request to an upstream and returns the response.
//!
//! An upstream is a balancer over endpoints. A connection to an endpoint comes from the pool of the worker or from the
//! connector, and a protocol carries the request over it. Only this file decides which endpoint gets the request, and
//! whether the request is sent a second time.

mod endpoint;
mod balancer;
mod response_rules;
mod error;
mod call_deadline;
mod stall;
mod stream;
mod connection;
mod resolver;
mod connector;
mod keep;
mod header_policy;
mod request;
mod request_headers;
mod request_trailers;
mod exchange;
mod http2;
mod pool;
mod http1;
mod body;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::timeout_at;

pub use body::UpstreamBody;
pub use connection::UpstreamTunnel;
pub use endpoint::{Endpoint, EndpointTls, Endpoints};
pub use error::{BodyError, UpstreamError};
pub use keep::{Keep, Keeps};
pub use pool::ConnectionPools;
pub use request::{ForwardedInfo, PassInterim, UpstreamRequest};
pub use resolver::Lookups;

use crate::config;
use crate::server::ClientBody;
use balancer::Balancer;
use call_deadline::CallDeadline;
use connection::UpstreamConnection;
use connector::Connector;
use exchange::Exchange;
use http2::{Failed, SendAgain, Spoken};
use stream::Offered;

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

    /// Sends the request and returns the response as soon as its head is there. The response's headers go to `headers`: they
    /// are large, and would be moved from each function to the one that calls it.
    ///
    /// # Errors
    /// [`Unanswered`] if no head comes.
    pub async fn send(
        &self,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        body: Option<ClientBody>,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), Unanswered<'_>> {
        let Some(endpoint) = self.balancer.choose() else {
            return Err(Unanswered { endpoint: None, error: UpstreamError::NoEndpoint });
        };
        let unanswered = |error| Unanswered { endpoint: Some(endpoint), error };
        let Some(limit) = request.call_timeout else {
            return self.send_to(endpoint, pools, request, body, headers).await.map_err(unanswered);
        };
        let deadline = CallDeadline::new(limit);
        // This future is large, and other requests need not have room for it.
        let sent = timeout_at(deadline.at(), Box::pin(self.send_to(endpoint, pools, request, body, headers))).await;
        let (status, body) = sent.unwrap_or(Err(UpstreamError::Deadline(limit))).map_err(unanswered)?;
        Ok((status, body.until(deadline)))
    }

    /// Sends the request to this endpoint. If a connection of HTTP/1.1 from the pool ends before a byte of the response has
    /// come, and the request may be sent twice, it is sent again on a new connection.
    async fn send_to(
        &self,
        endpoint: &Endpoint,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        mut body: Option<ClientBody>,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), UpstreamError> {
        let exchange = Exchange {
            request,
            named: &request_headers::named_by_connection(request.headers)?,
            authority: (!request.preserve_host).then_some(&endpoint.authority),
            timeout: self.timeout,
            read_timeout: self.read_timeout,
        };
        // With TLS, a server of HTTP/2 agrees on HTTP/1.1 too, through which WebSockets pass.
        let needs_http1 = request.asks_for_websocket && endpoint.tls.is_some();
        if endpoint.http2 && !needs_http1 {
            // This future is large, and requests over HTTP/1.1 need not have room for it.
            let sent = Box::pin(self.send_over_http2(endpoint, pools, &exchange, &mut body, headers)).await;
            if let Some(response) = sent? {
                return Ok(response);
            }
        }
        let pool = (pools, endpoint.id);
        // A body can be sent only once.
        let is_replayable = is_replayable(&exchange) && body.is_none();
        if let Some(connection) = pools.take(endpoint.id, self.keep) {
            match http1::send(&exchange, connection, body.take(), pool, headers).await {
                // The server may have closed the connection before the request came. If the server closes it because of
                // the request, the second attempt costs only one more connection.
                Err(UpstreamError::Closed(_)) if is_replayable => {}
                sent => return sent,
            }
        }
        let stream = self.connector.connect(endpoint, Offered::Http1).await?;
        let connection = UpstreamConnection::new(stream, pools.now()).map_err(UpstreamError::Connect)?;
        http1::send(&exchange, connection, body, pool, headers).await
    }

    /// Sends the request over HTTP/2; `None` if the server has chosen HTTP/1.1. The request is sent again once if the server
    /// has certainly not processed it, or if a connection that was used before ends and the request may be sent twice.
    async fn send_over_http2(
        &self,
        endpoint: &Endpoint,
        pools: &Rc<ConnectionPools>,
        exchange: &Exchange<'_>,
        body: &mut Option<ClientBody>,
        headers: &mut HeaderMap,
    ) -> Result<Option<(StatusCode, UpstreamBody)>, UpstreamError> {
        let has_body = body.is_some();
        let mut is_sent = false;
        loop {
            let found = pools.http2.stream(endpoint, &self.connector, self.timeout, (self.keep, pools.now())).await?;
            let Spoken::Http2 { stream, is_new } = found else { return Ok(None) };
            let Failed { error, again } = match http2::send(exchange, stream, body, headers).await {
                Ok(response) => return Ok(Some(response)),
                Err(failed) => failed,
            };
            let may_send_again = match again {
                SendAgain::Any => has_body == body.is_some(),
                SendAgain::Idempotent => !is_new && !has_body && is_replayable(exchange),
                SendAgain::No => false,
            };
            if is_sent || !may_send_again {
                return Err(error);
            }
            is_sent = true;
        }
    }
}

/// Whether the method may be sent twice (RFC 9110, section 9.2.2).
fn is_replayable(exchange: &Exchange<'_>) -> bool {
    exchange.request.method.is_idempotent()
}
