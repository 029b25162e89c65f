//! The connections of one worker over which it speaks HTTP/2: few for each endpoint, which many requests share.
//!
//! Requests that need a connection at the same time wait for one attempt to connect, as many of them as one connection may
//! carry. An attempt has its own task, so that it goes on if the request that began it is cancelled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tokio::sync::watch;
use tokio::task::spawn_local;

use super::connection::{Http2Connection, OpenStream};
use crate::upstream::connector::Connector;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::error::UpstreamError;
use crate::upstream::keep::Keep;
use crate::upstream::stream::{Offered, UpstreamStream};

/// How many streams a server probably allows: no server should allow fewer (RFC 9113, section 6.5.2).
const INITIAL_LIMIT: usize = 100;

/// See the head of this file.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Http2Pool {
    /// By the id of the endpoint.
    servers: RefCell<HashMap<usize, Server, RandomState>>,
}

/// The connections to one endpoint.
#[derive(Debug)]
struct Server {
    connections: Vec<Rc<Http2Connection>>,
    /// The last attempt to make another one, if it is not over.
    attempt: Option<Attempt>,
    /// How many attempts are not over.
    attempts: usize,
    /// How many streams the server allows on a connection, as far as is known.
    limit: usize,
    /// Since when it is known that the server chooses HTTP/1.1.
    speaks_http1_since: Option<Instant>,
}

/// An attempt to connect.
#[derive(Debug)]
struct Attempt {
    /// Its result, when it is over.
    result: watch::Receiver<Option<Rc<Result<(), UpstreamError>>>>,
    /// How many requests wait for it.
    waiting: usize,
}

impl Default for Server {
    fn default() -> Self {
        let (connections, limit) = (Vec::new(), INITIAL_LIMIT);
        Self { connections, attempt: None, attempts: 0, limit, speaks_http1_since: None }
    }
}

/// What a server speaks.
#[derive(Debug)]
pub(in crate::upstream) enum Spoken {
    /// HTTP/1.1, although it was offered HTTP/2.
    Http1,
    /// HTTP/2. The stream is on a connection that `is_new`, or on one that other requests have used.
    Http2 {
        /// A stream of a connection.
        stream: OpenStream,
        /// Whether the connection was made for this request.
        is_new: bool,
    },
}

impl Http2Pool {
    /// A stream to this endpoint, over a connection that may be used at `now`. Requests have the time limit `timeout`.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(in crate::upstream) async fn stream(
        self: &Rc<Self>,
        endpoint: &Arc<Endpoint>,
        connector: &Connector,
        timeout: Duration,
        (keep, now): (Keep, Instant),
    ) -> Result<Spoken, UpstreamError> {
        let mut is_new = false;
        loop {
            let mut result = {
                let mut servers = self.servers.borrow_mut();
                let server = servers.entry(endpoint.id).or_default();
                server.connections.retain(|connection| connection.is_open());
                let usable = |connection: &&Rc<Http2Connection>| {
                    now < connection.connected_at + keep.age && !connection.is_full()
                };
                if let Some(connection) = server.connections.iter().find(usable) {
                    return Ok(Spoken::Http2 { stream: connection.begin(), is_new });
                }
                if server.speaks_http1_since.is_some() {
                    return Ok(Spoken::Http1);
                }
                if is_new && server.connections.is_empty() {
                    // The server accepts connections and closes them at once.
                    return Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into()));
                }
                match &mut server.attempt {
                    Some(attempt) if attempt.waiting < server.limit => {
                        attempt.waiting += 1;
                        attempt.result.clone()
                    }
                    _ => {
                        let result = self.connect(endpoint, connector, timeout, now);
                        server.attempt = Some(Attempt { result: result.clone(), waiting: 1 });
                        server.attempts += 1;
                        result
                    }
                }
            };
            let ended = result.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
            match ended.as_deref() {
                Some(Ok(())) => is_new = true,
                Some(Err(error)) => return Err(error.of_another_request()),
                None => return Err(UpstreamError::Connect(io::Error::other("the attempt ended unexpectedly"))),
            }
        }
    }

    /// Whether there is a connection to the endpoint with this id.
    pub(in crate::upstream) fn is_connected(&self, endpoint: usize) -> bool {
        let servers = self.servers.borrow();
        servers.get(&endpoint).is_some_and(|server| server.connections.iter().any(|connection| connection.is_open()))
    }

    /// Begins an attempt to connect.
    fn connect(
        self: &Rc<Self>,
        endpoint: &Arc<Endpoint>,
        connector: &Connector,
        timeout: Duration,
        now: Instant,
    ) -> watch::Receiver<Option<Rc<Result<(), UpstreamError>>>> {
        let (sender, result) = watch::channel(None);
        let (pool, endpoint, connector) = (self.clone(), endpoint.clone(), connector.clone());
        let this = result.clone();
        spawn_local(async move {
            let connected = connect(&endpoint, &connector, timeout, now).await;
            let mut servers = pool.servers.borrow_mut();
            let server = servers.entry(endpoint.id).or_default();
            server.attempts -= 1;
            server.attempt.take_if(|attempt| attempt.result.same_channel(&this));
            let ended = connected.map(|connection| match connection {
                Some(connection) => {
                    server.speaks_http1_since = None;
                    server.limit = connection.limit();
                    server.connections.push(connection);
                }
                None => server.speaks_http1_since = Some(now),
            });
            // The requests that have waited may have ended.
            let _ = sender.send(Some(Rc::new(ended)));
        });
        result
    }

    /// Asks servers that are silent, and closes connections whose time is over, once their streams have ended. `keep_of` says
    /// how long those to an endpoint are kept; `None` if no upstream has it any more.
    pub(in crate::upstream) fn check(&self, now: Instant, keep_of: impl Fn(usize) -> Option<Keep>) {
        self.servers.borrow_mut().retain(|id, server| {
            let keep = keep_of(*id);
            server.connections.retain(|connection| {
                let idle_since = connection.check(now);
                let is_kept = keep.is_some_and(|keep| {
                    let is_idle = idle_since.is_some_and(|since| now - since >= keep.idle);
                    now < connection.connected_at + keep.age && !is_idle
                });
                is_kept && connection.is_open()
            });
            let forgets =
                keep.is_none_or(|keep| server.speaks_http1_since.is_some_and(|since| now >= since + keep.age));
            if forgets {
                server.speaks_http1_since = None;
            }
            !server.connections.is_empty() || server.attempts > 0 || server.speaks_http1_since.is_some()
        });
    }
}

/// A new connection; `None` if the server chooses HTTP/1.1.
async fn connect(
    endpoint: &Endpoint,
    connector: &Connector,
    timeout: Duration,
    now: Instant,
) -> Result<Option<Rc<Http2Connection>>, UpstreamError> {
    let open = async |stream: UpstreamStream| {
        if stream.is_tls() && !stream.has_chosen_http2() {
            return Ok(None);
        }
        Http2Connection::open(stream, timeout, now).await.map(Some)
    };
    connector.connect_and(endpoint, None, Offered::Http2, open).await
}
