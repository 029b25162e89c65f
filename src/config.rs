//! The configuration as it runs: every value checked, nothing waiting for a default.
//!
//! [`load`] and [`parse`] are the only ways to make one, for running, checking and reloading alike.

mod regular_file;
mod report;
mod read;
mod values;
mod file;
mod check;
mod anew;
mod spellings;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;
use toml::de::DeTable;

use crate::known_keys::KnownKeys;
use crate::limit::Rate;
use crate::overrides::Overrides;

pub use anew::{Recounted, changed_overrides, dropped, recounted};
pub use report::{Problem, Problems};

/// Reads a file, and the files that it names. Everything that is wrong with them is found at once.
pub fn load(path: &Path) -> Result<Config, Problems> {
    let bytes = regular_file::read(path).map_err(|error| Problems::unreadable(path, &error))?;
    parse(&bytes, &path.display().to_string(), path.parent().unwrap_or(Path::new("")))
}

/// Reads the text of a file; problems call it `name`. Files that it names are looked for from `folder` on.
pub fn parse(bytes: &[u8], name: &str, folder: &Path) -> Result<Config, Problems> {
    let text = std::str::from_utf8(bytes).map_err(|error| Problems::not_utf8(name, bytes, error.valid_up_to()))?;
    let (table, errors) = DeTable::parse_recoverable(text);
    // What recovery makes of broken syntax is not what the user wrote, so it is not judged.
    let broken = errors.iter().any(|error| !report::is_duplicate(error));
    let source = read::Source::new(name, text, folder, report::all_syntax(text, &errors));
    let config = (!broken).then(|| check::resolve(file::read(&table, &source), &source));
    match config {
        Some(config) if source.is_clean() => Ok(config),
        _ => Err(Problems::new(name, text, source.into_problems())),
    }
}

/// All of gateway.toml.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[log]`
    pub log: Log,
    /// `[admin]`: no section, no listener.
    pub admin: Option<Admin>,
    /// `[store]`
    pub store: Store,
    /// `[upstreams.*]`, in the order of the file.
    pub upstreams: Vec<Upstream>,
    /// `[limits.*]`, in the order of the file.
    pub limits: Vec<Limit>,
    /// `[[routes]]`, in the order of the file; `route` sorts them.
    pub routes: Vec<Route>,
    /// What does not refuse the file, but is hardly meant as it is written.
    pub warnings: Problems,
}

/// The size of a body that nothing limits.
pub const UNLIMITED: u64 = u64::MAX;

/// `[server]`: where clients come in.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Addresses to listen on, at least one; port 0 lets the system pick.
    pub listen: Vec<SocketAddr>,
    /// Worker threads; 0 is one per core.
    pub workers: usize,
    /// Networks whose X-Forwarded-For is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How long a client may take to send a request head.
    pub header_timeout: Duration,
    /// How long a connection may stay open with nothing under way.
    pub idle_timeout: Duration,
    /// The longest that a client may go without sending more of a request body, or without reading a response.
    pub body_timeout: Duration,
    /// The most connections at once.
    pub max_connections: MaxConnections,
    /// The most connections at once from one address, trusted proxies excepted; 0 is no limit.
    pub max_connections_per_ip: usize,
    /// The largest request head in bytes.
    pub max_header_size: usize,
    /// The largest request body in bytes, or [`UNLIMITED`].
    pub max_body_size: u64,
    /// How long `/readyz` says 503 before listeners close.
    pub drain_delay: Duration,
    /// How long a shutdown waits for requests under way.
    pub drain_timeout: Duration,
    /// Which paths are the same.
    pub paths: PathRules,
}

/// Which paths are the same, and what is a slash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// `path_matching`
    pub matching: PathMatching,
    /// `escaped_slashes`
    pub escaped_slashes: EscapedSlashes,
}

