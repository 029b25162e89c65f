//! The numbers of the dashboard as JSON: what `/api/events` and `/api/limits` send, and what `gateway top` reads.
//!
//! Counters are totals since the start of the gateway, and those of a store since it is in force. Whoever reads them twice
//! computes rates from the differences, so that a reading that is missed does no harm.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::key_override::KeyOverride;
use super::outcome_groups::RouteNumbers;

/// The event `numbers`: how the gateway does now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// When this was, in milliseconds since 1970.
    pub time_ms: u64,
    /// The version of the gateway.
    pub version: String,
    /// When the gateway started, in seconds since 1970.
    pub started: u64,
    /// How long ago that was.
    pub uptime_seconds: u64,
    /// Whether it takes requests.
    pub state: State,
    /// The requests that have ended, by outcome.
    pub requests: BTreeMap<String, u64>,
    /// How long requests took that an upstream has answered.
    pub forwarded_seconds: Durations,
    /// The requests that wait for room under a limit.
    pub held: usize,
    /// The minute in progress, since 1970.
    pub minute: u64,
    /// The limits, those first that have refused most in the last hour.
    pub limits: Vec<LimitNumbers>,
    /// The routes with the most requests.
    pub routes: Vec<RouteNumbers>,
    /// The store of the limits' counters.
    pub store: Option<StoreNumbers>,
    /// The upstreams, in the order of the configuration.
    pub upstreams: Vec<UpstreamNumbers>,
    /// The connections of clients.
    pub connections: ConnectionNumbers,
    /// The reloads of the configuration.
    pub reloads: ReloadNumbers,
    /// Those of the certificates alone, whose files are read again when they change.
    pub certificates: ReloadNumbers,
    /// The certificates that expire first.
    pub expiries: Vec<Certificate>,
}

/// What load balancers and people have to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It serves.
    Ready,
    /// It serves, but an operator wants that no requests are sent to it.
    Draining,
    /// It ends when the requests in flight have ended.
    Stopping,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Durations {
    /// The bounds in seconds, rising.
    pub bounds: Vec<f64>,
    /// For each bound the number of durations up to it and above the one before; the last is for those above all bounds.
    pub counts: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitNumbers {
    pub name: String,
    /// How often it has decided what.
    pub decisions: Decisions,
    /// What it has refused in the minute in progress.
    pub refused_this_minute: u64,
}

/// How often a limit has decided what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions {
    /// Admitted by this limit and by all others of the route.
    pub admitted: u64,
    /// Refused by this limit.
    pub rejected: u64,
    /// Over this limit, but admitted because the limit only reports.
    pub shadowed: u64,
    /// Over this limit, which answers without saying so.
    pub silenced: u64,
    /// Held by this limit until there was room or the longest delay was over.
    pub delayed: u64,
    /// Over this limit, and charged to its pool instead.
    pub overflowed: u64,
    /// Not counted because the key is exempt.
    pub exempt: u64,
    /// Refused because the key is blocked.
    pub blocked: u64,
    /// Refused because the key is banned.
    pub banned: u64,
    /// Admitted by this limit, but refused by another, so not charged.
    pub not_charged: u64,
    /// Not counted because the request has no key.
    pub skipped: u64,
    /// Refused because the request has no key.
    pub keyless: u64,
    /// Not decided because the store did not answer.
    pub unknown: u64,
}

impl Decisions {
    /// What the limit has refused, or would have refused if it only reports.
    pub fn refused(&self) -> u64 {
        [self.rejected, self.shadowed, self.silenced, self.blocked, self.banned, self.keyless]
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}

/// The store of the limits' counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum StoreNumbers {
    /// In the memory of the process.
    Memory(MemoryNumbers),
    Memcached(MemcachedNumbers),
}

/// A store in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNumbers {
    /// How many keys have counters.
    pub keys: usize,
    /// How many may have some.
    pub max_keys: usize,
    /// The memory of the counters.
    pub bytes: usize,
    /// How much it may be.
    pub max_bytes: usize,
    /// How many keys were evicted that were in use.
    pub evictions: u64,
    /// How many gateways share the limits.
    pub gateways: u64,
}

/// A store in Memcached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemcachedNumbers {
    pub servers: Vec<MemcachedServer>,
    /// The exchanges with servers.
    pub round_trips: u64,
    /// Those that failed.
    pub errors: u64,
    /// The decisions without Memcached.
    pub local: u64,
    /// The counters that Memcached has lost.
    pub lost: u64,
    /// How long exchanges took.
    pub round_trip_seconds: Durations,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemcachedServer {
    /// Its address.
    pub server: String,
    /// Whether it answers.
    pub up: bool,
    /// How many seconds its clock is ahead of that of the gateway.
    pub clock_skew_seconds: f64,
    /// How many items it has evicted.
    pub evictions: u64,
}

/// An upstream. `/api/upstreams` shows the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpstreamNumbers {
    pub name: String,
    /// The requests that were repeated.
    pub retries: u64,
    /// Those that were not, because too many were.
    pub retries_over_budget: u64,
    /// The requests that wait for a server.
    pub waiting: usize,
    pub servers: Vec<ServerNumbers>,
}

