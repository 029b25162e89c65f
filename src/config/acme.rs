//! `[server.tls.acme]`: the names for which an authority issues a certificate by itself (ACME, RFC 8555).

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
}

/// How a gateway shows that it answers for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By the certificate of a TLS handshake (RFC 8737).
    TlsAlpn01,
    /// By a response to a plain request (RFC 8555, section 8.3).
    Http01,
}
