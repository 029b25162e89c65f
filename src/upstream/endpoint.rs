//! One server of an upstream, as requests reach it, and the endpoints of all upstreams, with what all workers share about
//! each. They outlive a reload, with their state.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::connection_limits::Places;
use super::endpoint_state::EndpointState;
use super::load::ClientBit;
use super::resend::RetryBudget;
use crate::base::clock::Monotonic;
use crate::base::metrics::{HistogramSnapshot, SharedCounter};
use crate::net::tls::ConnectorTls;

/// One server of an upstream. If its name has several addresses, each of them is an endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// Connections are pooled by this id. No id is used twice, because requests of an earlier snapshot may still use the ids
    /// of removed endpoints.
    pub id: usize,
    pub target: Destination,
    pub(super) state: EndpointState,
    /// Shared by all workers.
    pub(super) upstream: Arc<UpstreamState>,
    /// The places of the connections to all servers.
    pub(super) places: Arc<Places>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    pub address: DestinationAddress,
    pub authority: HeaderValue,
    /// `None` without TLS.
    pub tls: Option<TargetTls>,
    /// Whether it is spoken to in HTTP/2: with TLS if the server agrees, without TLS always.
    pub http2: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DestinationAddress {
    Socket(SocketAddr),
    /// A name that is not resolved yet, and a port.
    Name(String, u16),
    Unix(PathBuf),
    /// The built-in server. The system picks its port at each start.
    Echo(SocketAddr),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TargetTls {
    /// Who is trusted, and which certificate is shown.
    pub settings: ConnectorTls,
    pub server_name: ServerName<'static>,
}

impl Destination {
    /// Whether the other one is the same server at an address of the other family: an upstream has each name only once.
    pub(super) fn is_sibling(&self, other: &Self) -> bool {
        match (&self.address, &other.address) {
            (DestinationAddress::Socket(one), DestinationAddress::Socket(two)) => {
                one.is_ipv4() != two.is_ipv4() && self.authority == other.authority
            }
            _ => false,
        }
    }

    /// With TLS, a server of HTTP/2 agrees on HTTP/1.1, too, for requests that need a connection of their own.
    pub(super) fn is_offered_http2(&self, needs_own: impl FnOnce() -> bool) -> bool {
        self.http2 && !(self.tls.is_some() && needs_own())
    }
}

impl fmt::Display for DestinationAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Echo(_) => f.write_str("builtin:echo"),
        }
    }
}

impl Endpoint {
    /// As spans have them.
    pub(super) fn server(&self) -> (String, Option<u16>) {
        match &self.target.address {
            DestinationAddress::Socket(address) | DestinationAddress::Echo(address) => {
                (address.ip().to_string(), Some(address.port()))
            }
            DestinationAddress::Name(name, port) => (name.clone(), Some(*port)),
            DestinationAddress::Unix(path) => (path.display().to_string(), None),
        }
    }

    pub(super) fn was_reached(&self) -> bool {
        self.state.load.latency().is_some()
    }

    /// A request is no longer in flight, so another one may begin.
    pub(super) fn free_place(&self) {
        self.state.load.end();
        self.upstream.has_room();
    }

    /// The times from sending a request to the head of its response. Errors, and requests whose bodies were not sent
    /// completely, are not measured.
    pub fn latencies(&self) -> HistogramSnapshot {
        self.state.load.latencies()
    }
}

/// The place of a cancelled request, because the server does not know yet that it is cancelled. Free when this is dropped.
#[derive(Debug)]
pub(super) struct KeptPlace(Arc<Endpoint>);

impl KeptPlace {
    /// Must be called while the request is still in flight, so that no other one gets its place.
    pub(super) fn new(endpoint: &Arc<Endpoint>) -> Self {
        endpoint.state.load.stays();
        Self(endpoint.clone())
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        self.0.free_place();
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.address.fmt(f)
    }
}

#[derive(Debug)]
pub struct Endpoints {
    known: Mutex<Known>,
    workers: usize,
    places: Arc<Places>,
}

#[derive(Debug, Default)]
struct Known {
    upstreams: BTreeMap<String, OfUpstream>,
    last_id: usize,
}

/// The endpoints of one upstream. A connection that was made with other settings must not be used, so each combination is
/// an endpoint.
#[derive(Debug, Default)]
struct OfUpstream {
    endpoints: Vec<Arc<Endpoint>>,
    state: Arc<UpstreamState>,
}

impl Endpoints {
    /// For so many workers, with at most `connections`.
    pub fn new(workers: usize, connections: usize) -> Self {
        Self { known: Mutex::default(), workers, places: Arc::new(Places::new(connections)) }
    }

    /// It stays the same while somebody uses it.
    pub(super) fn get(&self, upstream: &str, target: Destination, is_checked: bool) -> Arc<Endpoint> {
        let Known { upstreams, last_id } = &mut *self.known.lock();
        let OfUpstream { endpoints, state: upstream } = upstreams.entry(upstream.to_owned()).or_default();
        if let Some(known) = endpoints.iter().find(|known| known.target == target) {
            return known.clone();
        }
        *last_id += 1;
        let (state, upstream) = (EndpointState::new(is_checked, self.workers), upstream.clone());
        let places = self.places.clone();
        let endpoint = Arc::new(Endpoint { id: *last_id, target, state, upstream, places });
        endpoints.push(endpoint.clone());
        endpoint
    }

