//! Sending a request on to an upstream and bringing its answer back.
//!
//! Each worker keeps its own connections, and a request drives the one it uses from its own task: no other task
//! wakes up for it. Bodies stream both ways, at the pace of the slower side.

mod chunked;
mod policy;
mod request;
mod response;
mod stall;
mod link;
mod lookup;
mod pool;
mod upload;
mod body;

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

pub use body::{BodyError, UpstreamBody};
pub use lookup::Lookups;
pub use pool::{Keep, Keeps, Pools};
pub use request::Origin;
pub use response::BadHead;

use crate::config;
use crate::identify::ambiguity::SingleSources;
use crate::reason::Reason;
use link::Link;
use response::Head;
use stall::Stalled;
use upload::{Upload, UploadError};

/// Servers that share the requests of a route.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in the configuration.
    pub name: String,
    servers: Vec<Server>,
    /// Indices into `servers`, each as often as its weight says, spread evenly.
    turns: Vec<usize>,
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
pub struct Server {
    /// Where its connections are pooled; the same for the same host and port.
    pub id: usize,
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The Host header it expects.
    pub authority: HeaderValue,
}

impl fmt::Display for Server {
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
pub enum Failure {
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

impl Failure {
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

impl fmt::Display for Failure {
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
    pub fn new(config: &config::Upstream, servers: Vec<(Server, u32)>, lookups: Arc<Lookups>) -> Self {
        let weights: Vec<u32> = servers.iter().map(|(_, weight)| *weight).collect();
        Self {
            name: config.name.clone(),
            servers: servers.into_iter().map(|(server, _)| server).collect(),
            turns: turns(&weights),
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
    pub fn choose(&self) -> Option<&Server> {
        let turn = if self.turns.len() > 1 { self.next.fetch_add(1, Ordering::Relaxed) % self.turns.len() } else { 0 };
        self.servers.get(*self.turns.get(turn)?)
    }

    /// Sends the request to `server` and returns the response as soon as its head is there.
    ///
    /// # Errors
    /// A [`Failure`] if no head comes. Where a connection that was used before ends without a byte of an answer, and the
    /// request can be sent twice without harm, it is sent once more, on a new connection.
    pub async fn send(
        &self,
        server: &Server,
        pools: &Rc<Pools>,
        outbound: &mut Outbound<'_>,
        body: Option<Incoming>,
    ) -> Result<Response<UpstreamBody>, Failure> {
        if request::names_too_many(&outbound.headers) {
            return Err(Failure::TooManyNamed);
        }
        let mut upload = Upload::new(body, outbound);
        // RFC 9110, section 9.2.2: what may be sent twice. A body would be gone.
        let is_replayable = outbound.method.is_idempotent() && upload.is_empty();
        if let Some(mut link) = pools.take(server.id, self.keep) {
            match outbound.send(&mut link, &mut upload, self.timeout).await {
                // The server may have closed it before the request came. If it is the request that makes the server
                // close, then not also the other connections.
                Err(Failure::Closed(_)) if is_replayable => {}
                sent => return Ok(self.attach(sent?, link, upload, outbound.body_timeout, pools, server)),
            }
        }
        let mut link = self.connect(server, pools.now()).await?;
        let head = outbound.send(&mut link, &mut upload, self.timeout).await?;
        Ok(self.attach(head, link, upload, outbound.body_timeout, pools, server))
    }

    /// The response with this head, whose body comes on `link` while the rest of the request's goes.
    fn attach(
        &self,
        head: Head,
        mut link: Box<Link>,
        upload: Upload,
        body_timeout: Duration,
        pools: &Rc<Pools>,
        server: &Server,
    ) -> Response<UpstreamBody> {
        link.stall.begin(body_timeout, self.read_timeout);
        let body = UpstreamBody::new(link, head.end, head.keep_alive, pools, server.id);
        head.response.map(|()| if upload.is_over() { body } else { body.uploading(upload) })
    }

    async fn connect(&self, server: &Server, now: Instant) -> Result<Box<Link>, Failure> {
        let connecting = async {
            let addresses = self.lookups.find(&server.host, server.port).await?;
            Link::connect(&addresses, now).await
        };
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(Failure::Connect(error)),
            Err(_) => Err(Failure::ConnectTimeout(self.connect_timeout)),
        }
    }
}

/// A request as it is to be sent.
#[derive(Debug)]
pub struct Outbound<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path and query, in origin form.
    pub target: &'a str,
    /// The client's headers, whose room the response's take.
    pub headers: HeaderMap,
    /// Where the request came from.
    pub origin: Origin<'a>,
    /// What limits decide by, which no trailer may give once more.
    pub counted: &'a Arc<SingleSources>,
    /// The longest that the client may go without sending more of its body.
    pub body_timeout: Duration,
    /// The most bytes that its body may have.
    pub max_body_size: u64,
}

impl Outbound<'_> {
    /// Sends the request until the head of its response is there, which may be before all of it is sent.
    ///
    /// `timeout` is the longest that the upstream may take, from the last of the request that it took: a long body takes
    /// its time.
    async fn send(&mut self, link: &mut Link, upload: &mut Upload, timeout: Duration) -> Result<Head, Failure> {
        upload.begin();
        link.sending.clear();
        request::encode(&mut link.sending, self.method, self.target, &self.headers, &self.origin, upload.framing());
        link.stall.begin(self.body_timeout, Some(timeout));
        let mut interim = 0;
        poll_fn(|cx| {
            let advanced = self.advance(cx, link, upload, &mut interim);
            if advanced.is_ready() {
                return advanced;
            }
            let position = upload.position(link);
            Poll::Ready(Err(match ready!(link.stall.poll(cx, position)) {
                Stalled::Client(limit) => Failure::BodyTimeout(limit),
                Stalled::Upstream(limit) => Failure::Timeout(limit),
            }))
        })
        .await
    }

