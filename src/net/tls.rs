//! TLS for clients and to upstreams: the gateway's certificates, the choice which of them is shown, and whose
//! certificates are trusted. The protocol itself is rustls's.

mod identity;
mod trust;
mod tickets;
mod listener_tls;
mod connector_tls;

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub use connector_tls::ConnectorTls;
pub use identity::{Identity, PemError, certificates, private_key};
pub(crate) use listener_tls::asked_name;
pub use listener_tls::{ListenerTls, MinVersion, PreparedTls, TlsSettings, challenge_config};
pub use trust::{Authorities, ClientAuth, ClientCertificate};

/// Names of HTTP/2 (RFC 9113, section 3.2) and HTTP/1.1 (RFC 7301, section 6) in ALPN.
pub const ALPN_HTTP2: &[u8] = b"h2";
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    &PROVIDER
}

#[cfg(test)]
mod tests;
