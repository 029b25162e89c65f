//! `[upstreams.NAME]` as it runs: servers that answer requests.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::{CertificateFiles, Key};
use crate::net::tls::ConnectorTls;

#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The name that routes use.
    pub name: String,
    /// At least one.
    pub servers: Vec<UpstreamServer>,
    /// How requests are shared among the servers.
    pub balance: Balance,
    /// The longest time for a connection attempt.
    pub connect_timeout: Duration,
    /// The longest time until the head of the response arrives.
    pub timeout: Duration,
    /// The longest time between two pieces of a response body; `None` is no limit.
    pub read_timeout: Option<Duration>,
    /// The longest time for which no byte passes through a tunnel; `None` is no limit.
    pub tunnel_idle_timeout: Option<Duration>,
    /// How long an unused connection is kept.
    pub max_idle: Duration,
    /// The maximum age of a connection.
    pub max_age: Duration,
    /// How often names of servers are looked up again.
    pub resolve_every: Duration,
    /// How its `https://` servers are connected to; `None` if it has none.
    pub tls: Option<UpstreamTls>,
    /// Whether its servers are spoken to in HTTP/2: with TLS those that agree, without TLS all.
    pub http2: bool,
    /// Whether URLs of its servers in Location become those of clients, unless a route says otherwise.
    pub rewrite_location: bool,
    /// How its servers are told who the client is, before anything else; `None` if they are not.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Which requests are sent again to another server.
    pub retry: Retry,
    /// How many requests a server gets at the same time.
    pub overload: Overload,
    /// How its servers are checked; `None` if they are not.
    pub health: Option<HealthCheck>,
    /// When a server that fails gets no requests for a time.
    pub ejection: Option<Ejection>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamServer {
    pub address: Address,
    /// Its share of requests, relative to the other servers, 1 to 100.
    pub weight: u32,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `http://host:port` or `https://host:port`
    Http {
        /// A name or an address; IPv6 has no brackets.
        host: String,
        /// If the URL has no port, 80, or 443 with TLS.
        port: u16,
        /// The Host header to send, as written in the URL.
        authority: String,
        /// `https`: the host as a name that the server's certificate can have. `None` is `http`.
        tls: Option<ServerName<'static>>,
    },
    /// `unix:/path`: a Unix socket.
    Unix(PathBuf),
    /// `builtin:echo`, the upstream that is part of the binary.
    Echo,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// How requests are shared among the servers of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turns, by weight.
    RoundRobin,
    /// To the one of two random servers that has fewer requests in flight.
    LeastRequests,
    /// Requests with the same key to the same server.
    Hash(Key),
}

/// `retries` and `[upstreams.NAME.retry]`: which requests are sent again to another server.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// How often a request is sent again at most, 0 to 10.
    pub retries: u32,
    /// How many requests may be sent again, as a share of all in thousandths.
    pub budget: u32,
    /// The statuses of responses after which a request is sent again.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The largest request body in bytes that is kept to be sent again.
    pub max_body: usize,
}

/// `max_in_flight`, `adaptive`, `max_waiting` and `max_wait`: how many requests a server gets at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// The maximum number of requests in flight for each server; `None` is no limit.
    pub max_in_flight: Option<usize>,
    /// The bounds of a limit that follows the latency of each server, instead of `max_in_flight`.
    pub adaptive: Option<AdaptiveBounds>,
    /// How many requests may wait for a server if all have that many.
    pub max_waiting: usize,
    /// The longest time that a request waits.
    pub max_wait: Duration,
}

/// The least and the largest limit of `adaptive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveBounds {
    /// At least 1.
    pub min: usize,
    /// At least `min`.
    pub max: usize,
}

/// `[upstreams.NAME.health]`: how servers are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path and query of the request.
    pub path: String,
    /// The time from one check to the next.
    pub interval: Duration,
    /// The longest time for a check.
    pub timeout: Duration,
    /// The statuses of a server that is healthy.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// How many good checks in a row make a server healthy, 1 to 100.
    pub healthy_after: u32,
    /// How many failed checks in a row make a server unhealthy, 1 to 100.
    pub unhealthy_after: u32,
}

/// `[upstreams.NAME.eject]`: when a server that fails gets no requests for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// So many failures in a row, 1 to 1000.
    pub failures: u32,
    /// The statuses of responses that are failures.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// For how long the first time. It doubles each time.
    pub first: Duration,
    /// The longest time.
    pub longest: Duration,
}

/// How the `https://` servers of an upstream are connected to.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTls {
    /// The file of the authorities that are trusted; `None` trusts those of the system.
    pub ca: Option<PathBuf>,
    /// The name for which servers need a certificate, and for which they are asked; `None` is the host of their URL.
    pub server_name: Option<ServerName<'static>>,
    /// The files of the certificate that servers get if they ask for one.
    pub certificate: Option<CertificateFiles>,
    /// What is in the files.
    pub settings: ConnectorTls,
}
