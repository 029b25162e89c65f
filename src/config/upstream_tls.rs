//! `[upstreams.NAME.tls]` as it runs.

use std::path::{Path, PathBuf};

use rustls::pki_types::ServerName;

use super::tls::{CertificateFiles, FileError, read};
use crate::net::tls::{self, Authorities, ConnectorTls};

/// How the `https://` servers of an upstream are connected to.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTls {
    /// The file of the authorities that are trusted; `None` trusts those of the system.
    pub ca: Option<PathBuf>,
    /// The name for which servers need a certificate, and for which they are asked; `None` is the host of their URL.
    pub server_name: Option<ServerName<'static>>,
    /// The files of the certificate that servers get if they ask for one.
    pub certificate: Option<CertificateFiles>,
    /// What is in the files.
    pub settings: ConnectorTls,
}

/// Reads a file of authorities.
///
/// # Errors
/// When the file is not what it should be.
pub(super) fn authorities(path: &Path) -> Result<Authorities, FileError> {
    read(path, |pem| Authorities::new(tls::certificates(pem)?))
}