/// What makes another path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMatching {
    /// One final slash does not, and what follows a `;` in a segment does not.
    #[default]
    Forgiving,
    /// Both do.
    Exact,
}

/// What `%2F` and `%5C` in a path are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// Answered 400.
    #[default]
    Reject,
    /// Part of a segment.
    Keep,
    /// Slashes, for the upstream too.
    Decode,
}

/// The most connections at once.
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
    /// How a line looks.
    pub format: LogFormat,
    /// Which requests get a line.
    pub access: AccessLog,
}

/// Which requests get a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// All.
    On,
    /// All but most of those of a client that floods and is refused.
    Sampled,
    /// None.
    Off,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines: one JSON object a line.
    Json,
}

/// `[admin]`: health and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Where the admin listener binds.
    pub listen: SocketAddr,
}

/// `[store]`: where counters live.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// In this process.
    Memory {
        /// The most keys held at once, at least 1.
        max_keys: usize,
        /// The most bytes that they take.
        max_memory: usize,
    },
    /// In Memcached, shared with other gateways.
    Memcached(Memcached),
}

/// `[store]` with `type = "memcached"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Memcached {
    /// `host:port`, at least one.
    pub servers: Vec<String>,
    /// The first part of every key: 1 to 64 printable characters without spaces.
    pub prefix: String,
    /// The longest a request waits for Memcached.
    pub timeout: Duration,
    /// What happens to requests while Memcached is away.
    pub on_error: OnError,
    /// Whether an admission waits until Memcached has confirmed it.
    pub strict: bool,
}

/// What happens to requests while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// They are counted in this process, from the last known counts on.
    Local,
    /// They go through, counted by nothing.
    Allow,
    /// They are answered 503.
    Reject,
}

/// `[upstreams.NAME]`: servers that answer requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The name routes use.
    pub name: String,
    /// At least one.
    pub servers: Vec<UpstreamServer>,
    /// The longest a connection attempt may take.
    pub connect_timeout: Duration,
    /// The longest until the head of the response arrives.
    pub timeout: Duration,
    /// The longest between two pieces of a response's body; `None` is for ever.
    pub read_timeout: Option<Duration>,
    /// How long an unused connection is kept.
    pub max_idle: Duration,
    /// How long a connection is used at all.
    pub max_age: Duration,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamServer {
    /// Where it is.
    pub address: Address,
    /// Its share of requests beside the other servers', 1 to 100.
    pub weight: u32,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `http://host:port`
    Http {
        /// A name or an address; IPv6 without brackets.
        host: String,
        /// 80 where the URL names none.
        port: u16,
        /// The Host header to send: as in the URL.
        authority: String,
    },
    /// `builtin:echo`, the upstream that ships with the binary.
    Echo,
}

/// `[limits.NAME]`: what is counted, and how much is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The name routes use; printable ASCII, it goes into headers and keys.
    pub name: String,
    /// What is counted.
    pub key: Key,
    /// All of them must hold; empty only beside `max_in_flight`. Their strategies are already in them.
    pub rates: Vec<Rate>,
    /// How many requests of a key may be under way at the same moment in this process, 1 to 2^32.
    pub max_in_flight: Option<u64>,
    /// What a request costs, and when that is known.
    pub cost: Cost,
    /// The only keys that count as present, where what the first part of `key` reads is chosen by clients.
    pub known_keys: Option<Arc<KnownKeys>>,
    /// Keys that get something else than `rates`.
    pub overrides: Arc<Overrides>,
    /// Rates by an attribute of the request, for keys without an override.
    pub tiers: Option<Tiers>,
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
    /// What kind of text `body` is.
    pub content_type: HeaderValue,
}

