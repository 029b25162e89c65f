//! The configuration as it runs: every value is checked, and every default is filled in.
//!
//! [`ConfigSource::load`] and [`parse`] are the only ways to make one, for running, checking and reloading alike.

pub mod regular_file;
mod folder;
mod texts;
mod report;
mod refusal;
mod read;
mod values;
mod file;
mod check;
mod merge;
mod document;
mod remote;
mod source;
mod admin;
mod tls;
mod upstream;
mod upstream_tls;
mod shed;
mod anew;
mod temporary;
mod spellings;
mod template;
mod redirect;
mod header_changes;
mod cors;
mod jwt;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(not(feature = "postgres"))]
mod without_postgres;
mod quotas;
mod traces;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::known_keys::KnownKeys;
use crate::limit::Rate;
use crate::overrides::{Allowance, Overrides};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;

use document::Document;

pub use admin::{Admin, AdminAddress, AdminToken};
pub use anew::{Recounted, changed_overrides, dropped, needs_restart, recounted};
pub use cors::{Cors, OriginPattern};
pub use file::LOG_LEVELS;
pub use folder::{Version, files as folder_files};
pub use header_changes::{HeaderChanges, HeaderText, is_secret};
pub use jwt::{Jwks, Jwt};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresTls, PostgresUrl};
pub use quotas::{HttpQuotas, PostgresSettings, QuotaServer, Quotas, SentKey};
pub use redirect::Redirect;
pub use refusal::Refusal;
pub use remote::{Remote, RemoteDocument, RemoteStatus};
pub use report::Problems;
pub use shed::Shed;
pub use source::{ConfigSource, Loaded, NoStart};
pub use template::{Template, TemplatePart};
pub use temporary::{TEMPORARY_SPAN, quota_rates, temporary_again, temporary_override};
pub use tls::{CertificateFiles, ClientCa, FileError, FileProblem, Tls};
pub use traces::{Collector, Tracing};
pub use upstream::{Address, Balance, Ejection, HealthCheck, Overload, ProxyProtocol, Retry, Upstream, UpstreamServer};
pub use upstream_tls::UpstreamTls;
#[cfg(not(feature = "postgres"))]
pub use without_postgres::PostgresUrl;

/// Reads the text of a file. Problems call the file `name`. Relative paths in it start at `folder`.
///
/// # Errors
/// All its problems at once.
pub fn parse(bytes: &[u8], name: &str, folder: &Path) -> Result<Config, Problems> {
    Document::one(name, bytes.to_vec(), Some(folder)).config()
}

/// All of gateway.toml.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[log]`
    pub log: Log,
    /// `[admin]`: without the section there is no admin listener.
    pub admin: Option<Admin>,
    /// `[tracing]`: without the section, no spans are recorded.
    pub tracing: Option<Tracing>,
    /// `[store]`
    pub store: Store,
    /// `[upstreams.*]`, in the order of the file.
    pub upstreams: Vec<Upstream>,
    /// `[jwt.*]`, in the order of the file.
    pub jwts: Vec<Jwt>,
    /// `[limits.*]`, in the order of the file.
    pub limits: Vec<Limit>,
    /// `[[routes]]`, in the order of the file; `route` sorts them.
    pub routes: Vec<Route>,
    /// The files that it was read from, if there are any.
    pub files: BTreeSet<PathBuf>,
    /// Settings that are valid, but probably not intended.
    pub warnings: Problems,
}

/// The maximum body size where there is no limit.
pub const UNLIMITED: u64 = u64::MAX;

/// `[server]`: the listeners for clients, their timeouts and sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Where clients connect, at least one.
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
    pub body_timeout: Duration,
    /// The maximum number of open connections.
    pub max_connections: MaxConnections,
    /// The maximum number of open connections per address, except for trusted proxies; 0 is no limit.
    pub max_connections_per_ip: usize,
    /// The largest request head in bytes.
    pub max_header_size: usize,
    /// The largest request body in bytes, or [`UNLIMITED`].
    pub max_body_size: u64,
    /// How long `/readyz` answers 503 before the listeners close.
    pub drain_delay: Duration,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout: Duration,
    /// Which spellings of a path are the same path.
    pub paths: PathRules,
    /// `[server.shed]`; `None` if requests are not shed.
    pub shed: Option<Shed>,
}

