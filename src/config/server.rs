//! `[server]`: the listeners for clients, their timeouts and sizes.

mod listen;

use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

use super::acme::{self, Challenge};
use super::kinds::{
    self, WAIT, WAIT_OR_ZERO, body_size, flag, number, shaped, share, size, status_code, wait, wait_or_none, words,
};
use super::pem_files::SystemAuthorities;
use super::read::{Field, Section, Shape, tables};
use super::tls::{self, Tls};
use super::{secret, values};
use crate::base::http::path::{EscapedSlashes, PathMatching, PathRules};
use crate::base::partition::PartitionSecret;

pub use listen::{Listener, MaxConnections};

use listen::{LISTENER, MOST_CONNECTIONS};

/// In bytes.
pub(in crate::config) const LARGEST_INSPECTED: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Empty if there is only `[decisions]`.
    pub listen: Vec<Listener>,
    pub tls: Option<Tls>,
    pub http2: Http2,
    pub workers: usize,
    pub trusted_proxies: Vec<IpNet>,
    pub proxy_protocol: bool,
    pub forwarded: bool,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub body_timeout: Option<Duration>,
    pub max_connections: MaxConnections,
    pub max_connections_per_ip: usize,
    /// In bytes.
    pub max_header_size: usize,
    /// In bytes, or [`UNLIMITED`](super::UNLIMITED).
    pub max_body_size: u64,
    pub inspect_body: usize,
    pub inspect_memory: usize,
    pub drain_delay: Duration,
    pub drain_timeout: Duration,
    pub paths: PathRules,
    /// `None` if no partition keys are sent.
    pub partition_secret: Option<PartitionSecret>,
    /// `None` if requests are never shed.
    pub shed: Option<Shed>,
}

impl Server {
    /// Whether the peer is a trusted proxy, which forwards requests of several clients.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        is_in(peer, &self.trusted_proxies)
    }
}

/// Whether one of the networks contains the address, which may be an IPv4 address in the form of IPv6.
#[expect(clippy::inline_always, reason = "every request asks, mostly about no networks")]
#[inline(always)]
pub fn is_in(address: IpAddr, networks: &[IpNet]) -> bool {
    networks.iter().any(|network| network.contains(&address.to_canonical()))
}

/// What a client may do on one HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    pub max_streams: u32,
    pub max_header_list: u32,
}

/// Of a route or a tier; the lowest is 0.
pub const HIGHEST_PRIORITY: u8 = 9;
pub const DEFAULT_PRIORITY: u8 = 5;

/// When requests of low priorities are shed. At least one of `cpu` and `latency` is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shed {
    /// The wanted share of the processors in use, in thousandths.
    pub cpu: Option<u32>,
    pub latency: Option<Duration>,
    pub status: StatusCode,
}

