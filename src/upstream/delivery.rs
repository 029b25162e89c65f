//! The attempts to send a request, each over an existing or a new connection.
//!
//! A server whose name has addresses of both families may be reached by one of them only. If the chosen address does not
//! accept a connection soon, one of the other family is tried at the same time, and the first that accepts gets the request
//! (RFC 8305, section 5). The slower address counts as failed, so that repeated failures eject it.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::balancer::Criteria;
use super::body::UpstreamBody;
use super::bound::{BoundConnections, has_credentials};
use super::connection::UpstreamConnection;
use super::connector::Announced;
use super::endpoint::Endpoint;
use super::error::{Failed, UpstreamError};
use super::exchange::{BodySource, Exchange};
use super::health::Availability;
use super::http2::{self, OpenStream};
use super::in_flight::InFlight;
use super::pool::ConnectionPools;
use super::request::{RequestHead, UpstreamRequest};
use super::resend::{Ending, Resend, Situation};
use super::stream::Offered;
use super::{Upstream, http1, request_headers};
use crate::base::clock;
use crate::config;
use crate::server::ClientBody;

/// How long the first address is tried alone: the Connection Attempt Delay of RFC 8305.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

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
        let endpoint = &in_flight.endpoint;
        if endpoint.places.are_taken() {
            self.connections.pools.make_room(endpoint.id, self.announced()).await;
        }
        let connection = match self.take(endpoint, attempts.is_repeated) {
            Some(connection) => Ok(connection),
            None => cold(self.connect(in_flight, attempts)).await,
        };
        let endpoint = &in_flight.endpoint;
        if let Some(spans) = self.request.spans() {
            let (address, port) = endpoint.server();
            spans.attempt_at(address, port);
        }
        let connection = connection.map_err(Failed::to_connect)?;
        self.exchange(connection, endpoint, Some(in_flight), named, &mut attempts.body, headers).await
    }

    /// Whether the endpoint is offered HTTP/2 for the request: an endpoint that has chosen HTTP/1.1 is not.
    fn is_offered_http2(self, endpoint: &Endpoint) -> bool {
        let RequestHead { asks_for_websocket, headers, .. } = self.request.head;
        endpoint.target.is_offered_http2(|| asks_for_websocket || has_credentials(headers))
            && !self.connections.pools.http2.chooses_http1(endpoint.id)
    }

    /// The client that is announced to servers. The connection can be used for no other.
    fn announced(self) -> Option<SocketAddr> {
        self.upstream.config.proxy_protocol.and(self.request.address())
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
            let Upstream { config, connector, keep, .. } = upstream;
            let found = pools.http2.stream(endpoint, connector, config.timeout, request, *keep, pools.now());
            if let Some(stream) = found.await? {
                return Ok(Connection::Http2(Box::new(stream)));
            }
        }
        let announced = upstream.config.proxy_protocol.map(|version| Announced { version, client: request.address() });
        let failed = |error| UpstreamError::of_connecting(error, endpoint.was_reached());
        let begin = async |stream| UpstreamConnection::new(stream, &pools.spare_buffers, pools.now()).map_err(failed);
        let mut connection = upstream.connector.connect(endpoint, announced, Offered::Http1, begin).await?;
        connection.announced = self.announced();
        Ok(Connection::Http1(connection))
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
            timeout: request.timeout.unwrap_or(upstream.config.timeout),
            read_timeout: upstream.config.read_timeout,
        };
        match connection {
            Connection::Http1(connection) => {
                http1::send(&exchange, connection, body.next.take(), (pools, endpoint.id), headers).await
            }
            Connection::Http2(stream) => cold(http2::send(&exchange, *stream, &mut body.next, headers)).await,
        }
    }
}

