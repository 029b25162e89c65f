//! Which certificates of servers are trusted: those that an authority has issued, and those that are authorities themselves.
//!
//! A certificate that a server has issued for itself (`openssl req -x509`) is usually its own authority, and the library
//! accepts no authority as a server. Whoever configures this certificate, byte for byte, trusts its owner. Its names and
//! its validity are still checked.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::authorities::Authorities;
use super::identity::validity;
use super::provider;

#[derive(Debug)]
pub(super) enum ServerCheck {
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
        if issued.is_ok() || !authorities.has(end_entity) {
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
