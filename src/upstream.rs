//! Sending a request on to an upstream and bringing its answer back.
//!
//! Each worker keeps its own connections, and a request drives the one it uses from its own task: no other task
//! wakes up for it. Bodies stream both ways, at the pace of the slower side.

mod chunked;
mod header_policy;
mod request_head;
mod response_head;
mod stall;
mod connection;
mod lookup;
mod pool;
mod request_body;
mod response_body;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;

pub use lookup::Lookups;
pub use pool::{ConnectionPools, Keep, Keeps};
pub use request_head::ForwardedInfo;
pub use response_body::{BodyError, UpstreamBody};
pub use response_head::BadHead;

use crate::config;
use crate::identify::ambiguity::SingleSources;
use crate::reason::Reason;
use connection::UpstreamConnection;
use request_body::{RequestBody, RequestBodyError};
use response_head::Head;
use stall::Stalled;

/// Servers that share the requests of a route.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in the configuration.
    pub name: String,
    servers: Vec<Endpoint>,
    /// Indices into `servers`, each as often as its weight says, spread evenly.
    schedule: Vec<usize>,
    connect_timeout: Duration,
    timeout: Duration,
    /// `None` is for ever.
    read_timeout: Option<Duration>,
    keep: Keep,
    lookups: Arc<Lookups>,
    next: AtomicUsize,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where its connections are pooled; the same for the same host and port.
    pub id: usize,
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The Host header it expects.
    pub authority: HeaderValue,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum UpstreamError {
    /// No connection: refused, unreachable, no such name.
    Connect(io::Error),
    /// No connection within this time.
    ConnectTimeout(Duration),
    /// No head of a response within this time.
    Timeout(Duration),
    /// The connection ended before anything of a response came.
    Closed(io::Error),
    /// What came is no response that can be passed on.
    Bad(BadHead),
    /// The client broke off while it sent its body.
    Client(hyper::Error),
    /// For this time the client sent nothing more of its body.
    BodyTimeout(Duration),
    /// The client's body is larger than it may be.
    TooLarge,
    /// The client's Connection header names too many headers.
    TooManyNamed,
}

impl UpstreamError {
    /// In a word.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Connect(_) => Reason::Connect,
            Self::ConnectTimeout(_) => Reason::ConnectTimeout,
            Self::Timeout(_) => Reason::Timeout,
            Self::Closed(_) => Reason::Closed,
            Self::Bad(_) => Reason::BadResponse,
            Self::Client(_) => Reason::BadBody,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::TooLarge => Reason::MaxBodySize,
            Self::TooManyNamed => Reason::BadHead,
        }
    }

    /// What the client is answered: 504 where the upstream was slow, 502 where it failed, 4xx where the client did.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Connect(_) | Self::Closed(_) | Self::Bad(_) => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout(_) | Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Client(_) | Self::TooManyNamed => StatusCode::BAD_REQUEST,
            Self::BodyTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// What the client is told. Names no address: that is the log's to know.
    pub fn detail(&self) -> &'static str {
        match self {
            Self::Connect(_) => "The upstream server cannot be reached.",
            Self::ConnectTimeout(_) => "The upstream server did not accept a connection in time.",
            Self::Timeout(_) => "The upstream server did not answer in time.",
            Self::Closed(_) => "The upstream server closed the connection before it answered.",
            Self::Bad(_) => "The upstream server's answer is not a valid HTTP response.",
            Self::Client(_) => "The body of the request is not valid.",
            Self::BodyTimeout(_) => "The body of the request did not come on in time.",
            Self::TooLarge => "The body of the request is too large.",
            Self::TooManyNamed => "The Connection header names more than 100 headers.",
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::ConnectTimeout(limit) => write!(f, "no connection within {limit:?}"),
            Self::Timeout(limit) => write!(f, "no response within {limit:?}"),
            Self::Closed(error) => write!(f, "closed before a response: {error}"),
            Self::Bad(bad) => write!(f, "sent {}", bad.name()),
            Self::Client(error) => write!(f, "the client broke off: {error}"),
            Self::BodyTimeout(limit) => write!(f, "the request's body did not come on for {limit:?}"),
            Self::TooLarge => f.write_str("the request's body is too large"),
            Self::TooManyNamed => f.write_str("the request names more than 100 headers in Connection"),
        }
    }
}

