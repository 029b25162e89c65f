//! `[server.shed]` as it runs: when requests are answered before anything is done for them.

use std::time::Duration;

use http::StatusCode;

/// The highest priority of a request. The lowest is 0.
pub const HIGHEST_PRIORITY: u8 = 9;
/// The priority of a route that names none.
pub const DEFAULT_PRIORITY: u8 = 5;

/// When requests of low priorities are shed. At least one of `cpu` and `latency` is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shed {
    /// The wanted share of the processors that may be in use, in thousandths.
    pub cpu: Option<u32>,
    /// The wanted time until the head of an upstream's response.
    pub latency: Option<Duration>,
    /// The status of requests that are shed, 400 to 599.
    pub status: StatusCode,
}
