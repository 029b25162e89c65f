//! `[upstreams.NAME]`: servers that answer requests.

mod server;
mod resilience;

use std::time::Duration;

use super::key::{KEY_SHAPE, Key, Names, key};
use super::kinds::{LONGEST, WAIT, flag, number, shaped, wait, wait_or_none, words};
use super::pem_files::SystemAuthorities;
use super::read::{Field, Name, Section, Shape, report_repeated, tables};
use super::values::named_section;

pub use resilience::{AdaptiveBounds, Ejection, HealthCheck, Overload, Retry};
pub use server::{Address, UpstreamServer, UpstreamTls};

pub(super) use server::{read_tls, tls as tls_keys};

use resilience::{ejection, health_check, overload, retry};

const MOST_IN_FLIGHT: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    pub name: String,
    /// At least one.
    pub servers: Vec<UpstreamServer>,
    pub balance: Balance,
    pub connect_timeout: Duration,
    pub timeout: Duration,
    pub read_timeout: Option<Duration>,
    pub tunnel_idle_timeout: Option<Duration>,
    pub max_idle: Duration,
    pub max_age: Duration,
    pub resolve_every: Duration,
    /// `None` if there are no `https://` servers.
    pub tls: Option<UpstreamTls>,
    pub http2: bool,
    pub rewrite_location: bool,
    pub proxy_protocol: Option<ProxyProtocol>,
    pub retry: Retry,
    pub overload: Overload,
    /// `None` if servers are not checked.
    pub health: Option<HealthCheck>,
    /// `None` if servers are never ejected.
    pub ejection: Option<Ejection>,
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

impl Balance {
    /// The key by which requests go to servers.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Hash(key) => Some(key),
            Self::RoundRobin | Self::LeastRequests => None,
        }
    }
}

/// The key has a setting of its own, so it is empty here.
static BALANCES: [(&str, Balance); 3] = [
    ("round-robin", Balance::RoundRobin),
    ("least-requests", Balance::LeastRequests),
    ("hash", Balance::Hash(Key { parts: Vec::new() })),
];

tables! {
    /// Servers that answer requests (docs/upstreams.md).
    keys {
        /// The servers: `"http://host:port"`, `"https://host:port"`, `"unix:/run/app.sock"`, `{ url = "...", weight = 2 }`,
        /// or `"builtin:echo"`. Each address of a name is a server.
        servers: () =
            shaped(Shape::List(&Shape::Or(&[Shape::Text, Shape::Table(&server::keys::TABLE)]), 1, 256)).required()
            => ["http://10.0.1.1:9000"];
        /// The longest time to connect; then 504.
        connect_timeout: Duration = wait(WAIT), "1s";
        /// The longest time until the head of the response arrives; then 504.
        timeout: Duration = wait(WAIT), "30s";
        /// The longest time between two pieces of a response; then the gateway closes its connection. `"0"` means no limit,
        /// for event streams.
        read_timeout: Option<Duration> = wait_or_none(), "60s";
        /// How long a WebSocket may be silent in both directions; `"0"` means no limit.
        tunnel_idle_timeout: Option<Duration> = wait_or_none(), "0";
        /// How long the gateway keeps an unused connection; choose less than the server's own limit.
        max_idle: Duration = wait(WAIT), "60s";
        /// The maximum age of a connection, so that DNS changes take effect.
        max_age: Duration = wait(WAIT), "10m";
        /// How often the gateway looks up the names of servers again.
        resolve_every: Duration = wait(Duration::from_secs(1)..=LONGEST), "30s";
        /// Speaks HTTP/2: without TLS to all servers, with TLS to those that agree. gRPC needs it.
        http2: bool = flag(), false;
        /// Replaces a server's scheme, address and port at the start of `Location` and `Content-Location` with those that
        /// the client used. A route may have its own.
        rewrite_location: bool = flag(), true;
        /// Tells servers who the client is, with the PROXY protocol.
        proxy_protocol: () = shaped(Shape::Values("[false, \"v1\", \"v2\"]")), false;
        /// Which server gets a request: `"round-robin"` takes each in turn, `"least-requests"` the one of two random servers
        /// with fewer requests in flight, `"hash"` the same one for the same `hash_key`.
        balance: Balance = words(&BALANCES), "least-requests";
        /// The key for `"hash"`, written like the `key` of a limit.
        hash_key: () = shaped(KEY_SHAPE), "client-ip" => ["client-ip"];
        /// How often the gateway may send a request to another server after one has failed, if that is safe. Failed attempts
        /// to connect do not count: it tries all servers.
        retries: u32 = number(0, 10), 1;
        /// Which requests the gateway sends again.
        retry: () = shaped(Shape::Table(&retry::TABLE)), {};
        /// The maximum number of requests in flight at each server; further ones get 503. 0 means no limit.
        max_in_flight: usize = number(0, MOST_IN_FLIGHT), 0;
        /// Adapts the maximum number of requests in flight at each server to its latency, instead of `max_in_flight`
        /// (docs/overload.md).
        adaptive: () = shaped(Shape::Or(&[Shape::Table(&resilience::adaptive::TABLE), Shape::Flag])), false;
        /// How many requests may wait for a server with room.
        max_waiting: usize = number(0, MOST_IN_FLIGHT), 0;
        /// How long a request may wait; needs `max_waiting`.
        max_wait: Duration = wait(WAIT), "1s";
        /// Checks the servers: one whose checks fail gets no requests. Without this table, servers are not checked.
        health: () = shaped(Shape::Table(&resilience::health::TABLE));
        /// When a failing server gets no requests for a time, unless it is the last one; `false` means never.
        eject: () = shaped(Shape::Or(&[Shape::Table(&resilience::eject::TABLE), Shape::Flag])), true;
        /// TLS to the `https://` servers.
        tls: () = shaped(Shape::Table(&server::tls::TABLE));
    }
}