tables! {
    /// How clients connect, and what they may do.
    keys {
        /// Where clients connect: an address or a list of them. With port 0 the system chooses a port, which the log shows;
        /// `"[::]:8080"` also accepts IPv4, unless an IPv4 address with the same port is listed. The list may be empty if
        /// there is a `[decisions]`.
        listen: () = shaped(Shape::Or(&[LISTENER, Shape::List(&LISTENER, 0, 64)])), "127.0.0.1:8080"
            => ["127.0.0.1:8080"];
        /// Worker threads; 0 means one per core.
        workers: usize = number(0, 1024).at_start(), 0;
        /// Networks whose X-Forwarded-For or Forwarded the gateway trusts; the right-most address outside them is the client
        /// (docs/clients.md).
        trusted_proxies: () = shaped(Shape::List(&Shape::Text, 0, usize::MAX)), [] => ["10.0.0.0/8"];
        /// Expects every connection to begin with the PROXY protocol (1 or 2), which names the client. Let only the proxy
        /// reach the listeners (docs/clients.md).
        proxy_protocol: bool = flag(), false;
        /// Also sends upstreams the client, the host and the scheme in `Forwarded` of RFC 7239 (docs/clients.md).
        forwarded: bool = flag(), false;
        /// How long a client may take to send a request head; then 408.
        header_timeout: Duration = wait(WAIT), "10s";
        /// The longest time that a connection stays open between requests.
        idle_timeout: Duration = wait(WAIT), "75s";
        /// The longest pause of a client in a request body while its upstream sends nothing either; then 408. Also the
        /// longest time that the client may read nothing of a response; then the gateway closes the connection. `"0"` means
        /// no limit. A route may have its own.
        body_timeout: Option<Duration> = wait_or_none(), "60s";
        /// The maximum number of open client connections, over all workers. `"auto"`, and any higher number: as many as the
        /// limit of file handles (raised at the start) allows, with one upstream connection for each. At the maximum, the
        /// gateway closes idle connections: in each worker the longest idle one first, and first in the worker that has the
        /// new one; if none is idle, new ones wait.
        max_connections: () = shaped(Shape::Or(&[Shape::Values("[\"auto\"]"), Shape::Number(1, MOST_CONNECTIONS)])),
            "auto";
        /// The maximum number of open connections per address (IPv6: per /64); the gateway closes further ones at once. 0
        /// means no limit; `trusted_proxies` do not count.
        max_connections_per_ip: usize = number(0, MOST_CONNECTIONS), 0;
        /// Larger request heads get 431.
        max_header_size: usize = size(8 << 10..=1 << 20).at_start(), "64KiB";
        /// Larger request bodies get 413, and are charged to no limit if `Content-Length` says their size. `"0"` means no
        /// limit. A route may have its own.
        max_body_size: u64 = body_size(), "0" => "1MiB";
        /// The largest request body that the gateway reads before it decides, on routes whose limits need it: for costs in
        /// tokens and keys from JSON. A larger one gets 413, and is charged to the limits that need no body. A route may
        /// have its own.
        inspect_body: usize = size(1..=LARGEST_INSPECTED), "1MiB";
        /// The maximum memory, over all workers, for bodies that the gateway reads before it decides and that do not come in
        /// one piece. Each worker has an equal part, at least four times `inspect_body`. If that is full, the client whose
        /// bodies take most of it gets 503 for the largest of them.
        inspect_memory: usize = size(1..=1 << 40), "64MiB";
        /// How long the listeners stay open after SIGTERM while `/readyz` answers 503, so that load balancers can choose
        /// other servers first.
        drain_delay: Duration = wait(WAIT_OR_ZERO), "0s";
        /// How long the gateway waits for requests in flight after SIGTERM.
        drain_timeout: Duration = wait(WAIT_OR_ZERO), "30s";
        /// `"forgiving"` ignores one final slash and `;parameters`; with `"exact"` they make a different path
        /// (docs/routes.md).
        path_matching: PathMatching =
            words(&[("forgiving", PathMatching::Forgiving), ("exact", PathMatching::Exact)]), "forgiving";
        /// How `%2F` and `%5C` in a path count: `"reject"` answers 400, `"keep"` takes them as part of a segment, `"decode"`
        /// as slashes, also for the upstream (docs/routes.md).
        escaped_slashes: EscapedSlashes = words(&[
            ("reject", EscapedSlashes::Reject), ("keep", EscapedSlashes::Keep), ("decode", EscapedSlashes::Decode),
        ]), "reject";
        /// Sends partition keys (`pk`) in `RateLimit`, which are made from this secret: at least 16 characters, or `env:NAME`
        /// or `file:PATH`. All gateways with the same secret name a counter alike, also after a restart (docs/limits.md).
        partition_secret: () = kinds::secret() => "env:PARTITION_SECRET";
        /// TLS for clients; without this table, listeners speak plain HTTP.
        tls: () = shaped(Shape::Table(&tls::keys::TABLE));
        /// HTTP/2, which is always on: with TLS by ALPN, without TLS by prior knowledge.
        http2: () = shaped(Shape::Table(&http2::TABLE)), {};
        /// Refuses requests of low priority at once under overload (docs/overload.md); without this table, none.
        shed: () = shaped(Shape::Table(&shed::TABLE));
    }

    /// HTTP/2, which is always on: with TLS by ALPN, without TLS by prior knowledge.
    http2 {
        /// The maximum number of requests at once on a connection; at least 10000 for `trusted_proxies` and on the listener of
        /// `[decisions]`.
        max_streams: u32 = number(1, 65_535), 250;
        /// Larger request heads get 431.
        max_header_list: u32 = size(8 << 10..=1 << 20), "64KiB";
    }

    /// Refuses requests of low priority at once under overload (docs/overload.md).
    shed {
        /// The target share of processors in use, above 0.
        cpu: u32 = share() => 0.9;
        /// The target mean time until the head of an upstream's response.
        latency: Duration = wait(WAIT) => "500ms";
        /// The status that shed requests get.
        status: StatusCode = status_code(400, 599), 503;
    }
}