impl Upstream {
    /// The upstream as configured, with its `servers` and their weights. Their names are looked up among all `lookups`.
    pub fn new(config: &config::Upstream, servers: Vec<(Endpoint, u32)>, lookups: Arc<Lookups>) -> Self {
        let weights: Vec<u32> = servers.iter().map(|(_, weight)| *weight).collect();
        Self {
            name: config.name.clone(),
            servers: servers.into_iter().map(|(server, _)| server).collect(),
            schedule: schedule(&weights),
            connect_timeout: config.connect_timeout,
            timeout: config.timeout,
            read_timeout: config.read_timeout,
            keep: Keep { idle: config.max_idle, age: config.max_age },
            lookups,
            next: AtomicUsize::new(0),
        }
    }

    /// The ids of its servers, and how long their connections are kept.
    pub fn keeps(&self) -> impl Iterator<Item = (usize, Keep)> {
        self.servers.iter().map(|server| (server.id, self.keep))
    }

    /// The server whose turn it is.
    pub fn choose(&self) -> Option<&Endpoint> {
        let turn =
            if self.schedule.len() > 1 { self.next.fetch_add(1, Ordering::Relaxed) % self.schedule.len() } else { 0 };
        self.servers.get(*self.schedule.get(turn)?)
    }

    /// Sends the request to `server` and returns the response as soon as its head is there.
    ///
    /// # Errors
    /// A [`UpstreamError`] if no head comes. Where a connection that was used before ends without a byte of an answer, and the
    /// request can be sent twice without harm, it is sent once more, on a new connection.
    pub async fn send(
        &self,
        server: &Endpoint,
        pools: &Rc<ConnectionPools>,
        request: &mut UpstreamRequest<'_>,
        body: Option<Incoming>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        if request_head::names_too_many(request.headers) {
            return Err(UpstreamError::TooManyNamed);
        }
        let mut request_body = RequestBody::new(body, request);
        // RFC 9110, section 9.2.2: what may be sent twice. A body would be gone.
        let is_replayable = request.method.is_idempotent() && request_body.is_empty();
        if let Some(mut connection) = pools.take(server.id, self.keep) {
            match request.send(&mut connection, &mut request_body, self.timeout).await {
                // The server may have closed it before the request came. If it is the request that makes the server
                // close, then not also the other connections.
                Err(UpstreamError::Closed(_)) if is_replayable => {}
                sent => return Ok(self.attach(sent?, connection, request_body, request.body_timeout, pools, server)),
            }
        }
        let mut connection = self.connect(server, pools.now()).await?;
        let head = request.send(&mut connection, &mut request_body, self.timeout).await?;
        Ok(self.attach(head, connection, request_body, request.body_timeout, pools, server))
    }

    /// The response with this head, whose body comes on `link` while the rest of the request's goes.
    fn attach(
        &self,
        head: Head,
        mut connection: Box<UpstreamConnection>,
        request_body: RequestBody,
        body_timeout: Duration,
        pools: &Rc<ConnectionPools>,
        server: &Endpoint,
    ) -> Response<UpstreamBody> {
        connection.stall.begin(body_timeout, self.read_timeout);
        let body = UpstreamBody::new(connection, head.end, head.keep_alive, pools, server.id);
        head.response.map(|()| if request_body.is_over() { body } else { body.uploading(request_body) })
    }

    async fn connect(&self, server: &Endpoint, now: Instant) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let connecting = async {
            let addresses = self.lookups.find(&server.host, server.port).await?;
            UpstreamConnection::connect(&addresses, now).await
        };
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(UpstreamError::Connect(error)),
            Err(_) => Err(UpstreamError::ConnectTimeout(self.connect_timeout)),
        }
    }
}

