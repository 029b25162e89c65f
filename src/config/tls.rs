//! `[server.tls]` as it runs, and its files, which are read again when they change.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::acme::Acme;
use super::regular_file;
use crate::net::tls::{self, Authorities, ClientAuth, Identity, PemError, TlsSettings};

#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    pub certificates: Vec<CertificateFiles>,
    /// Names for which an authority issues a certificate.
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
    /// Whether a client without a certificate is refused.
    pub is_required: bool,
}

#[derive(Debug)]
pub struct FileError {
    pub path: PathBuf,
    pub why: FileProblem,
}

#[derive(Debug)]
pub enum FileProblem {
    Unreadable(io::Error),
    Content(PemError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            FileProblem::Unreadable(error) => write!(f, "cannot read {}: {error}", self.path.display()),
            FileProblem::Content(error) => write!(f, "{}: {error}", self.path.display()),
        }
    }
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

    /// The same settings with the present content of the files.
    ///
    /// # Errors
    /// The first file that is not what it should be.
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

    /// # Errors
    /// The file that is not what it should be: where they do not fit, the key.
    pub(super) fn read(&self) -> Result<Identity, FileError> {
        let chain = read(&self.cert, tls::certificates)?;
        let key = read(&self.key, tls::private_key)?;
        let ocsp = self.ocsp.as_deref().map(|path| read(path, |bytes| Ok(bytes.to_vec()))).transpose()?;
        Identity::new(self.cert.display().to_string(), chain, key, ocsp).map_err(|error| {
            let path = if matches!(error, PemError::Certificate(..)) { &self.cert } else { &self.key };
            FileError { path: path.clone(), why: FileProblem::Content(error) }
        })
    }
}

impl ClientCa {
    /// # Errors
    /// When the file is not what it should be.
    pub(super) fn read(&self) -> Result<ClientAuth, FileError> {
        read(&self.path, |pem| ClientAuth::new(Authorities::new(tls::certificates(pem)?)?, self.is_required))
    }
}

/// `parse` understands the content.
///
/// # Errors
/// When the file is not what it should be.
pub(super) fn read<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, PemError>) -> Result<T, FileError> {
    let error = |why| FileError { path: path.to_owned(), why };
    let bytes = regular_file::read(path).map_err(|why| error(FileProblem::Unreadable(why)))?;
    parse(&bytes).map_err(|why| error(FileProblem::Content(why)))
}

/// # Errors
/// When the file is not what it should be.
pub(super) fn authorities(path: &Path) -> Result<Authorities, FileError> {
    read(path, |pem| Authorities::new(tls::certificates(pem)?))
}
