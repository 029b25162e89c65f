//! `[store]`: where counters live.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    Memory {
        /// At least 1.
        max_keys: usize,
        /// For all counters, in bytes.
        max_memory: usize,
        /// The counters are written to this file at the end of the process, and read from it at the start.
        snapshot: Option<PathBuf>,
        /// `None` if no other gateway counts the same keys.
        share: Option<Share>,
    },
    Memcached(SharedStore),
}

/// How many gateways share the limits, each with its own counters. Each enforces its part of every rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// At least 1, this one included.
    Gateways(u64),
    /// As many as this host name has addresses.
    Name(String),
}

impl Store {
    /// What happens to a request if the store does not answer. Memory always answers.
    pub fn on_error(&self) -> OnError {
        match self {
            Self::Memory { .. } => OnError::Allow,
            Self::Memcached(memcached) => memcached.on_error,
        }
    }

    /// Which gateways share the limits, if each has its own counters.
    pub fn share(&self) -> Option<&Share> {
        match self {
            Self::Memory { share, .. } => share.as_ref(),
            Self::Memcached(_) => None,
        }
    }

    /// How many gateways share the limits, as far as the file alone says; at least 1.
    pub fn fixed_gateways(&self) -> u64 {
        match self.share() {
            Some(Share::Gateways(gateways)) => *gateways,
            Some(Share::Name(_)) | None => 1,
        }
    }

    /// Whether both keep their counters in the same place, so that one store can serve both.
    pub fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory { .. }, Self::Memory { .. }) => true,
            (Self::Memcached(memcached), Self::Memcached(other)) => memcached == other,
            (Self::Memory { .. }, Self::Memcached(_)) | (Self::Memcached(_), Self::Memory { .. }) => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SharedStore {
    /// `host:port`, at least one.
    pub servers: Vec<String>,
    /// The first part of every key: 1 to 64 printable characters without spaces.
    pub prefix: String,
    /// The longest time that a request waits for Memcached.
    pub timeout: Duration,
    pub on_error: OnError,
    /// Whether an admission waits until Memcached has confirmed it.
    pub strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Counted in this process, starting from the last known counts.
    Local,
    /// Admitted without being counted.
    Allow,
    /// Answered 503.
    Reject,
}
