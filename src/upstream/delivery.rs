//! One attempt to send a request, over an existing or a new connection.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::attempts::Attempts;
use super::body::UpstreamBody;
use super::bound::{BoundConnections, has_credentials};
use super::cold::cold;
use super::connection::UpstreamConnection;
use super::connector::Announced;
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::exchange::Exchange;
use super::http2::OpenStream;
use super::in_flight::InFlight;
use super::outgoing_body::BodySource;
use super::pool::ConnectionPools;
use super::request::{RequestHead, UpstreamRequest};
use super::stream::Offered;
use super::{Upstream, http1, http2, request_headers};

#[derive(Debug)]
pub(super) enum Connection {
    /// HTTP/1.1, which nobody else uses.
    Http1(Box<UpstreamConnection>),
    /// A stream of HTTP/2. Boxed, it does not make the futures of other requests larger.
    Http2(Box<OpenStream>),
}

#[derive(Clone, Copy)]
pub struct Connections<'a> {
    /// Of the worker.
    pub pools: &'a Rc<ConnectionPools>,
    /// Belong to the client's connection.
    pub bound: &'a Rc<BoundConnections>,
}

#[derive(Clone, Copy)]
pub(super) struct Delivery<'a> {
    pub(super) upstream: &'a Upstream,
    pub(super) connections: Connections<'a>,
    pub(super) request: &'a UpstreamRequest<'a>,
}

impl Delivery<'_> {
    /// Sends the request once. While connecting, the endpoint may change to another address of its server.
    pub(super) async fn attempt(
        self,
        in_flight: &mut InFlight,
        attempts: &mut Attempts<'_>,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), Failed> {
        let named = &request_headers::named_by_connection(self.request.head.headers)?;
        let endpoint = in_flight.endpoint();
        if endpoint.places.are_taken() {
            self.connections.pools.make_room(endpoint.id, self.announced()).await;
        }
        let connection = match self.take(endpoint, attempts.is_repeated) {
            Some(connection) => Ok(connection),
            None if self.needs_race(endpoint) => cold(self.race(in_flight, attempts)).await,
            None => cold(self.open(endpoint)).await,
        };
        let endpoint = in_flight.endpoint();
        if let Some(spans) = self.request.spans() {
            let (address, port) = endpoint.server();
            spans.attempt_at(address, port);
        }
        let connection = connection.map_err(Failed::to_connect)?;
        self.exchange(connection, endpoint, Some(in_flight), named, &mut attempts.body, headers).await
    }

    /// Whether the endpoint is offered HTTP/2 for the request: an endpoint that has chosen HTTP/1.1 is not.
    pub(super) fn is_offered_http2(self, endpoint: &Endpoint) -> bool {
        let RequestHead { asks_for_websocket, headers, .. } = self.request.head;
        endpoint.target.is_offered_http2(|| asks_for_websocket || has_credentials(headers))
            && !self.connections.pools.http2.chooses_http1(endpoint.id)
    }

    /// The client that is announced to servers. The connection can be used for no other.
    pub(super) fn announced(self) -> Option<SocketAddr> {
        self.upstream.proxy_protocol.and(self.request.address())
    }

    /// An existing connection that can carry the request. After one of HTTP/1.1 has ended, others may end soon.
    fn take(self, endpoint: &Endpoint, is_repeated: bool) -> Option<Connection> {
        let Self { upstream: Upstream { keep, .. }, connections: Connections { pools, bound }, request } = self;
        if self.is_offered_http2(endpoint) {
            let stream = pools.http2.take(endpoint, request, *keep, pools.now());
            return stream.map(|stream| Connection::Http2(Box::new(stream)));
        }
        if is_repeated {
            return None;
        }
        let bound = Some(bound).filter(|bound| !bound.is_empty() && request.is_of_one_client());
        let bound = bound.and_then(|bound| bound.take(endpoint.id));
        bound.or_else(|| pools.take(endpoint.id, self.announced(), *keep)).map(Connection::Http1)
    }

    /// A connection to this endpoint that can carry the request, usually a new one.
    pub(super) async fn open(self, endpoint: &Arc<Endpoint>) -> Result<Connection, UpstreamError> {
        let Self { upstream, connections: Connections { pools, .. }, request } = self;
        if self.is_offered_http2(endpoint) {
            let Upstream { connector, timeout, keep, .. } = upstream;
            let found = pools.http2.stream(endpoint, connector, *timeout, request, *keep, pools.now());
            if let Some(stream) = found.await? {
                return Ok(Connection::Http2(Box::new(stream)));
            }
        }
        let announced = upstream.proxy_protocol.map(|version| Announced { version, client: request.address() });
        let failed = |error| UpstreamError::of_connecting(error, endpoint.was_reached());
        let begin = async |stream| UpstreamConnection::new(stream, &pools.spare_buffers, pools.now()).map_err(failed);
        let connection = upstream.connector.connect(endpoint, announced, Offered::Http1, begin).await?;
        Ok(Connection::Http1(connection.announced_to_be(self.announced())))
    }

    /// Sends the request over this connection, and waits for the head of the response. `in_flight` is `None` for a check.
    /// Connection names the headers in `named`.
    pub(super) async fn exchange(
        self,
        connection: Connection,
        endpoint: &Endpoint,
        in_flight: Option<&InFlight>,
        named: &[&[u8]],
        body: &mut BodySource,
        headers: &mut HeaderMap,
    ) -> Result<(StatusCode, UpstreamBody), Failed> {
        let Self { upstream, connections: Connections { pools, bound }, request } = self;
        let exchange = Exchange {
            request,
            in_flight,
            named,
            bound,
            authority: (!request.head.preserve_host).then_some(&endpoint.target.authority),
            timeout: request.timeout.unwrap_or(upstream.timeout),
            read_timeout: upstream.read_timeout,
        };
        match connection {
            Connection::Http1(connection) => {
                http1::send(&exchange, connection, body.next.take(), (pools, endpoint.id), headers).await
            }
            Connection::Http2(stream) => cold(http2::send(&exchange, *stream, &mut body.next, headers)).await,
        }
    }
}
