//! A route, as the dashboard shows it.

use serde::{Deserialize, Serialize};

/// What the requests of a route have become, since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteNumbers {
    /// Its name.
    pub name: String,
    /// All that have ended.
    pub requests: u64,
    /// Those that the gateway refused: by a limit, as not valid, or because no route takes them.
    pub refused: u64,
    /// Those that nobody could answer, or that were shed.
    pub failed: u64,
}
