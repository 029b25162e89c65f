//! The TLS handshake that shows an authority that the gateway answers for a name: tls-alpn-01 (RFC 8737).

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ClientHello, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};

use super::provider;

const ALPN_ACME: &[u8] = b"acme-tls/1";

/// The name that an authority asks about; `None` for other clients. An authority offers no other protocol.
pub(crate) fn asked_name(hello: &ClientHello<'_>) -> Option<String> {
    let mut offered = hello.alpn()?;
    let is_challenge = offered.next() == Some(ALPN_ACME) && offered.next().is_none();
    hello.server_name().filter(|_| is_challenge).map(str::to_ascii_lowercase)
}

/// The configuration of a handshake that answers for a name. Nothing else may happen on its connection.
///
/// # Errors
/// When there is no random number for its key.
pub fn challenge_config(name: &str, key_authorization: &str) -> Result<Arc<ServerConfig>, Box<dyn std::error::Error>> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    let digest = digest(&SHA256, key_authorization.as_bytes());
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.der().clone();
    let builder = ServerConfig::builder_with_provider(provider().clone());
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12])?.with_no_client_auth();
    let key = provider().key_provider.load_private_key(PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    // Only the authority understands the certificate, and the builder would check it.
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    let mut config = builder.with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![ALPN_ACME.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
