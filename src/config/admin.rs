//! `[admin]` as it runs: where the admin listener binds, and who may use it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::Tls;

/// `[admin]`: health, metrics and the API of the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Where the admin listener binds.
    pub listen: AdminAddress,
    /// Without it the listener speaks plain HTTP.
    pub tls: Option<Tls>,
    /// What requests have to show. There is always one if `listen` can be reached from other machines.
    pub token: Option<AdminToken>,
    /// What may be shown instead by requests that change nothing. There is none without a `token`.
    pub read_token: Option<AdminToken>,
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

/// What a request to the admin listener may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    All,
    /// What changes nothing.
    Read,
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

impl Admin {
    /// What a request may do that shows this; `None` if it shows neither token.
    pub fn access(&self, shown: &[u8]) -> Option<Access> {
        let is = |token: &Option<AdminToken>| token.as_ref().is_some_and(|token| token.is(shown));
        // Both are compared, so that the time does not tell which one it is.
        match (is(&self.token), is(&self.read_token)) {
            (true, _) => Some(Access::All),
            (false, true) => Some(Access::Read),
            (false, false) => None,
        }
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
