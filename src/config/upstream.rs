//! `[upstreams.NAME]` as it runs: servers that answer requests.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::{CertificateFiles, Key};
use crate::net::tls::ConnectorTls;

#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    pub name: String,
    /// At least one.
    pub servers: Vec<UpstreamServer>,
    pub balance: Balance,
    pub connect_timeout: Duration,
    /// The longest time until the head of the response arrives.
    pub timeout: Duration,
    /// The longest time between two pieces of a response body; `None` means no limit.
    pub read_timeout: Option<Duration>,
    /// The longest time without a byte in a tunnel; `None` means no limit.
    pub tunnel_idle_timeout: Option<Duration>,
    /// How long an unused connection is kept.
    pub max_idle: Duration,
    pub max_age: Duration,
    /// How often names of servers are looked up again.
    pub resolve_every: Duration,
    /// `None` if there are no `https://` servers.
    pub tls: Option<UpstreamTls>,
    /// Whether servers get HTTP/2: with TLS those that agree to it, without TLS all.
    pub http2: bool,
    /// Whether URLs of the servers in Location are replaced by URLs for clients, unless a route says otherwise.
    pub rewrite_location: bool,
    /// The header that tells servers who the client is, before anything else; `None` sends no such header.
    pub proxy_protocol: Option<ProxyProtocol>,
    pub retry: Retry,
    pub overload: Overload,
    /// `None` if servers are not checked.
    pub health: Option<HealthCheck>,
    /// `None` if servers are never ejected.
    pub ejection: Option<Ejection>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamServer {
    pub address: Address,
    /// The share of requests, relative to the other servers, 1 to 100.
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `http://host:port` or `https://host:port`
    Http {
        /// A name or an address; IPv6 has no brackets.
        host: String,
        /// Without a port in the URL: 80, or 443 with TLS.
        port: u16,
        /// The Host header to send, as written in the URL.
        authority: String,
        /// For `https`: the host as a name that the server's certificate can have. `None` for `http`.
        tls: Option<ServerName<'static>>,
    },
    /// `unix:/path`
    Unix(PathBuf),
    /// `builtin:echo`, the upstream that is part of the binary.
    Echo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turns, by weight.
    RoundRobin,
    /// Of two random servers, the one with fewer requests in flight.
    LeastRequests,
    /// Requests with the same key go to the same server.
    Hash(Key),
}

/// Which requests are sent again to another server.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// At most, per request, 0 to 10.
    pub retries: u32,
    /// The largest share of requests that are sent again, in thousandths.
    pub budget: u32,
    /// The statuses of responses after which a request is sent again.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The largest request body that is kept to be sent again, in bytes.
    pub max_body: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// For each server; `None` means no limit.
    pub max_in_flight: Option<usize>,
    /// Bounds for a limit of each server that follows its latency, used instead of `max_in_flight`.
    pub adaptive: Option<AdaptiveBounds>,
    /// How many requests may wait if all servers are at their limit.
    pub max_waiting: usize,
    pub max_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveBounds {
    /// At least 1.
    pub min: usize,
    /// At least `min`.
    pub max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Perhaps with a query.
    pub path: String,
    /// The time from one check to the next.
    pub interval: Duration,
    pub timeout: Duration,
    pub statuses: Vec<RangeInclusive<u16>>,
    /// This many successful checks in a row make a server healthy, 1 to 100.
    pub healthy_after: u32,
    /// This many failed checks in a row make a server unhealthy, 1 to 100.
    pub unhealthy_after: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The number of failures in a row, 1 to 1000.
    pub failures: u32,
    /// The statuses of responses that are failures.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// The length of the first ejection. Each further one lasts twice as long.
    pub first: Duration,
    /// The longest ejection.
    pub longest: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTls {
    /// The file of the trusted authorities; `None` trusts those of the system.
    pub ca: Option<PathBuf>,
    /// The name in the certificates of servers, which is also sent as SNI; `None` is the host of each URL.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate for servers that ask for one.
    pub certificate: Option<CertificateFiles>,
    /// The content of the files.
    pub settings: ConnectorTls,
}