/// Where clients connect, and what is spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address; the system chooses a port for port 0.
    pub address: SocketAddr,
    /// Whether TLS is spoken. Only with `[server.tls]`.
    pub tls: bool,
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

/// `[log]`: what is written to standard error.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: tracing::Level,
    /// The format of a line.
    pub format: LogFormat,
    /// Which requests get a line.
    pub access: AccessLog,
    /// The file of these lines; `None` if they go to standard error.
    pub access_file: Option<PathBuf>,
    /// The format of these lines; `None` if they are lines of the log.
    pub access_format: Option<AccessFormat>,
}

/// Which requests get a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// All requests.
    On,
    /// All requests, except most of the refusals of a client that sends too many.
    Sampled,
    /// No requests.
    Off,
}

/// The format of a line of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// One JSON object per line.
    Json,
    /// The Combined Log Format.
    Combined,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines: one JSON object per line.
    Json,
}

/// `[store]`: where counters live.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// In this process.
    Memory {
        /// The maximum number of keys, at least 1.
        max_keys: usize,
        /// The maximum size of all counters in bytes.
        max_memory: usize,
        /// The file to which the counters are written at the end of the process, and from which they are read at the start.
        snapshot: Option<PathBuf>,
    },
    /// In Memcached, shared with other gateways.
    Memcached(Memcached),
}

impl Store {
    /// Whether the counters of `other` are where those of this one are, so that one store can serve both.
    pub fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory { .. }, Self::Memory { .. }) => true,
            (Self::Memcached(memcached), Self::Memcached(other)) => memcached == other,
            (Self::Memory { .. }, Self::Memcached(_)) | (Self::Memcached(_), Self::Memory { .. }) => false,
        }
    }
}

/// `[store]` with `type = "memcached"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Memcached {
    /// `host:port`, at least one.
    pub servers: Vec<String>,
    /// The first part of every key: 1 to 64 printable characters without spaces.
    pub prefix: String,
    /// The longest time that a request waits for Memcached.
    pub timeout: Duration,
    /// What happens to requests while Memcached is away.
    pub on_error: OnError,
    /// Whether an admission waits until Memcached has confirmed it.
    pub strict: bool,
}

/// What happens to requests while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// They are counted in this process, starting from the last known counts.
    Local,
    /// They pass and are not counted.
    Allow,
    /// They are answered 503.
    Reject,
}

impl OnError {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Reject => "reject",
        }
    }
}

/// `[limits.NAME]`: what is counted, and how much is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The name that routes use; printable ASCII, because it is part of headers and of keys in the store.
    pub name: String,
    /// What is counted.
    pub key: Key,
    /// A request must fit all of them. Empty only if there is `max_in_flight`. Each rate includes its strategy.
    pub rates: Vec<Rate>,
    /// How many requests of a key may be in flight at the same time in this process, 1 to 2^32.
    pub max_in_flight: Option<u64>,
    /// What a request costs, and when that is known.
    pub cost: Cost,
    /// If set, any other value of the first part of `key` counts as missing, where clients choose that value.
    pub known_keys: Option<Arc<KnownKeys>>,
    /// Keys that do not get `rates`.
    pub overrides: Arc<Overrides>,
    /// Rates by an attribute of the request, for keys without an override.
    pub tiers: Option<Tiers>,
    /// Where quotas of keys without an override are read from.
    pub quotas: Option<Quotas>,
    /// What happens to a request over the limit.
    pub on_limit: OnLimit,
    /// What happens to a request without the key.
    pub missing: Missing,
    /// Which headers report the limit.
    pub headers: HeaderStyle,
    /// The status of a rejection, 400 to 599; of a silent answer, 200 to 599.
    pub status: StatusCode,
    /// The body of a rejection (empty is a problem document) or of a silent answer.
    pub body: String,
    /// The media type of `body`.
    pub content_type: HeaderValue,
}