    pub(super) fn state(&self, upstream: &str) -> Arc<UpstreamState> {
        self.known.lock().upstreams.entry(upstream.to_owned()).or_default().state.clone()
    }

    /// Drops the endpoints that nobody uses: no upstream, be it in force or being built, and no request. Nothing else drops
    /// one, since lookups and reloads add some at any time.
    pub fn drop_unused(&self) {
        self.known.lock().upstreams.retain(|_, OfUpstream { endpoints, .. }| {
            // Every user got its clone from here.
            endpoints.retain(|endpoint| Arc::strong_count(endpoint) > 1);
            !endpoints.is_empty()
        });
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.known.lock().upstreams.values().map(|upstream| upstream.endpoints.len()).sum()
    }
}

/// How many requests an upstream got, and which wait for a server.
#[derive(Debug, Default)]
pub(super) struct UpstreamState {
    pub(super) requests: SharedCounter,
    budget: Mutex<RetryBudget>,
    pub(super) retries: SharedCounter,
    pub(super) refused_retries: SharedCounter,
    /// For how many requests no server had room.
    pub(super) full: SharedCounter,
    waiting: AtomicUsize,
    /// For each configuration with waiting requests, tells the request that is sent next that an endpoint may have room.
    room: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryCounts {
    pub sent: u64,
    /// Requests that were not sent again, because the budget was used up.
    pub refused: u64,
}

impl UpstreamState {
    /// Records how many requests there were. Must be called every second, or a little more often.
    pub(super) fn observe(&self, now: Monotonic) {
        self.budget.lock().observe(now.seconds(), self.requests.get());
    }

    /// Whether one more request of this client may be sent again. At most `share` of all may be, in thousandths.
    pub(super) fn take_retry(&self, share: u32, client: ClientBit, is_alone: bool, now: Monotonic) -> bool {
        let requests = self.requests.get();
        let is_allowed = self.budget.lock().take(now.seconds(), requests, share, client, is_alone);
        let counter = if is_allowed { &self.retries } else { &self.refused_retries };
        counter.one();
        is_allowed
    }

    /// At most `most` requests may wait.
    pub(super) fn wait(&self, most: usize) -> Option<WaitingRequest<'_>> {
        let waiting = WaitingRequest(self);
        // If there are too many, the drop of `waiting` corrects the number.
        (self.waiting.fetch_add(1, Ordering::SeqCst) < most).then_some(waiting)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// An endpoint may have room for another request. Waiting requests look again.
    pub(super) fn has_room(&self) {
        if self.waiting() > 0 {
            self.room.notify_waiters();
        }
    }
}

/// Until this is dropped, a request waits.
pub(super) struct WaitingRequest<'a>(&'a UpstreamState);

impl WaitingRequest<'_> {
    /// Ready when an endpoint may have got room since this was called.
    pub(super) fn room(&self) -> Notified<'_> {
        self.0.room.notified()
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::Authorities;

    fn target(host: &str, port: u16) -> Destination {
        let address = DestinationAddress::Name(host.to_owned(), port);
        Destination { address, authority: HeaderValue::from_static("a"), tls: None, http2: false }
    }

    fn with_tls(name: &'static str) -> Destination {
        // Nobody is trusted, which makes no difference here.
        let settings = ConnectorTls::new(Authorities::new(Vec::new()).unwrap(), None).unwrap();
        let tls = TargetTls { settings, server_name: name.try_into().unwrap() };
        Destination { tls: Some(tls), ..target("a", 1) }
    }

    #[test]
    fn whatever_makes_a_difference_for_a_connection_makes_another_endpoint() {
        let endpoints = Endpoints::new(1, 100);
        let all = || {
            let http2 = |target| Destination { http2: true, ..target };
            let authority = |target| Destination { authority: HeaderValue::from_static("b"), ..target };
            [
                target("a", 1),
                target("b", 1),
                target("a", 2),
                http2(target("a", 1)),
                authority(target("a", 1)),
                with_tls("a"),
                with_tls("b"),
                http2(with_tls("a")),
            ]
        };
        let get = |upstream| all().map(|target| endpoints.get(upstream, target, false));
        let ids = |upstream| get(upstream).map(|endpoint| endpoint.id);
        assert_eq!(ids("x"), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ids("x"), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ids("y"), [9, 10, 11, 12, 13, 14, 15, 16]);
        let (second, of_y) = (get("x")[1].clone(), get("y"));
        endpoints.drop_unused();
        assert_eq!(ids("x"), [17, 2, 18, 19, 20, 21, 22, 23], "no id is used twice");
        drop(second);
        endpoints.drop_unused();
        assert_eq!(endpoints.count(), 8);
        drop(of_y);
        endpoints.drop_unused();
        assert_eq!(endpoints.count(), 0);
    }
}