/// The attempts to get a response to one request.
pub(super) struct Attempts<'a> {
    upstream: &'a Upstream,
    request: &'a UpstreamRequest<'a>,
    /// The ids of endpoints that have failed.
    pub(super) tried: SmallVec<[usize; 4]>,
    /// How often the request was sent to another endpoint although one may have processed it.
    retries: u32,
    /// Whether a stale connection was replaced. That happens once, and from then on all connections are new.
    is_repeated: bool,
    /// Whether a server may have got a part of the request before the current attempt.
    was_begun: bool,
    body: BodySource,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(upstream: &'a Upstream, request: &'a UpstreamRequest<'_>, body: Option<ClientBody>) -> Self {
        let retry = &upstream.config.retry;
        let keep = (retry.retries > 0 && request.head.method.is_idempotent()).then_some(retry.max_body);
        let body = BodySource::new(body, keep);
        Self { upstream, request, tried: SmallVec::new(), retries: 0, is_repeated: false, was_begun: false, body }
    }

    pub(super) fn answered(&self, status: StatusCode) -> Ending {
        let is_listed = self.upstream.config.retry.statuses.iter().any(|statuses| statuses.contains(&status.as_u16()));
        if is_listed { Ending::Listed } else { Ending::Final }
    }

    pub(super) fn again(&mut self, ending: Ending, endpoint: usize) -> Option<Resend> {
        if ending == Ending::Final {
            return None;
        }
        let Upstream { config: config::Upstream { retry, .. }, balancer, .. } = self.upstream;
        let progress = self.request.progress;
        if ending.is_unprocessed() {
            progress.is_begun.set(self.was_begun);
        }
        self.was_begun = progress.is_begun.get();
        self.tried.push(endpoint);
        let next = balancer.can_try(Criteria { key: None, tried: &self.tried });
        // A response is not given up for a server that is down.
        let is_away = |next| matches!(next, Availability::Unhealthy | Availability::Ejected);
        let has_other = next.is_some_and(|next| ending != Ending::Listed || !is_away(next));
        let situation = Situation {
            is_idempotent: self.request.head.method.is_idempotent(),
            has_whole_body: self.body.is_whole(),
            has_response: progress.has_response.get(),
            is_repeated: self.is_repeated,
            has_other,
            retries: retry.retries - self.retries,
        };
        let again = ending.again(situation, || self.may_retry())?;
        if again == Resend::SameServer {
            self.is_repeated = true;
            self.tried.pop();
        }
        self.retries += u32::from(again == Resend::Retry);
        self.body.rewind();
        Some(again)
    }

    /// Whether the budget allows one more retry. Takes it then.
    fn may_retry(&self) -> bool {
        let Upstream { config, balancer, state, .. } = self.upstream;
        let (client, now) = (self.request.client_bit(), clock::monotonic());
        let is_alone = balancer.served_lately(now) & !client.0 == 0;
        state.take_retry(config.retry.budget, client, is_alone, now)
    }
}

impl Delivery<'_> {
    /// A connection to the endpoint that accepts one first: that of `in_flight`, or its sibling of the other family, which then
    /// replaces it in `in_flight`. An endpoint that has not accepted counts as tried. Fails when neither accepts a connection.
    async fn connect(self, in_flight: &mut InFlight, attempts: &mut Attempts<'_>) -> Result<Connection, UpstreamError> {
        let Self { upstream, request, .. } = self;
        let endpoint = in_flight.endpoint.clone();
        let mut first = pin!(self.open(&endpoint));
        // The request may wait for a stream of a connection that exists.
        if self.is_offered_http2(&endpoint) && self.connections.pools.http2.is_connected(endpoint.id) {
            return first.await;
        }
        if let Ok(opened) = timeout(ATTEMPT_DELAY, first.as_mut()).await {
            return opened;
        }
        let Some(sibling) = upstream.balancer.sibling(&endpoint, &attempts.tried) else { return first.await };
        let sibling = InFlight::new(sibling, request);
        let other = sibling.endpoint.clone();
        let mut second = pin!(self.open(&other));
        let (is_first, opened) = tokio::select! {
            opened = first.as_mut() => (true, opened),
            opened = second.as_mut() => (false, opened),
        };
        let (is_first, opened) = match opened {
            Ok(connection) => {
                if !is_first {
                    upstream.failed_at(&endpoint, in_flight.client, &UpstreamError::ConnectTimeout(ATTEMPT_DELAY));
                }
                (is_first, Ok(connection))
            }
            Err(error) => {
                let failed = if is_first { &endpoint } else { &other };
                upstream.failed_at(failed, in_flight.client, &error);
                attempts.tried.push(failed.id);
                (!is_first, if is_first { second.await } else { first.await })
            }
        };
        if !is_first {
            in_flight.failed(&UpstreamError::ConnectTimeout(ATTEMPT_DELAY));
            sibling.begin(request);
            *in_flight = sibling;
        }
        opened
    }
}

/// Boxes a future, so that it adds neither size nor code to the function that awaits it.
pub(super) fn cold<'a, T>(future: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}
