//! `[server.tls.acme]`: the names for which an authority issues a certificate by itself (ACME, RFC 8555).

use std::fmt;
use std::path::PathBuf;

use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// `[server.tls.acme]`. That the user agrees to the terms of the authority was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Acme {
    /// The names of the certificate, at least one: in lower case, each once, none with a wildcard.
    pub names: Vec<String>,
    /// Where the authority can reach the operator.
    pub email: Option<String>,
    /// What tells where the authority is asked for what: `https://`, or `http://` on this machine.
    pub directory: Url,
    /// The file of those who have issued the certificate of the directory; `None` trusts those of the system.
    pub ca: Option<PathBuf>,
    /// How the authority is connected to; `None` without `https`.
    pub tls: Option<ConnectorTls>,
    /// How the gateway shows that it answers for its names.
    pub challenge: Challenge,
    /// What gateways sign the answers with that they leave for each other in a store that they share; `None` for those with one
    /// state folder.
    pub challenge_secret: Option<ChallengeSecret>,
    /// What the account of the authority is bound to when it is made.
    pub external_account: Option<ExternalAccount>,
}

/// An account that the operator has with the authority by other means (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// What the authority calls its key.
    pub id: String,
    pub key: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, ***", self.id)
    }
}

/// A key that is made of a secret. The secret itself is not kept, so nothing can show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChallengeSecret([u8; 32]);

impl ChallengeSecret {
    pub fn new(secret: &str) -> Self {
        Self(blake3::derive_key("gateway 2026 notes of a challenge_secret", secret.as_bytes()))
    }

    pub fn key(self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for ChallengeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How a gateway shows that it answers for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By the certificate of a TLS handshake (RFC 8737).
    TlsAlpn01,
    /// By a response to a plain request (RFC 8555, section 8.3).
    Http01,
}
