//! One attempt to send a request: over a connection that is there, or a new one.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::attempts::Attempts;
use super::body::UpstreamBody;
use super::cold::cold;
use super::connection::UpstreamConnection;
use super::connector::Announced;
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::exchange::Exchange;
use super::http2::{OpenStream, Spoken};
use super::in_flight::InFlight;
use super::outgoing_body::BodySource;
use super::pool::ConnectionPools;
use super::request::UpstreamRequest;
use super::stream::Offered;
use super::{Upstream, http1, http2, request_headers};

/// What carries a request.
#[derive(Debug)]
pub(super) enum Connection {
    /// One of HTTP/1.1, which nobody else uses.
    Http1(Box<UpstreamConnection>),
    /// A stream on one of HTTP/2.
    Http2(OpenStream),
}

impl Upstream {
    /// Sends the request once. While there is no connection, the endpoint may change to another address of its server.
    pub(super) async fn attempt(
        &self,
        pools: &Rc<ConnectionPools>,
        in_flight: &mut InFlight,
        request: &UpstreamRequest<'_>,
        attempts: &mut Attempts<'_>,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), Failed> {
        let named = &request_headers::named_by_connection(request.headers)?;
        let is_repeated = attempts.is_repeated;
        let connection = match self.take(pools, in_flight.endpoint(), request, is_repeated) {
            Some(connection) => Ok(connection),
            None if self.needs_race(in_flight.endpoint(), pools, request) => {
                cold(self.race(pools, in_flight, request, attempts)).await
            }
            None => cold(self.open(pools, in_flight.endpoint(), request, is_repeated)).await,
        };
        let endpoint = in_flight.endpoint();
        if let Some(spans) = request.spans() {
            spans.attempt_at(endpoint.server());
        }
        let connection = connection.map_err(Failed::to_connect)?;
        self.exchange(connection, endpoint, pools, (request, named), &mut attempts.body, headers).await
    }

    /// A connection that is there and can carry the request.
    fn take(
        &self,
        pools: &ConnectionPools,
        endpoint: &Endpoint,
        request: &UpstreamRequest<'_>,
        is_repeated: bool,
    ) -> Option<Connection> {
        if endpoint.target.is_offered_http2(request.asks_for_websocket) {
            return pools.http2.take(endpoint, request, (self.keep, pools.now())).map(Connection::Http2);
        }
        self.take_http1(pools, endpoint, request, is_repeated)
    }

    /// The same of HTTP/1.1. After one of them has ended, others may end soon.
    fn take_http1(
        &self,
        pools: &ConnectionPools,
        endpoint: &Endpoint,
        request: &UpstreamRequest<'_>,
        is_repeated: bool,
    ) -> Option<Connection> {
        let take = || pools.take(endpoint.id, self.announced(request), self.keep);
        if is_repeated { None } else { take().map(Connection::Http1) }
    }

    /// A connection to this endpoint that can carry the request: a new one, if the server does not choose HTTP/1.1 and one of
    /// these is there.
    pub(super) async fn open(
        &self,
        pools: &Rc<ConnectionPools>,
        endpoint: &Arc<Endpoint>,
        request: &UpstreamRequest<'_>,
        is_repeated: bool,
    ) -> Result<Connection, UpstreamError> {
        if endpoint.target.is_offered_http2(request.asks_for_websocket) {
            let keep = (self.keep, pools.now());
            let found = pools.http2.stream(endpoint, &self.connector, self.timeout, request, keep);
            if let Spoken::Http2(stream) = found.await? {
                return Ok(Connection::Http2(stream));
            }
            if let Some(connection) = self.take_http1(pools, endpoint, request, is_repeated) {
                return Ok(connection);
            }
        }
        let announced = self.proxy_protocol.map(|version| Announced { version, client: request.client });
        let stream = self.connector.connect(endpoint, announced, Offered::Http1).await?;
        let failed = |error| UpstreamError::of_connecting(error, endpoint.was_reached());
        let connection = UpstreamConnection::new(stream, pools.now()).map_err(failed)?;
        Ok(Connection::Http1(connection.announced_to_be(self.announced(request))))
    }

    /// Sends the request over this connection to the endpoint, and waits for the head of the response.
    pub(super) async fn exchange(
        &self,
        connection: Connection,
        endpoint: &Endpoint,
        pools: &Rc<ConnectionPools>,
        (request, named): (&UpstreamRequest<'_>, &[&[u8]]),
        body: &mut BodySource,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), Failed> {
        let exchange = Exchange {
            request,
            named,
            authority: (!request.preserve_host).then_some(&endpoint.target.authority),
            timeout: request.timeout.unwrap_or(self.timeout),
            read_timeout: self.read_timeout,
        };
        match connection {
            Connection::Http1(connection) => {
                http1::send(&exchange, connection, body.next.take(), (pools, endpoint.id), headers).await
            }
            Connection::Http2(stream) => cold(http2::send(&exchange, stream, &mut body.next, headers)).await,
        }
    }
}
