//! `[server.tls.acme]`: names for which the gateway gets a certificate from an authority (ACME, RFC 8555).

use std::fmt;
use std::path::PathBuf;

use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// The reader has checked that the user agrees to the terms of the authority.
#[derive(Clone, Debug, PartialEq)]
pub struct Acme {
    /// The names of the certificate, at least one: in lower case, each once, none with a wildcard.
    pub names: Vec<String>,
    pub email: Option<String>,
    /// The URL of the directory (RFC 8555, section 7.1.1): `https://`, or `http://` on this machine.
    pub directory: Url,
    /// The file with authorities that are trusted for the directory; `None` trusts those of the system.
    pub ca: Option<PathBuf>,
    /// `None` without `https`.
    pub tls: Option<ConnectorTls>,
    pub challenge: Challenge,
    /// Signs the answers that gateways leave for each other in a shared store; `None` for gateways with one state folder.
    pub challenge_secret: Option<ChallengeSecret>,
    pub external_account: Option<ExternalAccount>,
}

/// An account that the operator already has with the authority; the ACME account is bound to it (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key identifier that the authority has given.
    pub id: String,
    pub key: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, ***", self.id)
    }
}

/// A key derived from a secret. The secret itself is not kept, so nothing can show it.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By the certificate of a TLS handshake (RFC 8737).
    TlsAlpn01,
    /// By a response to a plain request (RFC 8555, section 8.3).
    Http01,
}
