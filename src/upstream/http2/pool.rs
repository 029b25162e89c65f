//! The connections of one worker over which it speaks HTTP/2: few for each endpoint, which many requests share.
//!
//! A request gets a further connection if others could hold it up or break it: see [`Placement`]. If no connection can be
//! made, it shares any: a delay is better than a refusal. Requests that need a connection at the same time wait for one
//! attempt, which has its own task, so that it goes on if its first request is cancelled.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use http::Version;
use tokio::sync::watch;
use tokio::task::spawn_local;

use super::clients::Clients;
use super::connection::{Http2Connection, OpenStream, Placement};
use crate::base::concurrency::ConcurrencyPermit;
use crate::upstream::connection_limits::Keep;
use crate::upstream::connector::Connector;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::error::UpstreamError;
use crate::upstream::request::UpstreamRequest;
use crate::upstream::stream::{Offered, UpstreamStream};

/// How many streams a server probably allows: no server should allow fewer (RFC 9113, section 6.5.2).
const INITIAL_LIMIT: usize = 100;
/// With so many connections to a server, requests share them with others. Connections that clients share and those of
/// single clients are counted separately.
const MOST_SPREAD: usize = 8;

#[derive(Debug, Default)]
pub(in crate::upstream) struct Http2Pool {
    /// By the id of the endpoint.
    servers: RefCell<HashMap<usize, Server, RandomState>>,
}

#[derive(Debug)]
struct Server {
    connections: Vec<Rc<Http2Connection>>,
    attempts: Vec<Attempt>,
    streams: Rc<Cell<usize>>,
    clients: Clients,
    /// How many streams the server allows on a connection, as far as is known.
    limit: usize,
    /// Since when it is known that the server chooses HTTP/1.1.
    speaks_http1_since: Option<Instant>,
}

/// The connection, or none if the server chooses HTTP/1.1.
type Attempted = Result<Weak<Http2Connection>, UpstreamError>;

#[derive(Debug)]
struct Attempt {
    /// The client to which the connection will belong; `None` if clients share it.
    owner: Option<SocketAddr>,
    /// `None` until the attempt is over.
    result: watch::Receiver<Option<Rc<Attempted>>>,
    waiting: usize,
}

impl Default for Server {
    fn default() -> Self {
        let (connections, attempts, clients) = (Vec::new(), Vec::new(), Clients::default());
        let (streams, limit) = (Rc::default(), INITIAL_LIMIT);
        Self { connections, attempts, streams, clients, limit, speaks_http1_since: None }
    }
}

impl Server {
    /// How many connections belong to single clients (`are_owned`), or are shared. Attempts count, too.
    fn count(&self, are_owned: bool) -> usize {
        let counts = |one: &&Rc<Http2Connection>| !one.is_retired() && one.is_owned() == are_owned;
        self.connections.iter().filter(counts).count()
            + self.attempts.iter().filter(|attempt| attempt.owner.is_some() == are_owned).count()
    }

    /// Whether there may be a further connection to this endpoint: one of the `owner`, or a shared one without an owner.
    fn may_spread(&mut self, endpoint: &Endpoint, owner: Option<SocketAddr>) -> bool {
        self.connections.retain(|connection| connection.is_needed());
        self.count(owner.is_some()) < MOST_SPREAD && !endpoint.places.are_taken()
    }

    /// `None` if all are worse than `worst`.
    fn best(
        &self,
        owner: Option<SocketAddr>,
        has_body: bool,
        worst: Placement,
        keep: Keep,
        now: Instant,
    ) -> Option<&Rc<Http2Connection>> {
        let usable = |one: &&Rc<Http2Connection>| now < one.connected_at + keep.age && !one.is_full();
        let best = self.connections.iter().filter(usable).min_by_key(|one| one.placement(owner, has_body));
        best.filter(|best| best.placement(owner, has_body) <= worst)
    }
}

