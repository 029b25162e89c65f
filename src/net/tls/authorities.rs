//! Certificate authorities: a certificate that one of them has issued is trusted.

use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use super::identity::PemError;

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
    /// # Errors
    /// When a certificate cannot be read.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, PemError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            let added = roots.add(certificate.clone());
            added.map_err(|error| PemError::Certificate(index + 1, error.to_string()))?;
        }
        Ok(Self { certificates: certificates.into(), roots: Arc::new(roots) })
    }

    pub(super) fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|own| own == certificate)
    }

    /// The authorities that the system trusts, without those that cannot be read, because the user of the gateway may be
    /// unable to change them.
    ///
    /// # Errors
    /// When there are none.
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
