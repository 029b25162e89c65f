//! `[server.tls]`: the certificates of the gateway, and the certificates that clients must show.

use super::named_file::NamedFile;
use crate::base::clock::{self, Time};
use crate::config::read::{Field, Section, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::{certificate, tls};
use crate::config::{CertificateFiles, ClientCa, FileError, FileProblem, Tls};
use crate::net::tls::{ClientAuth, Identity, PemError, TlsSettings};

/// Reads everything but `acme`; `None` if the section has an error. `has_acme` makes certificates optional.
pub(super) fn read(section: Section<'_>, has_acme: bool) -> Option<Tls> {
    let certificates = if has_acme && section.field(&tls::certificates).is_none() {
        Some(Vec::new())
    } else {
        let help = format!("add them: certificates = {}", tls::certificates.example);
        let certificates = section.required(&tls::certificates, &help);
        certificates.and_then(|field| field.list(&tls::certificates))
    };
    let certificates = certificates.map(|list| {
        let read: Vec<_> = list.into_iter().filter_map(|field| Some((certificate(&field)?, field))).collect();
        let files: Vec<_> = read.iter().map(|((files, _), field)| (files, field.clone())).collect();
        report_repeated(&files, "this certificate", "list it once: it is used for all its names");
        read.into_iter().map(|(certificate, _)| certificate).unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let client_ca = section.field(&tls::client_ca);
    let client_auth = section.read(&tls::client_auth);
    if section.given(&tls::client_auth).is_some() && client_ca.is_none() {
        let help = "add the authorities that have issued them: client_ca = \"tls/clients-ca.pem\"";
        section.source.report(section.key_span(tls::client_auth.name), "`client_auth` needs `client_ca`", help);
    }
    let client_ca = client_ca.and_then(|field| self::client_auth(&field, client_auth)).unzip();
    let min_version = section.read(&tls::min_version);
    section.close();
    let (certificates, identities) = certificates?;
    let (client_ca, client_auth) = client_ca;
    let settings = TlsSettings { identities, awaited: Vec::new(), client_auth, min_version };
    Some(Tls { certificates, acme: None, client_ca, settings })
}

/// For listeners outside `[server]`, which get no certificates from an authority.
pub(super) fn without_acme(section: Section<'_>) -> Option<Tls> {
    section.misplaced(&[tls::acme.name], "[server.tls]", "name the files of its certificate: certificates = [...]");
    read(section, false)
}

fn certificate(field: &Field<'_>) -> Option<(CertificateFiles, Identity)> {
    if !field.is_table() {
        field.mistyped("a table", format!("write the files of each: {}", tls::certificates.example));
        return None;
    }
    let section = field.section(certificate::TABLE.title, &certificate::TABLE)?;
    let cert = section.required(&certificate::cert, "add the file of its chain: cert = \"tls/site.pem\"");
    let key = section.required(&certificate::key, "add the file of its private key: key = \"tls/site.key\"");
    let ocsp = section.field(&certificate::ocsp);
    section.close();
    certificate_files(cert.as_ref()?, key.as_ref()?, ocsp.as_ref())
}

/// Reads the files, and warns if the certificate has expired or expires soon.
pub(super) fn certificate_files(
    cert: &Field<'_>,
    key: &Field<'_>,
    ocsp: Option<&Field<'_>>,
) -> Option<(CertificateFiles, Identity)> {
    let [cert, key] = [cert, key].map(NamedFile::new);
    let ocsp = ocsp.map(NamedFile::new);
    let (cert, key) = (cert?, key?);
    let ocsp = match ocsp {
        Some(named) => Some(named?),
        None => None,
    };
    let files = CertificateFiles { cert: cert.path(), key: key.path(), ocsp: ocsp.as_ref().map(NamedFile::path) };
    match files.read() {
        Ok(identity) => {
            warn_of_expiry(&cert, &identity, clock::now());
            Some((files, identity))
        }
        Err(error) => {
            let mut files = [&cert, &key].into_iter().chain(&ocsp);
            report(files.find(|file| file.path() == error.path).unwrap_or(&cert), &error);
            None
        }
    }
}

fn warn_of_expiry(file: &NamedFile<'_>, identity: &Identity, now: Time) {
    let day = day(identity.not_after);
    let message = if identity.not_after <= now {
        format!("the certificate {} expired on {day}", quoted(file.name))
    } else if identity.expires_soon(now) {
        format!("the certificate {} expires on {day}", quoted(file.name))
    } else {
        return;
    };
    file.field.warn(message, "put a new certificate in its place: it is read without a restart");
}

/// In UTC, as `2026-11-22`.
fn day(moment: Time) -> String {
    let timestamp = i64::try_from(moment.seconds()).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    timestamp.unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%d").to_string()
}

fn client_auth(field: &Field<'_>, is_required: bool) -> Option<(ClientCa, ClientAuth)> {
    let file = NamedFile::new(field)?;
    let client_ca = ClientCa { path: file.path(), is_required };
    match client_ca.read() {
        Ok(client_auth) => Some((client_ca, client_auth)),
        Err(error) => {
            report(&file, &error);
            None
        }
    }
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
        PemError::Missing(_) | PemError::Pem(_) | PemError::Certificate(..) | PemError::TooMany => {
            "certificates are CERTIFICATE sections in PEM; in a chain, the one of the private key comes first"
        }
    }
}
