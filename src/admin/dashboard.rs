//! The numbers of the dashboard as JSON: what `/api/events` and `/api/limits` send, and what `gateway top` reads. What a field means
//! is in docs/openapi.json, and here only if that does not say it.
//!
//! Counters are totals since the start of the gateway; those of a store are totals since a configuration put it in force.
//! Readers compute rates from differences, so a missed reading does no harm.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The event `numbers`: the present state of the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    pub time_ms: u64,
    pub version: String,
    pub started: u64,
    pub uptime_seconds: u64,
    pub state: State,
    pub requests: BTreeMap<String, u64>,
    /// The durations of requests that an upstream answered.
    pub forwarded_seconds: Durations,
    pub held: usize,
    pub minute: u64,
    pub limits: Vec<LimitNumbers>,
    pub routes: Vec<RouteNumbers>,
    /// `None` while a reload changes the store.
    pub store: Option<StoreNumbers>,
    /// In the order of the configuration.
    pub upstreams: Vec<UpstreamNumbers>,
    pub connections: ConnectionNumbers,
    pub reloads: ReloadNumbers,
    pub certificates: ReloadNumbers,
    pub expiries: Vec<Certificate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ready,
    /// The gateway serves, but an operator wants load balancers to send it nothing.
    Draining,
    /// The gateway ends after the requests in flight.
    Stopping,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Durations {
    pub bounds: Vec<f64>,
    pub counts: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitNumbers {
    pub name: String,
    pub decisions: Decisions,
    pub refused_this_minute: u64,
}

/// How many requests a limit has decided in each way. The ways have the names that the metrics use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions(pub BTreeMap<String, u64>);

impl Decisions {
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// What the limit has refused, or would have refused if it only reports.
    pub fn refused(&self) -> u64 {
        let refusals = ["rejected", "shadowed", "silenced", "blocked", "banned", "keyless"];
        refusals.iter().fold(0, |sum: u64, name| sum.saturating_add(self.of(name)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum StoreNumbers {
    Memory(MemoryNumbers),
    Memcached(SharedNumbers),
    Valkey(SharedNumbers),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNumbers {
    pub keys: usize,
    pub max_keys: usize,
    pub bytes: usize,
    pub max_bytes: usize,
    /// How many keys the store evicted although they were in use.
    pub evictions: u64,
    pub gateways: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedNumbers {
    pub servers: Vec<StoreServer>,
    pub round_trips: u64,
    pub errors: u64,
    /// Decisions without a server.
    pub local: u64,
    /// Counters that servers have lost.
    pub lost: u64,
    pub round_trip_seconds: Durations,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreServer {
    pub server: String,
    pub up: bool,
    /// How far the clock of the server is ahead of that of the gateway.
    pub clock_skew_seconds: f64,
    pub evictions: u64,
}

/// `/api/upstreams` shows the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpstreamNumbers {
    pub name: String,
    pub retries: u64,
    pub retries_over_budget: u64,
    /// Requests that wait for a server.
    pub waiting: usize,
    pub servers: Vec<ServerNumbers>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerNumbers {
    pub server: String,
    /// The share of requests, in proportion to the weights of the other servers.
    pub weight: u32,
    /// `healthy`, or why it gets no requests.
    pub health: String,
    pub in_flight: usize,
    /// `None` if there is no maximum.
    pub max_in_flight: Option<usize>,
    pub requests: u64,
    pub failures: u64,
    pub failures_in_row: u32,
    pub ejections: u64,
    pub failed_checks: u64,
    /// The smoothed time until the head of a response.
    pub latency_seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionNumbers {
    pub open: usize,
    pub max: usize,
    /// Closed because their address had too many.
    pub refused: u64,
    /// Closed to make room.
    pub evicted: u64,
    /// Ended because the client did not read.
    pub stalled: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadNumbers {
    pub ok: u64,
    pub refused: u64,
    pub current: bool,
    pub recent: Vec<EndedReload>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedReload {
    pub time: u64,
    pub result: ReloadOutcome,
    pub problem: Option<Problem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadOutcome {
    Ok,
    /// The previous configuration, or the previous certificate, stays in force.
    Refused,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub place: Option<String>,
    pub message: String,
    pub help: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    pub certificate: String,
    pub names: Vec<String>,
    pub valid_until: String,
}

/// The event `history`: requests of the last minutes, and refusals of the last hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct History {
    pub times_ms: Vec<u64>,
    pub requests: BTreeMap<String, Vec<u64>>,
    pub minute: u64,
    pub refused_by_minute: BTreeMap<String, Vec<u64>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub keys_since: String,
    /// In the same order as in [`Numbers`].
    pub limits: Vec<LimitDescription>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDescription {
    pub name: String,
    pub rates: Vec<String>,
    pub gateways: u64,
    /// In the configuration's word.
    pub on_limit: String,
    /// Requests of one key at once.
    pub max_in_flight: Option<u64>,
    pub ban: Option<String>,
    pub bans: Vec<Ban>,
    /// The number of keys with overrides in the configuration.
    pub overrides: usize,
    pub temporary_overrides: usize,
    pub temporary: Vec<KeyOverride>,
    pub decisions: Decisions,
    pub tokens: Option<TokenNumbers>,
    pub most_refused: Vec<KeyCount>,
    pub most_busy: Vec<KeyCount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ban {
    pub key: String,
    pub until: String,
    pub times: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenNumbers {
    pub reserved: u64,
    pub settled: u64,
    pub estimated: u64,
    pub cut: u64,
    pub models: Vec<ModelNumbers>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelNumbers {
    pub model: String,
    pub input: u64,
    pub cached: u64,
    pub output: u64,
    pub settled: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyCount {
    pub key: String,
    pub count: u64,
    pub error: u64,
}

/// The requests of a route since the start, as the dashboard shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteNumbers {
    pub name: String,
    /// Those that have ended.
    pub requests: u64,
    /// Refused by a limit, as not valid, or because no route takes them.
    pub refused: u64,
    /// Nobody could answer them, or the gateway shed them.
    pub failed: u64,
}

/// An override of one key by the admin API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOverride {
    pub key: String,
    pub rates: Vec<String>,
    pub exempt: bool,
    pub block: bool,
    pub until: String,
}
