//! `[upstreams.NAME.tls]`: which servers the gateway trusts, and the certificate that it shows to them.

use std::path::PathBuf;

use rustls::pki_types::ServerName;

use crate::config::kinds::text;
use crate::config::pem_files::{SystemAuthorities, named_authorities};
use crate::config::read::{Field, Section, Wrong, tables};
use crate::config::report::quoted;
use crate::config::tls::{CertificateFiles, certificate_files};
use crate::net::tls::{ConnectorTls, Identity};

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamTls {
    /// The file of the trusted authorities; `None` trusts those of the system.
    pub ca: Option<PathBuf>,
    /// The name in the certificates of servers, which is also sent as SNI; `None` is the host of each URL.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate for servers that ask for one.
    pub certificate: Option<CertificateFiles>,
    /// The content of the files.
    pub settings: ConnectorTls,
}

tables! {
    /// TLS to `https://` servers; a reload reads the files again.
    keys {
        /// The authorities that issued the servers' certificates. By default those of the system.
        ca: () = text() => "tls/ca.pem";
        /// The name in the servers' certificates. By default the host of each URL.
        server_name: () = text() => "api.internal";
        /// The certificate for servers that ask for one; needs `key`.
        cert: () = text() => "tls/gateway.pem";
        /// The private key of `cert`; needs `cert`.
        key: () = text() => "tls/gateway.key";
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
        Some(field) => named_authorities(field).unzip(),
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

fn server_name(text: &str) -> Result<ServerName<'static>, Wrong> {
    ServerName::try_from(text.to_owned()).map_err(|_| {
        let help = "it is a name or an address without a port, like \"api.internal\" or \"10.0.1.1\"";
        Wrong::new(format!("{} is not a name that a certificate can have", quoted(text)), help)
    })
}