impl Limit {
    /// The sources of its key and of its tiers.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.key.parts.iter().flatten().chain(self.tiers.as_ref().map(|tiers| &tiers.source))
    }

    /// Its own rates and those of its tiers and overrides, all of which are counted in the same way.
    pub fn all_rates(&self) -> impl Iterator<Item = &Rate> {
        let tiers = self.tiers.iter().flat_map(|tiers| &tiers.rates).flat_map(|(_, rates)| rates);
        let overrides = self.overrides.allowances().iter().filter_map(|allowance| match allowance {
            Allowance::Rates(rates) => Some(&**rates),
            Allowance::Exempt | Allowance::Block => None,
        });
        self.rates.iter().chain(tiers).chain(overrides.flatten())
    }
}

/// What a request costs, and when that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This much, 1 to 2^32.
    Fixed(u64),
    /// The number in this request header; 1 if there is no valid cost in it.
    RequestHeader(HeaderName),
    /// The number in a response header.
    ResponseHeader {
        /// Its name.
        name: HeaderName,
        /// The cost that is charged until the response arrives; it stays charged if the response has no valid cost. 1 to 2^32.
        reserve: u64,
    },
    /// This much is charged until the response arrives; it stays charged if the response has one of these statuses.
    OnStatus(u64, Vec<RangeInclusive<u16>>),
}

/// Rates by an attribute of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// The source of the tier's name.
    pub source: Source,
    /// At least one tier, each with at least one rate; a request without a known tier gets the limit's own rates.
    pub rates: Vec<(String, Vec<Rate>)>,
    /// The tiers whose requests have another priority than that of their route.
    pub priorities: Vec<(String, u8)>,
}

/// What happens to a request over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLimit {
    /// It is refused.
    Reject,
    /// It passes; a header and a metric show that the limit would have refused it.
    Shadow,
    /// The gateway answers it with no hint of the limit, and does not forward it.
    Silent,
    /// It is held until it fits.
    Delay {
        /// The longest time that it is held.
        max_delay: Duration,
        /// The maximum number of held requests per key in this process, at least 1.
        max_delayed: usize,
    },
}

impl OnLimit {
    /// Whether headers tell clients about the limit. They do not if the limit only reports or is silent.
    pub fn is_told(self) -> bool {
        matches!(self, Self::Reject | Self::Delay { .. })
    }
}

/// What is counted: all parts together are the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// At least one part; in each part, the first source that is present is used.
    pub parts: Vec<Vec<Source>>,
}

impl Key {
    /// The parts as the file spells them.
    pub fn spelled_parts(&self) -> impl Iterator<Item = String> {
        self.parts.iter().map(|part| part.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
    }
}

/// All parts in one line.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelled_parts().collect::<Vec<_>>().join(" and "))
    }
}

/// The source of a part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `client-ip`, `client-ip:56`: the client's address, IPv6 cut to this prefix length (1 to 128).
    ClientIp {
        /// The prefix length of IPv6 addresses.
        v6: u8,
    },
    /// `header:NAME`
    Header(HeaderName),
    /// `cookie:NAME`
    Cookie(String),
    /// `query:NAME`
    Query(String),
    /// `bearer`: the token of Authorization.
    Bearer,
    /// `path`: the whole path.
    Path,
    /// `path:NAME`: a segment that the route captures.
    Capture(String),
    /// `host`
    Host,
    /// `method`
    Method,
    /// `route`
    Route,
    /// `client-cert`: the subject of the certificate that the client has shown, and that TLS has verified.
    ClientCert,
    /// `jwt:NAME:CLAIM`: a claim of a token that is verified.
    Jwt {
        /// The name of its `[jwt.*]`.
        name: String,
        /// The name of the claim.
        claim: String,
    },
    /// `global`: one counter for all requests.
    Global,
}

impl Source {
    /// Whether clients choose the value, and so can invent as many values as they like.
    pub fn is_chosen_by_clients(&self) -> bool {
        !matches!(self, Self::ClientIp { .. } | Self::ClientCert | Self::Jwt { .. } | Self::Route | Self::Global)
    }
}

/// What happens to a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// All such requests share one counter.
    Shared,
    /// The limit does not apply.
    Skip,
    /// The request is answered 400.
    Reject,
}

/// Which headers report a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, as GitHub sends them.
    Github,
    /// Both.
    Both,
    /// None.
    None,
}

