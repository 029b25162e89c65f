//! Which certificates of servers are trusted: those that an authority has issued, and those that are among the authorities
//! themselves.
//!
//! The usual certificate that a server has issued for itself (`openssl req -x509`) is its own authority, and the library accepts
//! no authority as a server. Whoever names this certificate, byte for byte, trusts its owner. Its names and its time have to be
//! right, too.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::authorities::Authorities;
use super::identity::validity;
use super::provider;

/// Checks the certificate of a server, and trusts the certificates of one `ca` file or of the system.
#[derive(Debug)]
pub(super) struct ServerCheck {
    issued: Arc<WebPkiServerVerifier>,
    authorities: Authorities,
}

impl ServerCheck {
    /// For these authorities; `None` if there are none, so that no server is trusted.
    pub(super) fn new(authorities: &Authorities) -> Option<Arc<Self>> {
        let builder = WebPkiServerVerifier::builder_with_provider(authorities.roots.clone(), provider().clone());
        Some(Arc::new(Self { issued: builder.build().ok()?, authorities: authorities.clone() }))
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
        let issued = self.issued.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        if issued.is_ok() || !self.authorities.has(end_entity) {
            return issued;
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        let valid = validity(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        match now.as_secs() {
            now if now < valid.start => Err(CertificateError::NotValidYet.into()),
            now if now >= valid.end => Err(CertificateError::Expired.into()),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.issued.root_hint_subjects()
    }
}
