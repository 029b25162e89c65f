//! The limits on the connections of all workers together: how many there may be, in total, from one address, and by the
//! system's limit of file handles, and how long each may take. Counting takes three locked instructions for a connection and
//! none for a request.
//!
//! When all places are taken, an accepted connection waits for one, and its worker accepts no other meanwhile. To free places,
//! idle connections are asked to end: the worker's own first, the longest idle first, else the next one that becomes idle. They
//! end as in a drain. An HTTP/2 connection may take seconds to end; no other one is asked for the same place during that time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Notify;

use super::http2_errors::Http2Errors;
use crate::base::clock;
use crate::base::concurrency::{ConcurrencyLimiter, ConcurrencyPermit};
use crate::base::repeated_event::RepeatedEvent;
use crate::config::{MaxConnections, Server};
use crate::net::{PreambleError, Traffic, network_key};

/// File handles for the log, configuration files, and up to 32 connections to the admin listener.
const OTHERS: u64 = 64;
/// File handles for each worker: those of its runtime, and an accepted connection that waits for a place.
const EACH_WORKER: u64 = 8;

/// Each kind of traffic has places of its own, so that clients cannot keep out proxies that ask for decisions.
#[derive(Clone, Debug)]
pub struct TrafficLimits([Arc<ConnectionLimits>; 2]);

#[derive(Debug)]
pub struct ConnectionLimits {
    server: ArcSwap<Server>,
    /// What the file handles allow: the number for `max_connections = "auto"`, and the most for any other. Beyond it, clients
    /// would take the handles that the rest of the gateway needs, such as its answers to probes.
    auto: usize,
    open: AtomicUsize,
    /// Empty if the number for each address is not limited.
    by_address: Arc<ConcurrencyLimiter>,
    /// Accepted connections that wait for a place.
    waiting: AtomicUsize,
    /// Wanted places for which no connection has been told to end yet.
    wanted: AtomicUsize,
    /// Connections that were told to end, and are expected to free their places soon.
    ending: AtomicUsize,
    /// Tells all workers that places are wanted.
    pub(super) asked: Notify,
    pub(super) freed: Notify,
    /// Closed because their address has too many connections.
    refused: RepeatedEvent,
    /// Closed because they had no valid preamble of the PROXY protocol.
    bad_preambles: RepeatedEvent,
    /// Not accepted because file handles or memory are exhausted.
    exhausted: RepeatedEvent,
    accepted: AtomicU64,
    made_room: AtomicU64,
    /// Ended because the client did not read.
    stalled: AtomicU64,
    /// One for both kinds of traffic.
    pub http2_errors: Arc<Http2Errors>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCounts {
    pub open: usize,
    /// Only those that got a place.
    pub accepted: u64,
    /// The maximum of `open`.
    pub most: usize,
    /// Their address has too many.
    pub refused: u64,
    pub bad_preambles: u64,
    /// Idle connections that were ended to free their places.
    pub made_room: u64,
    pub stalled: u64,
    pub exhausted: u64,
}

impl TrafficLimits {
    /// `auto` is the number of connections of each kind that the system allows.
    pub fn new(server: &Server, auto: usize) -> Self {
        warn_of_handles(server, auto);
        let [requests, mut decisions] = [(); 2].map(|()| ConnectionLimits::new(server.clone(), auto));
        decisions.http2_errors = requests.http2_errors.clone();
        Self([requests, decisions].map(Arc::new))
    }

    pub fn of(&self, traffic: Traffic) -> &Arc<ConnectionLimits> {
        &self.0[traffic as usize]
    }

