//! Sending a request on to an upstream and bringing its answer back.
//!
//! Each worker keeps its own connections, and a request drives the one it uses from its own task: no other task
//! wakes up for it. Bodies stream both ways, at the pace of the slower side.

mod body;
pub mod headers;
mod link;
mod pool;

use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Body;

pub use body::{Outgoing, UpstreamBody};
pub use pool::Pools;

use crate::config;
use link::Link;

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
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// No connection: refused, unreachable, no such name.
    Connect(std::io::Error),
    /// No connection within this time.
    ConnectTimeout(Duration),
    /// No head of a response within this time.
    Timeout(Duration),
    /// The connection ended before the response came, or what came was no HTTP.
    Broken(hyper::Error),
}

impl Failure {
    /// What the client is answered: 504 where the upstream was slow, 502 otherwise.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Connect(_) | Self::Broken(_) => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout(_) | Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What the client is told. Names no address: that is the log's to know.
    pub fn detail(&self) -> &'static str {
        match self {
            Self::Connect(_) => "The upstream server cannot be reached.",
            Self::ConnectTimeout(_) => "The upstream server did not accept a connection in time.",
            Self::Timeout(_) => "The upstream server did not answer in time.",
            Self::Broken(_) => "The upstream server broke off before it answered, or its answer was not HTTP.",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::ConnectTimeout(limit) => write!(f, "no connection within {limit:?}"),
            Self::Timeout(limit) => write!(f, "no response within {limit:?}"),
            Self::Broken(error) => {
                write!(f, "{error}")?;
                std::error::Error::source(error).map_or(Ok(()), |source| write!(f, ": {source}"))
            }
        }
    }
}

impl Upstream {
    /// The upstream as configured, with its `servers` and their weights.
    pub fn new(config: &config::Upstream, servers: Vec<(Server, u32)>) -> Self {
        let weights: Vec<u32> = servers.iter().map(|(_, weight)| *weight).collect();
        Self {
            name: config.name.clone(),
            servers: servers.into_iter().map(|(server, _)| server).collect(),
            turns: turns(&weights),
            connect_timeout: config.connect_timeout,
            timeout: config.timeout,
            next: AtomicUsize::new(0),
        }
    }

    /// The server whose turn it is.
    pub fn choose(&self) -> Option<&Server> {
        let turn = if self.turns.len() > 1 { self.next.fetch_add(1, Ordering::Relaxed) % self.turns.len() } else { 0 };
        self.servers.get(*self.turns.get(turn)?)
    }

    /// Sends the request to `server` and returns the response as soon as its head is there.
    ///
    /// # Errors
    /// A [`Failure`] if no head comes. A connection from the pool that turns out to be closed is replaced by a new
    /// one where the request was not sent, or can be sent again without harm.
    pub async fn send(
        &self,
        server: &Server,
        pools: &Rc<Pools>,
        request: Request<Outgoing>,
    ) -> Result<Response<UpstreamBody>, Failure> {
        let exchange = self.exchange(server, pools, request);
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or(Err(Failure::Timeout(self.timeout)))
    }

    async fn exchange(
        &self,
        server: &Server,
        pools: &Rc<Pools>,
        mut request: Request<Outgoing>,
    ) -> Result<Response<UpstreamBody>, Failure> {
        while let Some((mut link, rested)) = pools.take(server.id) {
            // Only a connection that has rested can be one that the server is just closing for its age.
            let spare = if rested { replay(&request) } else { None };
            match link.send(request).await {
                Ok(response) => return Ok(UpstreamBody::attach(response, link, pools, server.id)),
                Err(failed) => match (failed.unsent, spare) {
                    (Some(unsent), _) => request = unsent,
                    (None, Some(spare)) if !failed.error.is_parse() => {
                        request = spare;
                        break;
                    }
                    (None, _) => return Err(Failure::Broken(failed.error)),
                },
            }
        }
        let mut link = self.connect(server).await?;
        let response = link.send(request).await.map_err(|failed| Failure::Broken(failed.error))?;
        Ok(UpstreamBody::attach(response, link, pools, server.id))
    }

    async fn connect(&self, server: &Server) -> Result<Box<Link>, Failure> {
        match tokio::time::timeout(self.connect_timeout, Link::connect(&server.host, server.port)).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(Failure::Connect(error)),
            Err(_) => Err(Failure::ConnectTimeout(self.connect_timeout)),
        }
    }
}

/// The same request once more, if sending it twice does no harm (RFC 9110, section 9.2.2) and there is no body
/// that would be gone.
fn replay(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let harmless = request.method().is_idempotent() && request.body().is_end_stream();
    harmless.then(|| {
        let mut again = Request::new(Outgoing::empty());
        request.method().clone_into(again.method_mut());
        request.uri().clone_into(again.uri_mut());
        request.headers().clone_into(again.headers_mut());
        again
    })
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