/// A request as it is to be sent.
#[derive(Debug)]
pub struct UpstreamRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path and query, in origin form.
    pub target: &'a str,
    /// The client's headers.
    pub headers: &'a HeaderMap,
    /// Where the request came from.
    pub forwarded: ForwardedInfo<'a>,
    /// What limits decide by, which no trailer may give once more.
    pub counted: &'a Arc<SingleSources>,
    /// The longest that the client may go without sending more of its body.
    pub body_timeout: Duration,
    /// The most bytes that its body may have.
    pub max_body_size: u64,
}

impl UpstreamRequest<'_> {
    /// Sends the request until the head of its response is there, which may be before all of it is sent.
    ///
    /// `timeout` is the longest that the upstream may take, from the last of the request that it took: a long body takes
    /// its time.
    async fn send(
        &mut self,
        connection: &mut UpstreamConnection,
        request_body: &mut RequestBody,
        timeout: Duration,
    ) -> Result<Head, UpstreamError> {
        request_body.begin();
        connection.sending.clear();
        request_head::encode(
            &mut connection.sending,
            self.method,
            self.target,
            self.headers,
            &self.forwarded,
            request_body.framing(),
        );
        connection.stall.begin(self.body_timeout, Some(timeout));
        let mut interim = 0;
        poll_fn(|cx| {
            let advanced = self.advance(cx, connection, request_body, &mut interim);
            if advanced.is_ready() {
                return advanced;
            }
            let position = request_body.position(connection);
            Poll::Ready(Err(match ready!(connection.stall.poll(cx, position)) {
                Stalled::Client(limit) => UpstreamError::BodyTimeout(limit),
                Stalled::Upstream(limit) => UpstreamError::Timeout(limit),
            }))
        })
        .await
    }

    /// Brings the exchange on as far as it goes, and counts interim responses.
    fn advance(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut UpstreamConnection,
        request_body: &mut RequestBody,
        interim: &mut u32,
    ) -> Poll<Result<Head, UpstreamError>> {
        match request_body.poll(cx, connection) {
            Poll::Ready(Err(RequestBodyError::Client(error))) => return Poll::Ready(Err(UpstreamError::Client(error))),
            Poll::Ready(Err(RequestBodyError::TooLarge)) => return Poll::Ready(Err(UpstreamError::TooLarge)),
            // What an upstream that takes no more has to say may be on its way already; if not, reading will tell.
            Poll::Pending | Poll::Ready(Ok(()) | Err(RequestBodyError::Upstream)) => {}
        }
        loop {
            if !connection.received.is_empty() {
                let parsed = response_head::parse(&mut connection.received, self.method, interim);
                if let Some(head) = parsed.map_err(UpstreamError::Bad)? {
                    return Poll::Ready(Ok(head));
                }
            }
            let nothing_came = connection.received.is_empty() && *interim == 0;
            match ready!(connection.poll_fill(cx, false)) {
                Ok(0) if nothing_came => {
                    return Poll::Ready(Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into())));
                }
                Err(error) if nothing_came => return Poll::Ready(Err(UpstreamError::Closed(error))),
                Ok(0) | Err(_) => return Poll::Ready(Err(UpstreamError::Bad(BadHead::CutOff))),
                Ok(_) => {}
            }
        }
    }
}

/// Spreads turns evenly (smooth weighted round-robin): each turn goes to the one that is owed most.
fn schedule(weights: &[u32]) -> Vec<usize> {
    let total: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
    let mut owed = vec![0i64; weights.len()];
    let mut turn = || {
        owed.iter_mut().zip(weights).for_each(|(owed, weight)| *owed += i64::from(*weight));
        let chosen = (0..owed.len()).max_by_key(|index| (owed[*index], std::cmp::Reverse(*index)))?;
        owed[chosen] -= total;
        Some(chosen)
    };
    (0..total).map_while(|_| turn()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_by_weight() {
        assert_eq!(schedule(&[1]), [0]);
        assert_eq!(schedule(&[1, 1]), [0, 1]);
        assert_eq!(schedule(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(schedule(&[]), Vec::<usize>::new());
        assert_eq!(schedule(&[100, 50, 1]).len(), 151);
    }
}
