//! Files of certificates and keys in PEM that the configuration names, and the authorities of the system.

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::read::Field;
use super::regular_file::{self, NamedFile};
use crate::net::fetch::Url;
use crate::net::tls::{self, Authorities, ConnectorTls, Identity, PemError};

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

/// `parse` understands the content. Fails when the file is not what it should be.
pub(super) fn read<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, PemError>) -> Result<T, FileError> {
    let error = |why| FileError { path: path.to_owned(), why };
    let bytes = regular_file::read(path).map_err(|why| error(FileProblem::Unreadable(why)))?;
    parse(&bytes).map_err(|why| error(FileProblem::Content(why)))
}

/// Fails when the file is not what it should be.
pub(super) fn authorities(path: &Path) -> Result<Authorities, FileError> {
    read(path, |pem| Authorities::new(tls::certificates(pem)?))
}

/// The authorities of the system, read at most once per configuration, and only if a server needs them.
#[derive(Default)]
pub(super) struct SystemAuthorities(OnceCell<Result<Authorities, String>>);

impl SystemAuthorities {
    /// The error is a sentence for a message.
    pub(super) fn read(&self) -> Result<Authorities, String> {
        self.0.get_or_init(|| Authorities::of_system().map_err(|error| error.to_string())).clone()
    }

    /// TLS to the server of a URL, which is written in `field`; `Some(None)` without `https`.
    #[expect(clippy::option_option, reason = "the outer one is about errors")]
    pub(super) fn tls_of(&self, url: &Url, field: &Field<'_>) -> Option<Option<ConnectorTls>> {
        if url.server_name.is_none() { Some(None) } else { self.tls(field).map(Some) }
    }

    /// TLS to a server whose certificate is from these authorities, without a client certificate. If the system has no
    /// authorities, that is reported at the value that names the server.
    pub(super) fn tls(&self, server: &Field<'_>) -> Option<ConnectorTls> {
        self.connector(None, server, None).map(|(_, tls)| tls)
    }

    /// TLS to a server whose certificate is from the authorities of the file `ca`, if there is one. The gateway shows `identity`.
    pub(super) fn connector(
        &self,
        ca: Option<&Field<'_>>,
        server: &Field<'_>,
        identity: Option<Identity>,
    ) -> Option<(Option<PathBuf>, ConnectorTls)> {
        let help = "install the authorities of the system (the package ca-certificates), or name those that have issued the \
                    certificate of the server, if its section has a `ca`";
        let (ca, authorities) = match ca {
            Some(field) => named_authorities(field).map(|(path, authorities)| (Some(path), authorities))?,
            None => (None, self.read().map_err(|why| server.report(why, help)).ok()?),
        };
        let tls = ConnectorTls::new(authorities, identity);
        let tls = tls.map_err(|error| server.report(format!("cannot use TLS: {error}"), "")).ok()?;
        Some((ca, tls))
    }
}

/// The file of authorities that a value names.
fn named_authorities(field: &Field<'_>) -> Option<(PathBuf, Authorities)> {
    let file = NamedFile::new(field)?;
    let authorities = authorities(&file.path).map_err(|error| report(&file, &error)).ok()?;
    Some((file.path, authorities))
}

/// Reports a problem of a file of certificates or keys.
pub(super) fn report(file: &NamedFile<'_>, error: &FileError) {
    match &error.why {
        FileProblem::Unreadable(error) => file.unreadable(error),
        FileProblem::Content(error) => file.field.report(format!("{}: {error}", file.name), help(error)),
    }
}

fn help(error: &PemError) -> &'static str {
    match error {
        PemError::Missing("private key") | PemError::Key(_) => {
            "a key is a PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY section in PEM: RSA, ECDSA or Ed25519"
        }
        PemError::Encrypted => {
            "remove the password, and let only the gateway's user read the file: openssl pkey -in OLD -out NEW"
        }
        PemError::Mismatch => "the key has to be the one with which the first certificate of the file was made",
        PemError::Ocsp(_) => "it has to be the answer of the authority, in DER: openssl ocsp -respout FILE",
        PemError::Missing(_) | PemError::Pem(_) | PemError::Certificate(..) | PemError::TooMany => {
            "certificates are CERTIFICATE sections in PEM; in a chain, the one of the private key comes first"
        }
    }
}
