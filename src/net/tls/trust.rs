//! Whose certificates are trusted: authorities, and the certificates of clients that they have issued, with whom these identify.

use std::io;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;

use super::identity::PemError;
use super::provider;

#[derive(Clone, Debug)]
pub struct Authorities {
    pub(super) certificates: Arc<[CertificateDer<'static>]>,
    pub(super) roots: Arc<RootCertStore>,
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Authorities {
    /// Fails when a certificate cannot be read.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, PemError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            let added = roots.add(certificate.clone());
            added.map_err(|error| PemError::Certificate(index + 1, error.to_string()))?;
        }
        Ok(Self { certificates: certificates.into(), roots: Arc::new(roots) })
    }

    /// The authorities that the system trusts, without those that cannot be read, because the user of the gateway may be unable
    /// to change them. Fails when there are none.
    pub fn of_system() -> io::Result<Self> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs.iter().cloned());
        if roots.is_empty() {
            let why = found.errors.first().map_or("there are none".to_owned(), ToString::to_string);
            return Err(io::Error::other(format!("the system has no authorities that are trusted: {why}")));
        }
        Ok(Self { certificates: found.certs.into(), roots: Arc::new(roots) })
    }
}

#[derive(Clone, Debug)]
pub struct ClientAuth {
    authorities: Authorities,
    is_required: bool,
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
}

impl PartialEq for ClientAuth {
    fn eq(&self, other: &Self) -> bool {
        (&self.authorities, self.is_required) == (&other.authorities, other.is_required)
    }
}

impl ClientAuth {
    /// A certificate must be issued by one of `authorities`; a client without a certificate is refused if `is_required`. Fails
    /// when there is no authority.
    pub fn new(authorities: Authorities, is_required: bool) -> Result<Self, PemError> {
        let builder = WebPkiClientVerifier::builder_with_provider(authorities.roots.clone(), provider().clone());
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        let verifier = builder.build().map_err(|_| PemError::Missing("certificate"))?;
        Ok(Self { authorities, is_required, verifier })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Like `CN=reports,O=Example` (RFC 4514). `None` if it cannot be read or is empty, and so identifies nobody.
    pub subject: Option<String>,
    /// Of the certificate in DER, in lower-case hexadecimal.
    pub sha256: String,
}

impl ClientCertificate {
    /// Reads a certificate that was verified.
    pub fn read(certificate: &CertificateDer<'_>) -> Self {
        let parsed = CertificateInner::<Raw>::from_der(certificate);
        let subject = parsed.ok().map(|parsed| parsed.tbs_certificate().subject().to_string());
        let sha256 = format!("{:x}", Bytes::copy_from_slice(digest(&SHA256, certificate).as_ref()));
        Self { subject: subject.filter(|subject| !subject.is_empty()), sha256 }
    }
}