/// `[[routes]]`: which requests it matches, and what happens to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The hosts that it matches.
    pub host: Host,
    /// The paths that it matches.
    pub path: PathPattern,
    /// Whether the case of ASCII letters in the path is ignored.
    pub ignore_case: bool,
    /// The methods that it matches; empty is all.
    pub methods: Vec<Method>,
    /// Headers that must be present.
    pub headers: Vec<(HeaderName, HeaderMatch)>,
    /// Whether the client must have used TLS, or must not.
    pub scheme: Option<Scheme>,
    /// Where the response comes from.
    pub action: Action,
    /// Indices into [`Config::limits`], without repetition.
    pub limits: Vec<usize>,
    /// The largest request body in bytes, or [`UNLIMITED`]: the route's own or the server's.
    pub max_body_size: u64,
    /// The longest time until the head of the response arrives, instead of that of its upstream.
    pub timeout: Option<Duration>,
    /// What changes about the headers that the upstream gets.
    pub request_headers: HeaderChanges<HeaderText>,
    /// What changes about the headers of its responses.
    pub response_headers: HeaderChanges<HeaderText>,
    /// How important its requests are, 0 to 9: those of lower priorities are shed first.
    pub priority: u8,
    /// Which pages of other origins may use it, and how. Without it, preflights are requests like any other.
    pub cors: Option<Cors>,
}

/// How a client has sent its request: to the gateway, or to a trusted proxy in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// In TLS.
    Https,
}

impl Scheme {
    /// As the configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// The condition of a route on a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderMatch {
    /// `"*"`: any value, also an empty one.
    Present,
    /// One of the header's lines has this value.
    Exact(HeaderValue),
    /// The same, but the value is a secret.
    Secret {
        /// The value.
        value: HeaderValue,
        /// Where it is, as the configuration spells it: `env:NAME` or `file:PATH`.
        place: String,
    },
}

/// Which hosts a route matches. Names are lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Every host.
    Any,
    /// Every name under this one: `*.example.com` is `example.com` here, and does not match it.
    Under(String),
    /// This name only.
    Exact(String),
}

/// Where the response to a request comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// From an upstream.
    Forward {
        /// Index into [`Config::upstreams`].
        upstream: usize,
        /// Which path it gets.
        path: SentPath,
        /// Whether the upstream gets the client's Host header.
        preserve_host: bool,
    },
    /// From the gateway itself.
    Respond {
        /// The status, 200 to 599.
        status: StatusCode,
        /// The body.
        body: String,
        /// The media type of the body.
        content_type: HeaderValue,
    },
    /// From the gateway, which sends the client to another URL.
    Redirect(Redirect),
}

/// The path that an upstream gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentPath {
    /// The client's, without so many leading segments, from `strip_prefix`.
    Stripped(usize),
    /// Another one, from `rewrite`.
    Rewritten(Template),
}

/// Which paths a route matches: segments, then optionally a final `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// As written.
    pub text: String,
    /// The parts between the slashes. `/` is one empty literal, and `/a/` ends with one.
    pub segments: Vec<Segment>,
    /// Whether a final `*` matches the rest, which may be empty.
    pub rest: bool,
}

/// One segment of a path pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This text.
    Literal(String),
    /// `{name}`: any one segment.
    Capture(String),
}

/// Writes the value as the configuration spells it.
impl fmt::Display for HeaderMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("*"),
            Self::Exact(value) => f.write_str(&String::from_utf8_lossy(value.as_bytes())),
            Self::Secret { place, .. } => f.write_str(place),
        }
    }
}

/// Writes the source as the configuration spells it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp { v6: 64 } => f.write_str("client-ip"),
            Self::ClientIp { v6 } => write!(f, "client-ip:{v6}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Bearer => f.write_str("bearer"),
            Self::Path => f.write_str("path"),
            Self::Capture(name) => write!(f, "path:{name}"),
            Self::Host => f.write_str("host"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::ClientCert => f.write_str("client-cert"),
            Self::Jwt { name, claim } => write!(f, "jwt:{name}:{claim}"),
            Self::Global => f.write_str("global"),
        }
    }
}
