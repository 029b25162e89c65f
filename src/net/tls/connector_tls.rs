//! How connections to upstreams use TLS: which certificates of servers are trusted, and which one the gateway shows.
//!
//! Trusted are certificates that an authority has issued, and those that are authorities themselves. A certificate that a
//! server has issued for itself (`openssl req -x509`) is usually its own authority, and the library accepts no authority as a
//! server. Whoever configures this certificate, byte for byte, trusts its owner. Its names and its validity are still checked.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::identity::{Identity, validity};
use super::provider;
use super::trust::Authorities;

/// TLS for the servers of an upstream. Clones resume each other's sessions. If two are equal, each may use the connections
/// of the other.
#[derive(Clone, Debug)]
pub struct ConnectorTls {
    authorities: Authorities,
    identity: Option<Identity>,
    /// New connections resume its sessions.
    pub config: Arc<ClientConfig>,
}

impl PartialEq for ConnectorTls {
    fn eq(&self, other: &Self) -> bool {
        (&self.authorities, &self.identity) == (&other.authorities, &other.identity)
    }
}

impl ConnectorTls {
    /// A server needs a certificate that one of `authorities` has issued or is, and gets that of `identity` if it asks for one.
    /// Fails when the ciphers allow no version of TLS.
    pub fn new(authorities: Authorities, identity: Option<Identity>) -> Result<Self, Error> {
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

    /// Protects a connection to a server, whose certificate must have this name or address.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }

    /// A server needs a certificate of an authority that the system trusts. Fails when there are no such authorities, or the
    /// ciphers allow no version of TLS.
    pub fn of_system() -> io::Result<Self> {
        Self::new(Authorities::of_system()?, None).map_err(io::Error::other)
    }

    /// A server needs one of these certificates itself, whoever has issued it and whatever its names are. Fails when the
    /// ciphers allow no version of TLS.
    pub fn pinned(certificates: &[Identity]) -> Result<Self, Error> {
        let certificates = certificates.iter().filter_map(|one| one.key.cert.first().cloned()).collect();
        let builder = ClientConfig::builder_with_provider(provider().clone()).with_safe_default_protocol_versions()?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(ServerCheck::Pinned(certificates)));
        let authorities = Authorities { certificates: Arc::new([]), roots: Arc::new(RootCertStore::empty()) };
        Ok(Self { authorities, identity: None, config: Arc::new(builder.with_no_client_auth()) })
    }
}

#[derive(Debug)]
enum ServerCheck {
    /// Trusts the certificates of one `ca` file or of the system.
    Issued(Arc<WebPkiServerVerifier>, Authorities),
    /// Trusts only these certificates, whoever has issued them and whatever their names are.
    Pinned(Vec<CertificateDer<'static>>),
}

impl ServerCheck {
    /// `None` if there are no authorities, so that no server is trusted.
    pub(super) fn issued(authorities: &Authorities) -> Option<Arc<Self>> {
        let builder = WebPkiServerVerifier::builder_with_provider(authorities.roots.clone(), provider().clone());
        Some(Arc::new(Self::Issued(builder.build().ok()?, authorities.clone())))
    }
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (issued, authorities) = match self {
            Self::Issued(issued, authorities) => (issued, authorities),
            Self::Pinned(certificates) => {
                let is_known = certificates.contains(end_entity);
                let unknown = CertificateError::ApplicationVerificationFailure;
                return is_known.then(ServerCertVerified::assertion).ok_or(unknown.into());
            }
        };
        let issued = issued.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        if issued.is_ok() || !authorities.certificates.contains(end_entity) {
            return issued;
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        let (not_before, not_after) = validity(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        match now.as_secs() {
            now if now < not_before.seconds() => Err(CertificateError::NotValidYet.into()),
            now if now > not_after.seconds() => Err(CertificateError::Expired.into()),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
