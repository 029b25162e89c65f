//! `[server.tls]`: the certificates of the gateway, the certificates that clients must show, and their files, which are read
//! again when they change.

use std::path::{Path, PathBuf};

use super::acme::{self, Acme};
use super::kinds::{shaped, text, words};
use super::pem_files::{self, FileError, FileProblem};
use super::read::{Field, Section, Shape, report_repeated, tables};
use super::regular_file::NamedFile;
use super::report::quoted;
use crate::base::clock::{self, Time};
use crate::net::tls::{self, Authorities, ClientAuth, Identity, MinVersion, PemError, TlsSettings};

#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    pub certificates: Vec<CertificateFiles>,
    pub acme: Option<Acme>,
    pub client_ca: Option<ClientCa>,
    /// The content of the files, then the certificate for `acme` if there is one.
    pub settings: TlsSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain in PEM, beginning with the server's certificate.
    pub cert: PathBuf,
    /// In PEM.
    pub key: PathBuf,
    /// In DER.
    pub ocsp: Option<PathBuf>,
}

/// Authorities of client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCa {
    /// Certificates in PEM.
    pub path: PathBuf,
    pub is_required: bool,
}

impl Tls {
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let certificates = self.certificates.iter().flat_map(CertificateFiles::all);
        certificates.chain(self.client_ca.as_ref().map(|client_ca| client_ca.path.as_path()))
    }

    /// The certificate that an authority has issued, if it is in use.
    pub fn issued(&self) -> Option<&Identity> {
        self.settings.identities.get(self.certificates.len())
    }

    /// Uses the issued certificate beside those of files. Names of `acme` without a certificate become `awaited`.
    pub(super) fn issue(&mut self, issued: Option<&Identity>) {
        let Some(acme) = &self.acme else { return };
        let TlsSettings { identities, awaited, .. } = &mut self.settings;
        identities.truncate(self.certificates.len());
        *awaited =
            acme.names.iter().filter(|name| issued.is_none_or(|one| !one.names.contains(name))).cloned().collect();
        identities.extend(issued.cloned());
    }

    /// The same settings with the present content of the files. The error names the first file that is not what it should be.
    pub fn read_again(&self) -> Result<Self, FileError> {
        let mut identities = self.certificates.iter().map(CertificateFiles::read).collect::<Result<Vec<_>, _>>()?;
        identities.extend(self.issued().cloned());
        let client_auth = self.client_ca.as_ref().map(ClientCa::read).transpose()?;
        Ok(Self { settings: TlsSettings { identities, client_auth, ..self.settings.clone() }, ..self.clone() })
    }
}

impl CertificateFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [&self.cert, &self.key].into_iter().chain(&self.ocsp).map(PathBuf::as_path)
    }

    /// The error names the file that is not what it should be: where they do not fit, the key.
    pub(super) fn read(&self) -> Result<Identity, FileError> {
        let chain = pem_files::read(&self.cert, tls::certificates)?;
        let key = pem_files::read(&self.key, tls::private_key)?;
        let ocsp = self.ocsp.as_deref().map(|path| pem_files::read(path, |bytes| Ok(bytes.to_vec()))).transpose()?;
        Identity::new(self.cert.display().to_string(), chain, key, ocsp).map_err(|error| {
            let path = match (&error, &self.ocsp) {
                (PemError::Certificate(..), _) => &self.cert,
                (PemError::Ocsp(_), Some(ocsp)) => ocsp,
                _ => &self.key,
            };
            FileError { path: path.clone(), why: FileProblem::Content(error) }
        })
    }
}

impl ClientCa {
    /// Fails when the file is not what it should be.
    pub(super) fn read(&self) -> Result<ClientAuth, FileError> {
        pem_files::read(&self.path, |pem| ClientAuth::new(Authorities::new(tls::certificates(pem)?)?, self.is_required))
    }
}

tables! {
    /// TLS for clients; the gateway reads its files again when they change (docs/protocols.md).
    keys {
        /// The certificates; SNI chooses among several. Required without `acme`.
        certificates: () = shaped(Shape::List(&Shape::Table(&certificate::TABLE), 1, 10_000))
            => [{ cert = "tls/site.pem", key = "tls/site.key" }];
        /// A certificate that the gateway orders and renews automatically; only in `[server.tls]`.
        acme: () = shaped(Shape::Table(&acme::keys::TABLE));
        /// The authorities of clients' certificates; with this file, the gateway asks clients for one.
        client_ca: () = text() => "tls/clients-ca.pem";
        /// Whether a client must show a certificate; needs `client_ca`.
        client_auth: bool = words(&[("require", true), ("optional", false)]), "require";
        /// The oldest version of TLS that the gateway speaks.
        min_version: MinVersion = words(&[("1.2", MinVersion::Tls12), ("1.3", MinVersion::Tls13)]), "1.2";
    }

    /// A certificate.
    certificate "this certificate" {
        /// The file of the certificate chain.
        cert: () = text().required() => "tls/site.pem";
        /// The file of the certificate's private key.
        key: () = text().required() => "tls/site.key";
        /// The file of an OCSP response, which the gateway staples.
        ocsp: () = text() => "tls/site.ocsp";
    }
}