/// `None` if it is not a table.
pub(super) fn read(
    name: &Name<'_>,
    field: &Field<'_>,
    system: &SystemAuthorities,
    jwts: &Names<'_>,
) -> Option<Upstream> {
    let section = named_section(name, field, "upstreams", "an upstream", &keys::TABLE)?;
    let listed = section.needed(&keys::servers);
    let servers = listed.as_ref().and_then(|field| field.list(&keys::servers)).map(|list| {
        let servers: Vec<_> = list.into_iter().filter_map(|field| Some((server::read(&field)?, field))).collect();
        let addresses: Vec<_> = servers.iter().map(|(server, field)| (&server.address, field.clone())).collect();
        report_repeated(&addresses, "this server", "list it once, with a weight: { url = \"...\", weight = 2 }");
        servers.into_iter().map(|(server, _)| server).collect::<Vec<_>>()
    });
    let http2 = section.read(&keys::http2);
    if http2 && servers.iter().flatten().any(|server| server.address == Address::Echo) {
        let help = "remove it, or name a server of your own";
        section.refuse(&[keys::http2.name], "is not spoken by `builtin:echo`", help);
    }
    let proxy_protocol = section.read_as(&keys::proxy_protocol, proxy_protocol);
    if http2 && proxy_protocol.is_some() {
        let why = "has no effect with `http2`, where the requests of many clients share a connection";
        section.refuse(&[keys::proxy_protocol.name], why, "remove one of them");
    }
    Some(Upstream {
        name: name.text.to_owned(),
        balance: balance(&section, jwts),
        connect_timeout: section.read(&keys::connect_timeout),
        timeout: section.read(&keys::timeout),
        read_timeout: section.read(&keys::read_timeout),
        tunnel_idle_timeout: section.read(&keys::tunnel_idle_timeout),
        max_idle: section.read(&keys::max_idle),
        max_age: section.read(&keys::max_age),
        resolve_every: section.read(&keys::resolve_every),
        tls: tls(&section, servers.as_deref(), listed.as_ref(), system),
        servers: servers.unwrap_or_default(),
        http2,
        rewrite_location: section.read(&keys::rewrite_location),
        proxy_protocol,
        retry: retry(&section),
        overload: overload(name.text, &section),
        health: section.table(&keys::health).as_ref().map(health_check),
        ejection: ejection(&section),
    })
}

/// TLS to the `https://` servers; `None` if there are none, or after an error.
fn tls(
    section: &Section<'_>,
    servers: Option<&[UpstreamServer]>,
    listed: Option<&Field<'_>>,
    system: &SystemAuthorities,
) -> Option<UpstreamTls> {
    let own = section.table(&keys::tls);
    let is_https = |server: &UpstreamServer| matches!(server.address, Address::Http { tls: Some(_), .. });
    let has_https = servers?.iter().any(is_https);
    if own.is_some() && !has_https {
        let help = "write the URLs of its servers with https://, or remove this section";
        section.source.report(section.key_span(keys::tls.name), "no server of this upstream uses TLS", help);
    }
    if own.is_some() || has_https { read_tls(own.as_ref(), listed?, system) } else { None }
}

/// The version; `Some(None)` for `false`.
#[expect(clippy::option_option, reason = "the outer one is about errors")]
fn proxy_protocol(field: &Field<'_>) -> Option<Option<ProxyProtocol>> {
    if field.value.is_bool() && field.boolean() == Some(false) {
        return Some(None);
    }
    if !field.value.is_str() {
        field.mistyped("a version", "write \"v1\" or \"v2\", or false");
        return None;
    }
    field.choice(&[("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)]).map(Some)
}

/// Reads `balance` and `hash_key`.
fn balance(section: &Section<'_>, jwts: &Names<'_>) -> Balance {
    let balance = section.read(&keys::balance);
    if let Balance::Hash(_) = balance {
        return Balance::Hash(section.read_as(&keys::hash_key, |field| key(field, &keys::hash_key, jwts)));
    }
    if let Some(field) = section.field(&keys::hash_key) {
        field.report("`hash_key` has no effect without `balance = \"hash\"`", "add that, or remove `hash_key`");
    }
    balance
}