impl Http2Pool {
    /// A stream on an existing connection, if one suits the request well enough.
    pub(in crate::upstream) fn take(
        &self,
        endpoint: &Endpoint,
        request: &UpstreamRequest<'_>,
        keep: Keep,
        now: Instant,
    ) -> Option<OpenStream> {
        let mut servers = self.servers.borrow_mut();
        let server = servers.get_mut(&endpoint.id)?;
        let has_body = request.body.is_some();
        let client = server.clients.begin(address(request), has_body);
        let worst =
            if server.may_spread(endpoint, client.owner) { Placement::Well } else { Placement::Crowded(usize::MAX) };
        let connection = server.best(client.owner, has_body, worst, keep, now)?;
        Some(connection.begin(client, false))
    }

    /// A stream to this endpoint for this request, over a connection that may be used at `now`; `None` if the server chooses
    /// HTTP/1.1. Requests have the time limit `timeout`. The error says why there is no connection.
    pub(in crate::upstream) async fn stream(
        self: &Rc<Self>,
        endpoint: &Arc<Endpoint>,
        connector: &Connector,
        timeout: Duration,
        request: &UpstreamRequest<'_>,
        keep: Keep,
        now: Instant,
    ) -> Result<Option<OpenStream>, UpstreamError> {
        let has_body = request.body.is_some();
        let begin = |server: &mut Server| server.clients.begin(address(request), has_body);
        let client = begin(self.servers.borrow_mut().entry(endpoint.id).or_default());
        let (owner, mut made, mut failed) = (client.owner, None::<Weak<Http2Connection>>, None);
        loop {
            let mut result = {
                let mut servers = self.servers.borrow_mut();
                let server = servers.entry(endpoint.id).or_default();
                let may_spread = server.may_spread(endpoint, owner);
                let worst = match (made.is_some() || failed.is_some(), may_spread) {
                    (true, _) => Placement::Badly,
                    (false, true) => Placement::Well,
                    (false, false) => Placement::Crowded(usize::MAX),
                };
                if let Some(connection) = server.best(owner, has_body, worst, keep, now) {
                    return Ok(Some(connection.begin(client, made.is_some())));
                }
                if let Some(error) = failed {
                    return Err(error);
                }
                if server.speaks_http1_since.is_some() {
                    return Ok(None);
                }
                let is_useless = |made: Rc<Http2Connection>| made.is_idle() && !made.is_open() || made.allows_nothing();
                if made.as_ref().is_some_and(|made| made.upgrade().is_none_or(is_useless)) {
                    // The server accepts connections, and at once it closes them or allows no request on them.
                    return Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into()));
                }
                let joins = |attempt: &&mut Attempt| attempt.owner == owner && attempt.waiting < server.limit;
                let attempt = server.attempts.iter_mut().find(joins).filter(|_| !has_body || !may_spread);
                if let Some(attempt) = attempt {
                    attempt.waiting += 1;
                    attempt.result.clone()
                } else {
                    server.connections.retain(|connection| !connection.allows_nothing());
                    // The first connection is for all clients.
                    let many = request.many_from().filter(|_| !server.connections.is_empty());
                    match many.map(|client| endpoint.places.share(client)).transpose() {
                        Ok(share) => {
                            let result = self.connect(endpoint, connector, timeout, now, server.streams.clone(), share);
                            server.attempts.push(Attempt { owner, result: result.clone(), waiting: 1 });
                            result
                        }
                        Err(error) => {
                            failed = Some(error);
                            continue;
                        }
                    }
                }
            };
            let ended = result.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
            match ended.as_deref() {
                Some(Ok(connection)) => made = Some(connection.clone()),
                Some(Err(error)) => failed = Some(error.of_another_request()),
                None => return Err(UpstreamError::Connect(io::Error::other("the attempt ended unexpectedly"))),
            }
        }
    }

    /// Whether the endpoint with this id was offered HTTP/2 and has chosen HTTP/1.1.
    pub(in crate::upstream) fn chooses_http1(&self, endpoint: usize) -> bool {
        self.servers.borrow().get(&endpoint).is_some_and(|server| server.speaks_http1_since.is_some())
    }

    pub(in crate::upstream) fn is_connected(&self, endpoint: usize) -> bool {
        let servers = self.servers.borrow();
        servers.get(&endpoint).is_some_and(|server| server.connections.iter().any(|connection| connection.is_open()))
    }

    /// Closes all idle connections except those of this server. Their tasks end them when they run next.
    pub(in crate::upstream) fn make_room(&self, server: usize) {
        for (_, other) in self.servers.borrow_mut().iter_mut().filter(|(other, _)| **other != server) {
            other.connections.retain(|connection| !connection.is_idle());
        }
    }

    fn connect(
        self: &Rc<Self>,
        endpoint: &Arc<Endpoint>,
        connector: &Connector,
        timeout: Duration,
        now: Instant,
        streams: Rc<Cell<usize>>,
        share: Option<ConcurrencyPermit>,
    ) -> watch::Receiver<Option<Rc<Attempted>>> {
        let (sender, result) = watch::channel(None);
        let (pool, endpoint, connector) = (self.clone(), endpoint.clone(), connector.clone());
        let this = result.clone();
        spawn_local(async move {
            let open = async |stream: UpstreamStream| {
                if stream.is_tls() && !stream.has_chosen_http2() {
                    return Ok(None);
                }
                Http2Connection::open(stream, endpoint.clone(), timeout, now, streams, share).await.map(Some)
            };
            let connected = connector.connect(&endpoint, None, Offered::Http2, open).await;
            let mut servers = pool.servers.borrow_mut();
            let server = servers.entry(endpoint.id).or_default();
            server.attempts.retain(|attempt| !attempt.result.same_channel(&this));
            let ended = connected.map(|connection| match connection {
                Some(connection) => {
                    server.speaks_http1_since = None;
                    server.limit = connection.limit().max(1);
                    server.connections.push(connection.clone());
                    Rc::downgrade(&connection)
                }
                None => {
                    server.speaks_http1_since = Some(now);
                    Weak::new()
                }
            });
            // The requests that have waited may have ended.
            let _ = sender.send(Some(Rc::new(ended)));
        });
        result
    }

    /// Pings servers that are silent, and closes connections whose time is over, once their streams have ended. `keep_of` says
    /// how long those to an endpoint are kept; `None` if no upstream has it any more.
    pub(in crate::upstream) fn check(&self, now: Instant, keep_of: impl Fn(usize) -> Option<Keep>) {
        self.servers.borrow_mut().retain(|id, server| {
            let keep = keep_of(*id);
            server.clients.check(now);
            server.connections.retain(|connection| {
                let idle_since = connection.check(now);
                if keep.is_none_or(|keep| now >= connection.connected_at + keep.age) {
                    connection.retire();
                }
                let is_idle_for_long = |keep: Keep| {
                    let is_over = |since| now - since >= keep.idle || connection.is_place_wanted();
                    idle_since.is_some_and(is_over)
                };
                let is_unused = keep.is_some_and(is_idle_for_long) && connection.cancelled.count() == 0;
                !is_unused && connection.is_needed()
            });
            let forgets =
                keep.is_none_or(|keep| server.speaks_http1_since.is_some_and(|since| now >= since + keep.age));
            if forgets {
                server.speaks_http1_since = None;
            }
            !server.connections.is_empty() || !server.attempts.is_empty() || server.speaks_http1_since.is_some()
        });
    }
}

/// Distinguishes the client of a request. Port 0 stands for all connections of HTTP/1.1 of a client.
fn address(request: &UpstreamRequest<'_>) -> SocketAddr {
    let of_connection =
        |client: &SocketAddr| if request.head.forwarded.version == Version::HTTP_2 { client.port() } else { 0 };
    let client = request.address().map(|client| SocketAddr::new(client.ip(), of_connection(&client)));
    client.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
}
