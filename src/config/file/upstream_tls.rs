//! `[upstreams.NAME.tls]`: which servers the gateway trusts, and the certificate that it shows to them.

use std::cell::OnceCell;
use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::named_file::NamedFile;
use super::tls::{certificate_files, report};
use crate::config::read::{Field, Section, Wrong};
use crate::config::report::quoted;
use crate::config::settings::upstream_tls as keys;
use crate::config::{CertificateFiles, UpstreamTls, tls};
use crate::net::tls::{Authorities, ConnectorTls, Identity};

/// The authorities of the system, read at most once per configuration, and only if a server needs them.
#[derive(Default)]
pub(super) struct SystemAuthorities(OnceCell<Result<Authorities, String>>);

impl SystemAuthorities {
    /// The error is a sentence for a message.
    pub(super) fn read(&self) -> Result<Authorities, String> {
        self.0.get_or_init(|| Authorities::of_system().map_err(|error| error.to_string())).clone()
    }

    /// TLS to a server whose certificate is from these authorities, without a client certificate. If the system has no
    /// authorities, that is reported at the value that names the server.
    pub(super) fn tls(&self, server: &Field<'_>) -> Option<ConnectorTls> {
        let made = |authorities| ConnectorTls::new(authorities, None).map_err(|error| error.to_string());
        let help = "install the authorities of the system (the package ca-certificates)";
        self.read().and_then(made).map_err(|why| server.report(why, help)).ok()
    }
}

/// For an upstream with `https://` servers, which are written in `servers`; `None` after an error.
pub(super) fn read(
    section: Option<Section<'_>>,
    servers: &Field<'_>,
    system: &SystemAuthorities,
) -> Option<UpstreamTls> {
    let field = |key| section.as_ref().and_then(|section| section.field(key));
    let (ca, name) = (field(&keys::ca), field(&keys::server_name));
    let server_name = name.and_then(|field| field.parse(server_name));
    let (certificate, identity) = section.as_ref().and_then(certificate).unzip();
    if let Some(section) = section {
        section.close();
    }
    let (ca, authorities) = match &ca {
        Some(field) => authorities(field).unzip(),
        None => {
            let help = "name the authorities that have issued the certificates of these servers as `ca` in the section \
                        `tls`, or install those of the system (the package ca-certificates)";
            (None, system.read().map_err(|why| servers.report(why, help)).ok())
        }
    };
    match ConnectorTls::new(authorities?, identity) {
        Ok(settings) => Some(UpstreamTls { ca, server_name, certificate, settings }),
        Err(error) => {
            servers.report(format!("cannot use TLS: {error}"), "");
            None
        }
    }
}

fn certificate(section: &Section<'_>) -> Option<(CertificateFiles, Identity)> {
    let (given, missing) = match (section.field(&keys::cert), section.field(&keys::key)) {
        (Some(cert), Some(key)) => return certificate_files(&cert, &key, None),
        (Some(_), None) => (keys::cert.name, keys::key.name),
        (None, Some(_)) => (keys::key.name, keys::cert.name),
        (None, None) => return None,
    };
    let help = "a certificate and its private key belong together: cert = \"tls/gateway.pem\", \
                key = \"tls/gateway.key\"";
    section.source.report(section.key_span(given), format!("`{given}` needs `{missing}`"), help);
    None
}

/// The file of authorities that a value names.
pub(super) fn authorities(field: &Field<'_>) -> Option<(PathBuf, Authorities)> {
    let file = NamedFile::new(field)?;
    match tls::authorities(&file.path()) {
        Ok(authorities) => Some((file.path(), authorities)),
        Err(error) => {
            report(&file, &error);
            None
        }
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, Wrong> {
    ServerName::try_from(text.to_owned()).map_err(|_| {
        let help = "it is a name or an address without a port, like \"api.internal\" or \"10.0.1.1\"";
        Wrong::new(format!("{} is not a name that a certificate can have", quoted(text)), help)
    })
}
