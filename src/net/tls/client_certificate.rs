//! The certificate of a client, once TLS has verified it.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;

/// Who a client is by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The subject as text (RFC 4514), like `CN=reports,O=Example`.
    pub subject: String,
    /// The SHA-256 digest of the certificate in DER, in lower-case hexadecimal.
    pub sha256: String,
}

impl ClientCertificate {
    /// Reads a certificate that was verified. `None` if it has no subject that can be read: nobody is identified by it.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = CertificateInner::<Raw>::from_der(certificate).ok()?;
        let subject = parsed.tbs_certificate().subject().to_string();
        let sha256 = format!("{:x}", Bytes::copy_from_slice(digest(&SHA256, certificate).as_ref()));
        (!subject.is_empty()).then_some(Self { subject, sha256 })
    }
}
