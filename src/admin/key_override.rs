//! An override of the admin API, as it shows it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOverride {
    /// The key, in full or masked.
    pub key: String,
    /// Its rates; none if it is exempt or blocked.
    pub rates: Vec<String>,
    /// Whether it is not limited at all.
    pub exempt: bool,
    /// Whether all its requests are refused.
    pub block: bool,
    /// When the override ends, as RFC 3339 writes times.
    pub until: String,
}