    /// Replaces the limits. Connections that are open stay open.
    pub fn reload(&self, server: &Server) {
        warn_of_handles(server, self.of(Traffic::Requests).auto);
        self.0.iter().for_each(|limits| limits.reload(server.clone()));
    }
}

impl ConnectionLimits {
    /// `auto` is the number of connections that the system allows.
    pub fn new(server: Server, auto: usize) -> Self {
        Self {
            server: ArcSwap::from_pointee(server),
            auto,
            open: AtomicUsize::new(0),
            by_address: Arc::default(),
            waiting: AtomicUsize::new(0),
            wanted: AtomicUsize::new(0),
            ending: AtomicUsize::new(0),
            asked: Notify::new(),
            freed: Notify::new(),
            refused: RepeatedEvent::default(),
            bad_preambles: RepeatedEvent::default(),
            exhausted: RepeatedEvent::default(),
            accepted: AtomicU64::new(0),
            made_room: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            http2_errors: Arc::default(),
        }
    }

    fn reload(&self, server: Server) {
        self.server.store(Arc::new(server));
        self.freed.notify_waiters();
    }

    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            open: self.open.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            most: self.most(),
            refused: self.refused.count(),
            bad_preambles: self.bad_preambles.count(),
            made_room: self.made_room.load(Ordering::Relaxed),
            stalled: self.stalled.load(Ordering::Relaxed),
            exhausted: self.exhausted.count(),
        }
    }

    pub(super) fn server(&self) -> arc_swap::Guard<Arc<Server>> {
        self.server.load()
    }

    fn most(&self) -> usize {
        match self.server().max_connections {
            MaxConnections::Auto => self.auto,
            MaxConnections::Number(most) => most.min(self.auto),
        }
    }

    /// Until the result is dropped.
    pub(super) fn wait(&self) -> PlaceWait<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.wanted.fetch_add(1, Ordering::SeqCst);
        PlaceWait(self)
    }

    /// Wants at least one place, unless enough connections are already ending for all that wait.
    pub(super) fn want_one(&self) {
        if self.ending.load(Ordering::SeqCst) < self.waiting.load(Ordering::SeqCst).max(1) {
            self.wanted.fetch_max(1, Ordering::SeqCst);
        }
    }

    /// A connection is about to free its place (`is_so`), or no longer is.
    pub(super) fn count_ending(&self, is_so: bool) {
        match is_so {
            true => self.ending.fetch_add(1, Ordering::SeqCst),
            false => self.ending.fetch_sub(1, Ordering::SeqCst),
        };
    }

    pub(super) fn ask_others(&self) {
        if self.wanted.load(Ordering::SeqCst) > 0 {
            self.asked.notify_waiters();
        }
    }

    /// Whether a connection must end because its place is wanted. The caller must then end one, or call
    /// [`ConnectionLimits::unclaim`].
    #[inline]
    pub(super) fn claim(&self) -> bool {
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let claimed =
            self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |wanted| wanted.checked_sub(1)).is_ok();
        if claimed {
            self.made_room.fetch_add(1, Ordering::Relaxed);
        }
        claimed
    }

    /// Undoes [`ConnectionLimits::claim`], because no connection is idle.
    pub(super) fn unclaim(&self) {
        self.made_room.fetch_sub(1, Ordering::Relaxed);
        self.wanted.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn stalled(&self, peer: SocketAddr) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%peer, "the client does not read what it is sent");
    }

    pub(super) fn count_bad_preamble(&self, peer: SocketAddr, error: &PreambleError) {
        if let Some(count) = self.bad_preambles.add(clock::now()) {
            tracing::warn!(%peer, %error, count, "closed connections without a valid preamble of the PROXY protocol");
        }
    }

    pub(super) fn count_exhausted(&self, error: &io::Error) {
        if let Some(count) = self.exhausted.add(clock::now()) {
            tracing::error!(%error, count, "cannot accept connections");
        }
    }

    /// Wants one place fewer, unless a connection was already told to end for it.
    pub(super) fn withdraw(&self) {
        let _ = self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |wanted| wanted.checked_sub(1));
    }
}

pub(super) struct PlaceWait<'a>(&'a ConnectionLimits);

impl Drop for PlaceWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.withdraw();
    }
}

/// The place of a connection, which is freed on drop.
pub(super) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    /// `None` if it is not counted for an address.
    of_address: Option<ConcurrencyPermit>,
    taken: bool,
    /// Whether the connection begins with the PROXY protocol, so that the client's address is not known yet.
    pub(super) expects_preamble: bool,
}

