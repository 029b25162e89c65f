//! Certificates of clients: who may have issued them, whether a client needs one, and whom they identify.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;

use super::authorities::Authorities;
use super::identity::PemError;
use super::provider;

#[derive(Clone, Debug)]
pub struct ClientAuth {
    authorities: Authorities,
    is_required: bool,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl PartialEq for ClientAuth {
    fn eq(&self, other: &Self) -> bool {
        (&self.authorities, self.is_required) == (&other.authorities, other.is_required)
    }
}

impl ClientAuth {
    /// A certificate must be issued by one of `authorities`; a client without a certificate is refused if `is_required`.
    ///
    /// # Errors
    /// When there is no authority.
    pub fn new(authorities: Authorities, is_required: bool) -> Result<Self, PemError> {
        let builder = WebPkiClientVerifier::builder_with_provider(authorities.roots.clone(), provider().clone());
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        let verifier = builder.build().map_err(|_| PemError::Missing("certificate"))?;
        Ok(Self { authorities, is_required, verifier })
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.verifier.clone()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Like `CN=reports,O=Example` (RFC 4514).
    pub subject: String,
    /// Of the certificate in DER, in lower-case hexadecimal.
    pub sha256: String,
}

impl ClientCertificate {
    /// Reads a certificate that was verified. `None` if its subject cannot be read or is empty, and so identifies nobody.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = CertificateInner::<Raw>::from_der(certificate).ok()?;
        let subject = parsed.tbs_certificate().subject().to_string();
        let sha256 = format!("{:x}", Bytes::copy_from_slice(digest(&SHA256, certificate).as_ref()));
        (!subject.is_empty()).then_some(Self { subject, sha256 })
    }
}
