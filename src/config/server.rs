//! `[server]`: the listeners for clients, their timeouts and sizes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

use super::tls::Tls;
use crate::net::Traffic;

/// The maximum body size where there is no limit.
pub const UNLIMITED: u64 = u64::MAX;

/// `[server]`: the listeners for clients, their timeouts and sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Where clients connect; none if there is only `[decisions]`.
    pub listen: Vec<Listener>,
    /// `[server.tls]`
    pub tls: Option<Tls>,
    /// `[server.http2]`
    pub http2: Http2,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// Networks whose X-Forwarded-For and Forwarded are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether every connection begins with a preamble of the PROXY protocol, which names the client.
    pub proxy_protocol: bool,
    /// Whether upstreams are told about the client in Forwarded, too.
    pub forwarded: bool,
    /// The longest time for a client to send a request head.
    pub header_timeout: Duration,
    /// The longest time that a connection stays open without a request.
    pub idle_timeout: Duration,
    /// The longest time in which a client sends no more of a request body, or reads nothing of a response.
    pub body_timeout: Option<Duration>,
    /// The maximum number of open connections.
    pub max_connections: MaxConnections,
    /// The maximum number of open connections per address, except for trusted proxies; 0 is no limit.
    pub max_connections_per_ip: usize,
    /// The largest request head in bytes.
    pub max_header_size: usize,
    /// The largest request body in bytes, or [`UNLIMITED`].
    pub max_body_size: u64,
    /// The most of a request body that is read before the decision, in bytes.
    pub inspect_body: usize,
    /// The most memory of bodies that are being read before the decision, in bytes.
    pub inspect_memory: usize,
    /// How long `/readyz` answers 503 before the listeners close.
    pub drain_delay: Duration,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout: Duration,
    /// Which spellings of a path are the same path.
    pub paths: PathRules,
    /// `[server.shed]`; `None` if requests are not shed.
    pub shed: Option<Shed>,
}

impl Server {
    /// Whether a peer with this address is a trusted proxy, which speaks for several clients.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&peer))
    }
}

/// Where clients connect, and what is spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address; the system chooses a port for port 0.
    pub address: SocketAddr,
    /// Whether TLS is spoken. Only with the `tls` of its section.
    pub tls: bool,
    /// What comes in there.
    pub traffic: Traffic,
}

/// `[server.http2]`: what a client may do on one connection of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    /// How many requests may be in flight, at least 1.
    pub max_streams: u32,
    /// The largest head of a request in bytes, as RFC 9113, section 6.5.2, counts them.
    pub max_header_list: u32,
}

/// Which spellings of a path are the same path, and what counts as a slash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// `path_matching`
    pub matching: PathMatching,
    /// `escaped_slashes`
    pub escaped_slashes: EscapedSlashes,
}

/// Whether a final slash and `;parameters` make a different path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMatching {
    /// Neither one final slash nor the text after a `;` in a segment makes a different path.
    #[default]
    Forgiving,
    /// Both make a different path.
    Exact,
}

/// How `%2F` and `%5C` in a path are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// The request is answered 400.
    #[default]
    Reject,
    /// They are part of a segment.
    Keep,
    /// They are slashes, for the upstream too.
    Decode,
}

/// The maximum number of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxConnections {
    /// As many as the limit of file handles allows.
    Auto,
    /// This many, at least 1.
    Number(usize),
}

/// `[server.shed]`: when requests of low priorities are shed. At least one of `cpu` and `latency` is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shed {
    /// The wanted share of the processors that may be in use, in thousandths.
    pub cpu: Option<u32>,
    /// The wanted time until the head of an upstream's response.
    pub latency: Option<Duration>,
    /// The status of requests that are shed, 400 to 599.
    pub status: StatusCode,
}
