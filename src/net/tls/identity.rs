//! The identity of the gateway: a chain of certificates and the private key of the first one, as PEM files have them
//! (RFC 7468).

use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{self, Decode, Reader, SliceReader, Tag, TagNumber, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Time as X509Time;

use super::provider;
use crate::base::byte_order_mark::without_mark;
use crate::base::clock::{self, Time};

/// In one file.
const MOST_CERTIFICATES: usize = 1000;

#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) key: Arc<CertifiedKey>,
    /// The file with the chain, for messages and metrics.
    pub file: String,
    /// The DNS names of the certificate in lower case. The first label of a name may be `*`.
    pub names: Vec<String>,
    /// Of the first certificate.
    pub not_before: Time,
    /// The earliest expiry in the chain.
    pub not_after: Time,
}

const SOON: Duration = Duration::from_secs(14 * 86_400);

/// Only the fields that are needed have to be valid.
type Certificate = CertificateInner<Raw>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    #[error("there is no {0} in it")]
    Missing(&'static str),
    #[error("it is not PEM: {0}")]
    Pem(String),
    #[error("the private key is protected by a password")]
    Encrypted,
    /// The number of the certificate in the file, from 1, and why it cannot be read.
    #[error("certificate {0} in it cannot be read: {1}")]
    Certificate(usize, String),
    #[error("it has more than {MOST_CERTIFICATES} certificates")]
    TooMany,
    #[error("the private key cannot be used: {0}")]
    Key(String),
    #[error("the private key does not belong to the certificate")]
    Mismatch,
    #[error("it is no OCSP response to staple: {0}")]
    Ocsp(String),
}

/// A key belongs to its certificate, so keys are not compared.
impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert && self.key.ocsp == other.key.ocsp
    }
}

impl Identity {
    pub fn expires_soon(&self, now: Time) -> bool {
        self.not_after <= now.after(SOON)
    }

    /// `ocsp` is the OCSP response to staple, in DER (RFC 6066, section 8). Fails when a certificate cannot be read, the key
    /// cannot be used or belongs to another certificate, or `ocsp` is no answer.
    pub fn new(
        file: String,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        ocsp: Option<Vec<u8>>,
    ) -> Result<Self, PemError> {
        ocsp.iter().try_for_each(|response| check_ocsp(response))?;
        let signing =
            provider().key_provider.load_private_key(key).map_err(|error| PemError::Key(error.to_string()))?;
        let mut not_after = Time::from_micros(u64::MAX);
        for (index, certificate) in chain.iter().enumerate() {
            not_after = not_after.min(validity_of(&parse(certificate, index + 1)?).1);
        }
        let of_first = |first| parse(first, 1).map(|first| (dns_names(&first), validity_of(&first).0));
        let (names, not_before) = chain.first().map(of_first).transpose()?.unwrap_or((Vec::new(), not_after));
        let key = CertifiedKey { cert: chain, key: signing, ocsp };
        match key.keys_match() {
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(Error::InconsistentKeys(_)) => return Err(PemError::Mismatch),
            Err(error) => return Err(PemError::Certificate(1, error.to_string())),
        }
        Ok(Self { key: Arc::new(key), file, names, not_before, not_after })
    }
}

/// All certificates of a PEM file, in its order. Fails when the file is not PEM or has no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found = CertificateDer::pem_slice_iter(without_mark(pem)).take(MOST_CERTIFICATES + 1);
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| not_pem(&error))?;
    match found.len() {
        0 => Err(PemError::Missing("certificate")),
        1..=MOST_CERTIFICATES => Ok(found),
        _ => Err(PemError::TooMany),
    }
}

/// The first private key of a PEM file: PKCS #8, PKCS #1 or SEC 1. Fails when the file is not PEM, has no private key, or the
/// key is protected by a password.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    // The marks of PKCS #8, and of OpenSSL for the older formats.
    let is_encrypted = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"]
        .iter()
        .any(|mark| memmem::find(pem, mark.as_bytes()).is_some());
    if is_encrypted {
        return Err(PemError::Encrypted);
    }
    PrivateKeyDer::from_pem_slice(without_mark(pem)).map_err(|error| match error {
        pem::Error::NoItemsFound => PemError::Missing("private key"),
        error => not_pem(&error),
    })
}

fn not_pem(error: &pem::Error) -> PemError {
    PemError::Pem(match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a section has no valid first line".to_owned(),
        error => error.to_string(),
    })
}

/// From when a certificate is valid, and its last second. Fails when it cannot be read.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Result<(Time, Time), PemError> {
    parse(certificate, 1).map(|certificate| validity_of(&certificate))
}

/// Checks the outer structure of an OCSP response. Clients check the rest.
fn check_ocsp(response: &[u8]) -> Result<(), PemError> {
    match ocsp_status(response) {
        Ok(0) => Ok(()),
        Ok(status) => Err(PemError::Ocsp(format!("its status is {status}, not 0 (successful)"))),
        Err(error) => Err(PemError::Ocsp(error.to_string())),
    }
}

/// The status of an OCSP response (RFC 6960, section 4.2.1). With status 0, an answer follows.
fn ocsp_status(response: &[u8]) -> der::Result<u8> {
    const ANSWER: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(0) };
    let mut fields = SliceReader::new(content(AnyRef::from_der(response)?, Tag::Sequence)?)?;
    let [status] = content(AnyRef::decode(&mut fields)?, Tag::Enumerated)? else {
        return Err(Tag::Enumerated.length_error().into());
    };
    if *status == 0 {
        let answer = content(AnyRef::decode(&mut fields)?, ANSWER)?;
        content(AnyRef::from_der(answer)?, Tag::Sequence)?;
    }
    fields.finish()?;
    Ok(*status)
}

fn content(element: AnyRef<'_>, tag: Tag) -> der::Result<&[u8]> {
    element.tag().assert_eq(tag)?;
    Ok(element.value())
}

fn parse(certificate: &CertificateDer<'_>, number: usize) -> Result<Certificate, PemError> {
    Certificate::from_der(certificate).map_err(|error| PemError::Certificate(number, error.to_string()))
}

fn validity_of(certificate: &Certificate) -> (Time, Time) {
    let validity = certificate.tbs_certificate().validity();
    let time = |time: X509Time| Time::from_micros(clock::micros(time.to_unix_duration()));
    (time(validity.not_before), time(validity.not_after))
}

/// The DNS names among the alternative names of a certificate (RFC 5280, section 4.2.1.6). The common name of the
/// subject does not count: clients ignore it (RFC 9525, section 1.4.2).
fn dns_names(certificate: &Certificate) -> Vec<String> {
    let Ok(Some((_, names))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    let dns = |name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        _ => None,
    };
    names.0.into_iter().filter_map(dns).collect()
}
