//! Sends a request to one endpoint, over a connection from the pool or a new one.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::body::UpstreamBody;
use super::connection::UpstreamConnection;
use super::connector::Announced;
use super::endpoint::Endpoint;
use super::error::{Failed, SendAgain, UpstreamError};
use super::exchange::Exchange;
use super::http2::Spoken;
use super::outgoing_body::BodySource;
use super::pool::ConnectionPools;
use super::request::UpstreamRequest;
use super::stream::Offered;
use super::{Upstream, http1, http2, request_headers};

impl Upstream {
    /// Sends the request to this endpoint. If a connection of HTTP/1.1 from the pool ends before a byte of the response has
    /// come, and the request may be sent twice, it is sent again on a new connection.
    pub(super) async fn send_to(
        &self,
        endpoint: &Arc<Endpoint>,
        pools: &Rc<ConnectionPools>,
        request: &UpstreamRequest<'_>,
        body: &mut BodySource,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), Failed> {
        let target = &endpoint.target;
        let exchange = Exchange {
            request,
            named: &request_headers::named_by_connection(request.headers)?,
            authority: (!request.preserve_host).then_some(&target.authority),
            timeout: request.timeout.unwrap_or(self.timeout),
            read_timeout: self.read_timeout,
        };
        if target.is_offered_http2(request.asks_for_websocket) {
            // This future is large, and requests over HTTP/1.1 need not have room for it.
            let sent = Box::pin(self.send_over_http2(endpoint, pools, &exchange, body, headers)).await;
            if let Some(response) = sent? {
                return Ok(response);
            }
        }
        let pool = (pools, endpoint.id);
        if let Some(connection) = pools.take(endpoint.id, self.announced(request), self.keep) {
            match http1::send(&exchange, connection, body.next.take(), pool, headers).await {
                // The server may have closed the connection before the request came. If the server closes it because of
                // the request, the second attempt costs only one more connection.
                Err(UpstreamError::Closed(_)) if request.method.is_idempotent() && body.is_whole() => body.rewind(),
                sent => return Ok(sent?),
            }
        }
        let connection = self.connect(pools, endpoint, request).await?;
        Ok(http1::send(&exchange, connection, body.next.take(), pool, headers).await?)
    }

    /// Sends the request over HTTP/2; `None` if the server has chosen HTTP/1.1. The request is sent again once if the server
    /// has certainly not processed it, or if a connection that was used before ends and the request may be sent twice.
    async fn send_over_http2(
        &self,
        endpoint: &Arc<Endpoint>,
        pools: &Rc<ConnectionPools>,
        exchange: &Exchange<'_>,
        body: &mut BodySource,
        headers: &mut HeaderMap,
    ) -> Result<Option<(StatusCode, UpstreamBody)>, Failed> {
        let mut is_sent = false;
        loop {
            let request = exchange.request;
            let found = pools.http2.stream(endpoint, &self.connector, self.timeout, request, (self.keep, pools.now()));
            let found = found.await?;
            let Spoken::Http2 { stream, is_new } = found else { return Ok(None) };
            let failed = match http2::send(exchange, stream, &mut body.next, headers).await {
                Ok(response) => return Ok(Some(response)),
                Err(failed) => failed,
            };
            let may_send_again = match failed.again {
                SendAgain::Any => true,
                SendAgain::Idempotent => !is_new && failed.has_ended && request.method.is_idempotent(),
                SendAgain::No => false,
            };
            if is_sent || !may_send_again || !body.is_whole() {
                return Err(failed);
            }
            body.rewind();
            is_sent = true;
        }
    }

    /// A new connection of HTTP/1.1 to this endpoint.
    pub(super) async fn connect(
        &self,
        pools: &ConnectionPools,
        endpoint: &Endpoint,
        request: &UpstreamRequest<'_>,
    ) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let announced = self.proxy_protocol.map(|version| Announced { version, client: request.client });
        let stream = self.connector.connect(endpoint, announced, Offered::Http1).await?;
        let failed = |error| UpstreamError::of_connecting(error, endpoint.was_reached());
        let connection = UpstreamConnection::new(stream, pools.now()).map_err(failed)?;
        Ok(connection.announced_to_be(self.announced(request)))
    }
}
