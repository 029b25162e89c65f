//! An override of one key, as the admin API shows it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOverride {
    /// In full or masked.
    pub key: String,
    /// Empty if the key is exempt or blocked.
    pub rates: Vec<String>,
    pub exempt: bool,
    pub block: bool,
    /// In RFC 3339.
    pub until: String,
}
