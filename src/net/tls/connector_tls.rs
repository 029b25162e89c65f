//! How connections to upstreams use TLS: which certificates of servers are trusted, and which one the gateway shows.

use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::sign::SingleCertAndKey;

use super::authorities::Authorities;
use super::identity::Identity;
use super::provider;
use super::server_check::ServerCheck;

/// TLS for the servers of an upstream. Clones resume each other's sessions. If two are equal, each may use the connections
/// of the other.
#[derive(Clone, Debug)]
pub struct ConnectorTls {
    authorities: Authorities,
    identity: Option<Identity>,
    config: Arc<ClientConfig>,
}

impl PartialEq for ConnectorTls {
    fn eq(&self, other: &Self) -> bool {
        (&self.authorities, &self.identity) == (&other.authorities, &other.identity)
    }
}

impl ConnectorTls {
    /// A server needs a certificate that one of `authorities` has issued or is, and gets that of `identity` if it asks for one.
    ///
    /// # Errors
    /// When the ciphers allow no version of TLS.
    pub fn new(authorities: Authorities, identity: Option<Identity>) -> Result<Self, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(provider().clone()).with_safe_default_protocol_versions()?;
        let builder = match ServerCheck::issued(&authorities) {
            Some(check) => builder.dangerous().with_custom_certificate_verifier(check),
            None => builder.with_root_certificates(authorities.roots.clone()),
        };
        let config = match &identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key.clone()))),
            None => builder.with_no_client_auth(),
        };
        Ok(Self { authorities, identity, config: Arc::new(config) })
    }

    /// A server needs a certificate of an authority that the system trusts.
    ///
    /// # Errors
    /// When there are no such authorities, or the ciphers allow no version of TLS.
    pub fn of_system() -> io::Result<Self> {
        Self::new(Authorities::of_system()?, None).map_err(io::Error::other)
    }

    /// A server needs one of these certificates itself, whoever has issued it and whatever its names are.
    ///
    /// # Errors
    /// When the ciphers allow no version of TLS.
    pub fn pinned(certificates: &[Identity]) -> Result<Self, rustls::Error> {
        let certificates = certificates.iter().filter_map(|one| one.key.cert.first().cloned()).collect();
        let builder = ClientConfig::builder_with_provider(provider().clone()).with_safe_default_protocol_versions()?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(ServerCheck::Pinned(certificates)));
        let authorities = Authorities { certificates: Arc::new([]), roots: Arc::new(RootCertStore::empty()) };
        Ok(Self { authorities, identity: None, config: Arc::new(builder.with_no_client_auth()) })
    }

    /// New connections resume its sessions.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }
}
