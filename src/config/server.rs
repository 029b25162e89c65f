//! `[server]`: the listeners for clients, their timeouts and sizes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

use super::tls::Tls;
use crate::net::Traffic;

/// Stands for a body size without a limit.
pub const UNLIMITED: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Empty if there is only `[decisions]`.
    pub listen: Vec<Listener>,
    pub tls: Option<Tls>,
    pub http2: Http2,
    /// The number of worker threads; 0 means one per core.
    pub workers: usize,
    /// Networks whose X-Forwarded-For and Forwarded are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether every connection begins with a header of the PROXY protocol, which names the client.
    pub proxy_protocol: bool,
    /// Whether upstreams also get the client in Forwarded.
    pub forwarded: bool,
    /// The longest time for a client to send a request head.
    pub header_timeout: Duration,
    /// The longest time that a connection stays open without a request.
    pub idle_timeout: Duration,
    /// The longest time for which a client sends nothing of a request body, or reads nothing of a response.
    pub body_timeout: Option<Duration>,
    pub max_connections: MaxConnections,
    /// Per address, except for trusted proxies; 0 means no limit.
    pub max_connections_per_ip: usize,
    /// In bytes.
    pub max_header_size: usize,
    /// In bytes, or [`UNLIMITED`].
    pub max_body_size: u64,
    /// The largest body that is read before the decision, in bytes.
    pub inspect_body: usize,
    /// The memory for all bodies that are being read before the decision, in bytes.
    pub inspect_memory: usize,
    /// How long `/readyz` answers 503 before the listeners close.
    pub drain_delay: Duration,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout: Duration,
    pub paths: PathRules,
    /// `None` if requests are never shed.
    pub shed: Option<Shed>,
}

impl Server {
    /// Whether the peer is a trusted proxy, which forwards requests of several clients.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&peer))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// With port 0, the system chooses a port.
    pub address: SocketAddr,
    /// Only if the section of the listener has `tls`.
    pub tls: bool,
    pub traffic: Traffic,
}

/// What a client may do on one HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    /// The maximum number of requests in flight, at least 1.
    pub max_streams: u32,
    /// The largest request head in bytes, as RFC 9113, section 6.5.2, counts them.
    pub max_header_list: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    pub matching: PathMatching,
    pub escaped_slashes: EscapedSlashes,
}

/// Whether a final slash and `;parameters` make a different path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMatching {
    /// One final slash and the text after `;` in a segment are ignored.
    #[default]
    Forgiving,
    /// Both make a different path.
    Exact,
}

/// How `%2F` and `%5C` in a path are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// Answered 400.
    #[default]
    Reject,
    /// Kept as a part of the segment.
    Keep,
    /// Treated as slashes, also for the upstream.
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxConnections {
    /// As many as the limit of file handles allows.
    Auto,
    /// At least 1.
    Number(usize),
}

/// When requests of low priorities are shed. At least one of `cpu` and `latency` is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shed {
    /// The wanted share of the processors in use, in thousandths.
    pub cpu: Option<u32>,
    /// The wanted time until the head of an upstream's response.
    pub latency: Option<Duration>,
    /// 400 to 599.
    pub status: StatusCode,
}