    /// Brings the exchange on as far as it goes, and counts interim responses.
    fn advance(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Link,
        upload: &mut Upload,
        interim: &mut u32,
    ) -> Poll<Result<Head, Failure>> {
        match upload.poll(cx, link) {
            Poll::Ready(Err(UploadError::Client(error))) => return Poll::Ready(Err(Failure::Client(error))),
            Poll::Ready(Err(UploadError::TooLarge)) => return Poll::Ready(Err(Failure::TooLarge)),
            // What an upstream that takes no more has to say may be on its way already; if not, reading will tell.
            Poll::Pending | Poll::Ready(Ok(()) | Err(UploadError::Upstream)) => {}
        }
        loop {
            if !link.received.is_empty() {
                let parsed = response::parse(&mut link.received, self.method, &mut self.headers, interim);
                if let Some(head) = parsed.map_err(Failure::Bad)? {
                    return Poll::Ready(Ok(head));
                }
            }
            let nothing_came = link.received.is_empty() && *interim == 0;
            match ready!(link.poll_fill(cx, false)) {
                Ok(0) if nothing_came => {
                    return Poll::Ready(Err(Failure::Closed(io::ErrorKind::UnexpectedEof.into())));
                }
                Err(error) if nothing_came => return Poll::Ready(Err(Failure::Closed(error))),
                Ok(0) | Err(_) => return Poll::Ready(Err(Failure::Bad(BadHead::CutOff))),
                Ok(_) => {}
            }
        }
    }
}

/// Spreads turns evenly (smooth weighted round-robin): each turn goes to the one that is owed most.
fn turns(weights: &[u32]) -> Vec<usize> {
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
        assert_eq!(turns(&[1]), [0]);
        assert_eq!(turns(&[1, 1]), [0, 1]);
        assert_eq!(turns(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(turns(&[]), Vec::<usize>::new());
        assert_eq!(turns(&[100, 50, 1]).len(), 151);
    }
}
