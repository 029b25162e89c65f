//! `[admin]` as it runs: where the admin listener binds, and who may use it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `[admin]`: health, metrics and the API of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where the admin listener binds.
    pub listen: AdminAddress,
    /// What requests have to show. There is always one if `listen` can be reached from other machines.
    pub token: Option<AdminToken>,
    /// Names besides `localhost` under which browsers may use a listener on loopback, in lower case without a port.
    pub hosts: Vec<String>,
    /// Whether keys are shown in full.
    pub show_keys: bool,
}

/// Where the admin listener binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// The address; the system chooses a port for port 0.
    Tcp(SocketAddr),
    /// `unix:PATH`: a Unix socket.
    Unix(PathBuf),
}

/// The hash of a token. The token itself is not kept, so nothing can show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AdminToken(blake3::Hash);

impl AdminAddress {
    /// Whether it is an address of TCP that only this machine can reach.
    pub fn is_loopback(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().to_canonical().is_loopback())
    }
}

impl AdminToken {
    /// The hash of `token`.
    pub fn new(token: &str) -> Self {
        Self(blake3::hash(token.as_bytes()))
    }

    /// Whether `shown` is the token. How long this takes depends only on the length of `shown`: hashes are compared, and
    /// the comparison of [`blake3::Hash`] takes constant time.
    pub fn is(&self, shown: &[u8]) -> bool {
        blake3::hash(shown) == self.0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Writes the address as the configuration spells it.
impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