/// Reads everything but `acme`; `None` if the section has an error. `has_acme` makes certificates optional.
pub(super) fn read(section: &Section<'_>, has_acme: bool) -> Option<Tls> {
    let certificates = if has_acme && section.field(&keys::certificates).is_none() {
        Some(Vec::new())
    } else {
        section.needed(&keys::certificates).and_then(|field| field.list(&keys::certificates))
    };
    let certificates = certificates.map(|list| {
        let read: Vec<_> = list.into_iter().filter_map(|field| Some((certificate(&field)?, field))).collect();
        let files: Vec<_> = read.iter().map(|((files, _), field)| (files, field.clone())).collect();
        report_repeated(&files, "this certificate", "list it once: it is used for all its names");
        read.into_iter().map(|(certificate, _)| certificate).unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let client_ca = section.field(&keys::client_ca);
    let client_auth = section.read(&keys::client_auth);
    if section.given(&keys::client_auth).is_some() && client_ca.is_none() {
        let help = "add the authorities that have issued them: client_ca = \"tls/clients-ca.pem\"";
        section.refuse(&[keys::client_auth.name], "needs `client_ca`", help);
    }
    let client_ca = client_ca.and_then(|field| self::client_auth(&field, client_auth)).unzip();
    let min_version = section.read(&keys::min_version);
    let (certificates, identities) = certificates?;
    let (client_ca, client_auth) = client_ca;
    let settings = TlsSettings { identities, awaited: Vec::new(), client_auth, min_version };
    Some(Tls { certificates, acme: None, client_ca, settings })
}

/// For listeners outside `[server]`, which get no certificates from an authority.
pub(super) fn without_acme(section: &Section<'_>) -> Option<Tls> {
    section.misplaced(&[keys::acme.name], "[server.tls]", "name the files of its certificate: certificates = [...]");
    read(section, false)
}

fn certificate(field: &Field<'_>) -> Option<(CertificateFiles, Identity)> {
    let help = format!("write the files of each: {}", keys::certificates.example);
    let section = field.section_like(certificate::TABLE.title, &certificate::TABLE, help)?;
    let cert = section.needed(&certificate::cert);
    let key = section.needed(&certificate::key);
    let ocsp = section.field(&certificate::ocsp);
    certificate_files(cert.as_ref()?, key.as_ref()?, ocsp.as_ref())
}

/// Reads the files, and warns if the certificate has expired or expires soon.
pub(super) fn certificate_files(
    cert: &Field<'_>,
    key: &Field<'_>,
    ocsp: Option<&Field<'_>>,
) -> Option<(CertificateFiles, Identity)> {
    let [cert, key] = [cert, key].map(NamedFile::new);
    let (cert, key, ocsp) = (cert?, key?, ocsp.and_then(NamedFile::new));
    let path = |file: &NamedFile<'_>| file.path.clone();
    let files = CertificateFiles { cert: path(&cert), key: path(&key), ocsp: ocsp.as_ref().map(path) };
    match files.read() {
        Ok(identity) => {
            warn_of_expiry(&cert, &identity, clock::now());
            Some((files, identity))
        }
        Err(error) => {
            let mut files = [&cert, &key].into_iter().chain(&ocsp);
            pem_files::report(files.find(|file| file.path == error.path).unwrap_or(&cert), &error);
            None
        }
    }
}

fn warn_of_expiry(file: &NamedFile<'_>, identity: &Identity, now: Time) {
    let day = identity.not_after.timestamp().unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%d");
    let message = if identity.not_after <= now {
        format!("the certificate {} expired on {day}", quoted(file.name))
    } else if identity.expires_soon(now) {
        format!("the certificate {} expires on {day}", quoted(file.name))
    } else {
        return;
    };
    file.field.warn(message, "put a new certificate in its place: it is read without a restart");
}

fn client_auth(field: &Field<'_>, is_required: bool) -> Option<(ClientCa, ClientAuth)> {
    let file = NamedFile::new(field)?;
    let client_ca = ClientCa { path: file.path.clone(), is_required };
    let client_auth = client_ca.read().map_err(|error| pem_files::report(&file, &error)).ok()?;
    Some((client_ca, client_auth))
}