impl ConnectionPermit {
    /// A place for a connection from `peer`, which is not taken yet. `None` if its address has too many. A connection that
    /// begins with the PROXY protocol is counted later, for the client's address.
    pub(super) fn new(limits: &Arc<ConnectionLimits>, peer: IpAddr, expects_preamble: bool) -> Option<Self> {
        let mut place = Self { limits: limits.clone(), of_address: None, taken: false, expects_preamble };
        (expects_preamble || place.count_for(peer)).then_some(place)
    }

    /// Counts the connection, which is not counted yet, for this address. Returns whether the address may have it.
    pub(super) fn count_for(&mut self, client: IpAddr) -> bool {
        let server = self.limits.server();
        let most = server.max_connections_per_ip;
        if most == 0 || server.trusts(client) {
            return true;
        }
        let counted = self.limits.by_address.acquire(network_key(client), most as u64);
        self.of_address = counted.map(|(permit, _)| permit);
        if self.of_address.is_none()
            && let Some(count) = self.limits.refused.add(clock::now())
        {
            tracing::warn!(peer = %client, most, count, "closed connections over max_connections_per_ip");
        }
        self.of_address.is_some()
    }

    /// Returns whether the connection has a place now.
    pub(super) fn take(&mut self) -> bool {
        let most = self.limits.most();
        let more = |open: usize| (open < most).then_some(open + 1);
        if !self.taken && self.limits.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
            self.limits.accepted.fetch_add(1, Ordering::Relaxed);
            self.taken = true;
        }
        self.taken
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let limits = &self.limits;
        if self.taken {
            limits.open.fetch_sub(1, Ordering::SeqCst);
            if limits.waiting.load(Ordering::SeqCst) > 0 {
                limits.freed.notify_one();
            }
        }
    }
}

/// Raises the limit of file handles of this process as far as the system allows, and returns it. Many systems have a low
/// default for programs that use `select`.
pub fn raise_handles() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of file handles");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn warn_of_handles(server: &Server, enough_for: usize) {
    if let MaxConnections::Number(max_connections) = server.max_connections
        && max_connections > enough_for
    {
        let help = "only so many are accepted: raise the limit of file handles, since a client may need two handles";
        tracing::warn!(max_connections, enough_for, help, "there are too few file handles for max_connections");
    }
}

/// How many connections, with clients and to upstreams together, `handles` allow if each worker has so many listening
/// sockets, and the store so many servers: at least two.
pub fn connections_for(handles: u64, workers: usize, listeners: usize, store_servers: usize) -> usize {
    let (workers, listeners) = (workers as u64, listeners as u64);
    let others = OTHERS + store_servers as u64 + workers * (EACH_WORKER + 2 * listeners);
    usize::try_from(handles.saturating_sub(others)).unwrap_or(usize::MAX).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_handles_are_for_other_things_and_one_client_is_always_allowed() {
        assert_eq!(connections_for(1024, 2, 1, 100), 1024 - 64 - 100 - 20);
        assert_eq!(connections_for(1_048_576, 16, 2, 0), 1_048_576 - 64 - 16 * 12);
        assert_eq!(connections_for(10, 2, 1, 1), 2);
        assert!(connections_for(u64::MAX, 2, 1, 0) > 1 << 61);
    }

    #[test]
    fn no_setting_goes_beyond_what_the_handles_allow() {
        let most = |max_connections| {
            let server = Server { max_connections, ..crate::server::tests::server() };
            ConnectionLimits::new(server, 100).counts().most
        };
        assert_eq!(most(MaxConnections::Auto), 100);
        assert_eq!(
            [1, 99, 100, 101, usize::MAX].map(|number| most(MaxConnections::Number(number))),
            [1, 99, 100, 100, 100]
        );
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        let handles = raise_handles();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(Some(handles), limit.maximum.or(Some(u64::MAX)));
    }
}
