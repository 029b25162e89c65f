//! TLS for clients: the certificates of the gateway, which of them a client is shown, and what is asked of clients. The
//! protocol itself is rustls's.

mod certificate_choice;
mod client_auth;
mod client_certificate;
mod identity;
mod listener_tls;

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub use client_auth::ClientAuth;
pub use client_certificate::ClientCertificate;
pub use identity::{Identity, PemError, certificates, private_key};
pub use listener_tls::{ALPN_HTTP2, ListenerTls, MinVersion, TlsSettings};

/// What computes the ciphers, signatures and key exchanges of every connection.
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    &PROVIDER
}

#[cfg(test)]
mod tests;