pub(super) fn read(section: &Section<'_>, has_decisions: bool, system: &SystemAuthorities) -> Server {
    let networks = |field: &Field<'_>| {
        let list = field.list(&keys::trusted_proxies)?;
        Some(list.iter().filter_map(|field| field.parse(values::network)).collect())
    };
    let tls = section.field(&keys::tls);
    let listen = listen::read(section, tls.as_ref(), has_decisions);
    let http2 = section.table_or_empty(&keys::http2);
    let tls = tls.zip(section.table(&keys::tls)).and_then(|(field, section)| {
        let acme = section.table(&tls::keys::acme).map(|section| acme::read(&section, system));
        let mut tls = tls::read(&section, acme.is_some())?;
        let Some(acme) = acme else { return Some(tls) };
        let is_http = acme.challenge == Challenge::Http01;
        if is_http && listen.iter().all(|listener| listener.tls) {
            let help = "add a listener for it, at port 80: { address = \"0.0.0.0:80\", tls = false }";
            field.report("http-01 is answered on plain listeners, and there is none", help);
        }
        tls.acme = Some(acme);
        tls.issue(None);
        Some(tls)
    });
    Server {
        listen,
        tls,
        http2: Http2 {
            max_streams: http2.read(&http2::max_streams),
            max_header_list: http2.read(&http2::max_header_list),
        },
        workers: section.read(&keys::workers),
        trusted_proxies: section.read_as(&keys::trusted_proxies, networks),
        proxy_protocol: section.read(&keys::proxy_protocol),
        forwarded: section.read(&keys::forwarded),
        header_timeout: section.read(&keys::header_timeout),
        idle_timeout: section.read(&keys::idle_timeout),
        body_timeout: section.read(&keys::body_timeout),
        max_connections: section.read_as(&keys::max_connections, listen::max_connections),
        max_connections_per_ip: section.read(&keys::max_connections_per_ip),
        max_header_size: section.read(&keys::max_header_size),
        max_body_size: section.read(&keys::max_body_size),
        inspect_body: section.read(&keys::inspect_body),
        inspect_memory: section.read(&keys::inspect_memory),
        drain_delay: section.read(&keys::drain_delay),
        drain_timeout: section.read(&keys::drain_timeout),
        paths: PathRules {
            matching: section.read(&keys::path_matching),
            escaped_slashes: section.read(&keys::escaped_slashes),
        },
        partition_secret: section
            .field(&keys::partition_secret)
            .and_then(|field| secret::unguessable(&field, "secret of partition keys"))
            .map(|secret| PartitionSecret::new(&secret)),
        shed: section.table(&keys::shed).as_ref().map(shed),
    }
}

fn shed(section: &Section<'_>) -> Shed {
    let field = section.field(&shed::cpu);
    let has_one = field.is_some() || section.field(&shed::latency).is_some();
    if !has_one && !section.is_misspelt(&[shed::cpu.name, shed::latency.name]) {
        let help = "add the wanted share of the processors, like cpu = 0.9, or the wanted time until a response, like \
                    latency = \"500ms\"";
        section.source.report(section.span.clone(), "[server.shed] has neither `cpu` nor `latency`", help);
    }
    let cpu = section.given(&shed::cpu);
    if let Some(field) = field.filter(|_| cpu == Some(0)) {
        field.report("`cpu = 0` would shed everything", "write a share above 0, like 0.9 for nine tenths");
    }
    Shed { cpu, latency: section.given(&shed::latency), status: section.read(&shed::status) }
}