/// A server of an upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerNumbers {
    /// Its address.
    pub server: String,
    /// Its share of the requests, in proportion to those of the others.
    pub weight: u32,
    /// `healthy`, or why it gets no requests.
    pub health: String,
    /// The requests in flight.
    pub in_flight: usize,
    /// How many may be; `None` if there is no maximum.
    pub max_in_flight: Option<usize>,
    /// The requests that it got.
    pub requests: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// How many have failed in a row.
    pub failures_in_row: u32,
    /// How often it was ejected.
    pub ejections: u64,
    /// How many checks have failed.
    pub failed_checks: u64,
    /// The smoothed time until the head of a response.
    pub latency_seconds: Option<f64>,
}

/// The connections of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionNumbers {
    /// How many are open.
    pub open: usize,
    /// How many may be.
    pub max: usize,
    /// Those that were closed because their address has too many.
    pub refused: u64,
    /// Those that were closed to make room.
    pub evicted: u64,
    /// Those that were ended because the client did not read.
    pub stalled: u64,
}

/// The reloads of the configuration, or of the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadNumbers {
    /// How many have succeeded.
    pub ok: u64,
    /// How many were refused.
    pub refused: u64,
    /// Whether what is there now is in force.
    pub current: bool,
    /// The last ones, the latest first.
    pub recent: Vec<EndedReload>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedReload {
    /// When it ended, in seconds since 1970.
    pub time: u64,
    pub result: ReloadOutcome,
    /// The first problem of what was refused.
    pub problem: Option<Problem>,
}

/// How a reload has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadOutcome {
    /// It is in force.
    Ok,
    /// The one before stays in force.
    Refused,
}

/// What is wrong with a configuration or a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Where in the file.
    pub place: Option<String>,
    /// What is wrong.
    pub message: String,
    pub help: Option<String>,
}

/// A certificate of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Its file.
    pub certificate: String,
    /// The hosts that it is for.
    pub names: Vec<String>,
    /// When the first certificate of its chain expires, as RFC 3339 writes times.
    pub valid_until: String,
}

/// The event `history`: the last minutes and the last hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct History {
    /// When requests were counted, in milliseconds since 1970, rising.
    pub times_ms: Vec<u64>,
    /// For each outcome that has occurred, the total at each of these times.
    pub requests: BTreeMap<String, Vec<u64>>,
    /// The minute in progress, since 1970.
    pub minute: u64,
    /// What each limit has refused in each of the last minutes, the one in progress last.
    pub refused_by_minute: BTreeMap<String, Vec<u64>>,
}

/// The answer of `/api/limits`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Since when keys are counted, as RFC 3339 writes times.
    pub keys_since: String,
    /// The limits, in the same order as in [`Numbers`].
    pub limits: Vec<LimitDescription>,
}

/// A limit with its rates and its most frequent keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDescription {
    pub name: String,
    /// Its rates, as the configuration writes them, or the part of them that this gateway enforces.
    pub rates: Vec<String>,
    /// How many gateways share the rates of the configuration; 1 if these are the whole rates.
    pub gateways: u64,
    /// What happens to requests over it, in the configuration's word.
    pub on_limit: String,
    /// How many requests of a key may be in flight.
    pub max_in_flight: Option<u64>,
    /// When its keys are banned and how they are answered then, in words; `None` if it bans none.
    pub ban: Option<String>,
    /// The keys that are banned, as far as this gateway knows; those whose bans end first.
    pub bans: Vec<Ban>,
    /// How many keys have overrides in the configuration.
    pub overrides: usize,
    /// How many keys have one that the admin API has set.
    pub temporary_overrides: usize,
    /// Those of them that end first.
    pub temporary: Vec<KeyOverride>,
    /// How often it has decided what.
    pub decisions: Decisions,
    /// The tokens of its requests; `None` if these do not cost tokens.
    pub tokens: Option<TokenNumbers>,
    /// The keys that it has refused most often.
    pub most_refused: Vec<KeyCount>,
    /// The keys with the most requests.
    pub most_busy: Vec<KeyCount>,
}

/// A ban of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ban {
    /// The key, in full or masked.
    pub key: String,
    /// When the ban ends, as RFC 3339 writes times.
    pub until: String,
    /// How many bans of the key have followed each other.
    pub times: u64,
}

/// The tokens of language models that the requests of a limit have used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenNumbers {
    /// What requests were charged until their responses have ended.
    pub reserved: u64,
    /// What the same requests have cost in the end.
    pub settled: u64,
    /// The responses whose tokens were estimated.
    pub estimated: u64,
    /// The streams that were cut.
    pub cut: u64,
    /// The models whose requests have cost most, the first one most.
    pub models: Vec<ModelNumbers>,
}

/// The tokens of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelNumbers {
    /// Its name in requests.
    pub model: String,
    /// Tokens of the input that were not in the provider's cache.
    pub input: u64,
    /// Those that were.
    pub cached: u64,
    /// Tokens of the output.
    pub output: u64,
    /// What requests have cost in the end.
    pub settled: u64,
}

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyCount {
    /// The key, masked unless the gateway shows keys. Requests without a key have an empty one.
    pub key: String,
    /// How often it has occurred, at most.
    pub count: u64,
    /// By how much that may be too high.
    pub error: u64,
}
