//! `[store]`: where counters live.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::UpstreamTls;

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
    Shared(SharedStore),
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
            Self::Shared(shared) => shared.on_error,
        }
    }

    /// Which gateways share the limits, if each has its own counters.
    pub fn share(&self) -> Option<&Share> {
        match self {
            Self::Memory { share, .. } => share.as_ref(),
            Self::Shared(_) => None,
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
            (Self::Shared(shared), Self::Shared(other)) => shared == other,
            (Self::Memory { .. }, Self::Shared(_)) | (Self::Shared(_), Self::Memory { .. }) => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SharedStore {
    pub software: Software,
    /// `host:port`, at least one.
    pub servers: Vec<String>,
    /// The first part of every key: 1 to 64 printable characters without spaces.
    pub prefix: String,
    /// The longest time that a request waits for a server.
    pub timeout: Duration,
    pub on_error: OnError,
    /// Whether an admission waits until the server has confirmed it.
    pub strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreType {
    Memory,
    Memcached,
    Valkey,
}

/// What the servers of a shared store run.
#[derive(Clone, Debug, PartialEq)]
pub enum Software {
    Memcached,
    /// Valkey or Redis.
    Valkey(Login),
}

/// As whom, and how, the gateway speaks to a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Login {
    /// Empty for the default user.
    pub username: String,
    /// Empty if there is none.
    pub password: Password,
    pub database: u16,
    pub tls: Option<Box<UpstreamTls>>,
}

/// Nothing shows it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Software {
    /// As users know it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memcached => "Memcached",
            Self::Valkey(_) => "Valkey",
        }
    }

    /// The port of servers for which none is given.
    pub fn port(&self) -> u16 {
        match self {
            Self::Memcached => 11_211,
            Self::Valkey(_) => 6379,
        }
    }

    /// Whether a server may be a cluster, which keeps together the keys that have the same text in braces.
    pub fn has_slots(&self) -> bool {
        matches!(self, Self::Valkey(_))
    }

    /// As `type` spells it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Valkey(_) => "valkey",
        }
    }
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