/// What a request costs, and when that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This much, 1 to 2^32.
    Fixed(u64),
    /// What this header of the request says; 1 if it says nothing that is a cost.
    RequestHeader(HeaderName),
    /// What a header of the response says.
    ResponseHeader {
        /// Which one.
        name: HeaderName,
        /// What is charged until the response is there, and stays charged if it says nothing that is a cost: 1 to 2^32.
        reserve: u64,
    },
    /// This much, charged until the response is there, and then only if it has one of these statuses.
    OnStatus(u64, Vec<RangeInclusive<u16>>),
}

/// Rates by an attribute of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// Where the name of the tier comes from.
    pub source: Source,
    /// At least one, each with at least one rate; a request of no known tier gets the limit's own rates.
    pub rates: Vec<(String, Vec<Rate>)>,
}

/// What happens to a request over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLimit {
    /// It is refused.
    Reject,
    /// It passes; a header and a metric say that it would have been refused.
    Shadow,
    /// It is answered as if all were well, and goes nowhere.
    Silent,
    /// It is held until it fits.
    Delay {
        /// The longest it is held.
        max_delay: Duration,
        /// How many of a key are held at the same time in this process, at least 1.
        max_delayed: usize,
    },
}

impl OnLimit {
    /// Whether clients are told of the limit. One that only reports or is silent is nobody's business.
    pub fn is_told(self) -> bool {
        matches!(self, Self::Reject | Self::Delay { .. })
    }
}

/// What is counted: every part together is the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// At least one part; of each part the first source that is present counts.
    pub parts: Vec<Vec<Source>>,
}

/// Where a part of a key comes from.
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
    /// `global`: one counter for everybody.
    Global,
}

impl Source {
    /// Whether clients write what is read from it, so that they can make up as many values as they like.
    pub fn is_chosen_by_clients(&self) -> bool {
        !matches!(self, Self::ClientIp { .. } | Self::Route | Self::Global)
    }
}

/// What happens to a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// All such requests share one counter.
    Shared,
    /// The limit does not apply.
    Skip,
    /// Answered 400.
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

/// `[[routes]]`: which requests, and what to do with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The host it is for.
    pub host: Host,
    /// The paths it is for.
    pub path: PathPattern,
    /// Whether the case of ASCII letters in the path makes no difference.
    pub ignore_case: bool,
    /// The methods it is for; empty is all.
    pub methods: Vec<Method>,
    /// Headers that must be present.
    pub headers: Vec<(HeaderName, HeaderMatch)>,
    /// What answers.
    pub action: Action,
    /// Indices into [`Config::limits`], without repetition.
    pub limits: Vec<usize>,
    /// The largest request body in bytes, or [`UNLIMITED`]: the route's own or the server's.
    pub max_body_size: u64,
}

/// What a route wants of a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderMatch {
    /// `"*"`: any value, also an empty one.
    Present,
    /// This value in one of its lines.
    Exact(String),
}

/// Which hosts a route is for. Names are lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Every host.
    Any,
    /// Every name under this one: `*.example.com` is `example.com` here, and does not match it.
    Under(String),
    /// This name only.
    Exact(String),
}

/// What answers a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// An upstream does.
    Forward {
        /// Index into [`Config::upstreams`].
        upstream: usize,
        /// How many leading segments of the path are left out, from `strip_prefix`.
        strip: usize,
        /// Whether the upstream sees the client's Host header.
        preserve_host: bool,
    },
    /// The gateway itself does.
    Respond {
        /// The status, 200 to 599.
        status: StatusCode,
        /// The body.
        body: String,
        /// What kind of text the body is.
        content_type: HeaderValue,
    },
}

/// Which paths a route is for: segments, then perhaps a final `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// As written.
    pub text: String,
    /// Between the slashes; `/` is one empty literal, `/a/` ends in one.
    pub segments: Vec<Segment>,
    /// Whether a final `*` takes the rest, which may be empty.
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
impl std::fmt::Display for HeaderMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Present => "*",
            Self::Exact(value) => value,
        })
    }
}

/// Writes the source as the configuration spells it.
impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            Self::Global => f.write_str("global"),
        }
    }
}
