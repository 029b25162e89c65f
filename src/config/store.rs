//! `[store]`: where counters live.

use std::path::PathBuf;
use std::time::Duration;

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
        /// Who else counts the same keys; `None` if nobody does.
        share: Option<Share>,
    },
    /// In Memcached, shared with other gateways.
    Memcached(SharedStore),
}

/// How many gateways share the limits, each with counters of its own. Each enforces its part of every rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// So many, at least 1, this one among them.
    Gateways(u64),
    /// As many as this host name has addresses.
    Name(String),
}

impl Store {
    /// What happens to a request if the store does not answer. Memory always does.
    pub fn on_error(&self) -> OnError {
        match self {
            Self::Memory { .. } => OnError::Allow,
            Self::Memcached(memcached) => memcached.on_error,
        }
    }

    /// Which gateways share the limits, if they count apart.
    pub fn share(&self) -> Option<&Share> {
        match self {
            Self::Memory { share, .. } => share.as_ref(),
            Self::Memcached(_) => None,
        }
    }

    /// How many gateways share the limits, as far as the file alone tells; at least 1.
    pub fn fixed_gateways(&self) -> u64 {
        match self.share() {
            Some(Share::Gateways(gateways)) => *gateways,
            Some(Share::Name(_)) | None => 1,
        }
    }

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
pub struct SharedStore {
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
