//! `[server.tls]`: the certificates of the gateway, and what is asked of clients.

use super::named_file::NamedFile;
use crate::base::clock::{self, Time};
use crate::config::read::{Field, Section, report_repeated, set};
use crate::config::report::quoted;
use crate::config::{CertificateFiles, ClientCa, FileError, FileProblem, Tls};
use crate::net::tls::{ClientAuth, Identity, MinVersion, PemError, TlsSettings};

const CERTIFICATES: &str = "[{ cert = \"tls/site.pem\", key = \"tls/site.key\" }]";
/// More than one machine would serve, and each is read at every reload.
const MOST_CERTIFICATES: usize = 10_000;

/// Reads the section; `None` if it has an error.
pub(super) fn read(section: Section<'_>) -> Option<Tls> {
    let help = format!("add them: certificates = {CERTIFICATES}");
    let certificates = section.required("certificates", &help);
    let certificates = certificates.and_then(|field| field.some(CERTIFICATES, MOST_CERTIFICATES));
    let certificates = certificates.map(|list| {
        let read: Vec<_> = list.into_iter().filter_map(|field| Some((certificate(&field)?, field))).collect();
        let files: Vec<_> = read.iter().map(|((files, _), field)| (files, field.clone())).collect();
        report_repeated(&files, "this certificate", "list it once: it is used for all its names");
        read.into_iter().map(|(certificate, _)| certificate).unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let client_ca = section.field("client_ca");
    let required = section.choice("client_auth", &[("require", true), ("optional", false)]);
    if required.is_some() && client_ca.is_none() {
        let help = "add the authorities that have issued them: client_ca = \"tls/clients-ca.pem\"";
        section.source.report(section.key_span("client_auth"), "`client_auth` needs `client_ca`", help);
    }
    let client_ca = client_ca.and_then(|field| client_auth(&field, required.unwrap_or(true))).unzip();
    let mut min_version = MinVersion::default();
    set(&mut min_version, section.choice("min_version", &[("1.2", MinVersion::Tls12), ("1.3", MinVersion::Tls13)]));
    section.close();
    let (certificates, identities) = certificates?;
    let (client_ca, client_auth) = client_ca;
    Some(Tls { certificates, client_ca, settings: TlsSettings { identities, client_auth, min_version } })
}

/// Reads one of the certificates.
fn certificate(field: &Field<'_>) -> Option<(CertificateFiles, Identity)> {
    if !field.is_table() {
        field.mistyped("a table", format!("write the files of each: {CERTIFICATES}"));
        return None;
    }
    let section = field.section("this certificate")?;
    let cert = section.required("cert", "add the file of its chain: cert = \"tls/site.pem\"");
    let key = section.required("key", "add the file of its private key: key = \"tls/site.key\"");
    let ocsp = section.field("ocsp");
    section.close();
    certificate_files(cert.as_ref()?, key.as_ref()?, ocsp.as_ref())
}

/// Reads the files that these values name, and warns if the certificate has expired or is about to.
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

/// The day of a moment in UTC, as `2026-11-22`.
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

/// Reports what is wrong with a file of certificates or keys.
pub(super) fn report(file: &NamedFile<'_>, error: &FileError) {
    match &error.why {
        FileProblem::Unreadable(error) => file.unreadable(error),
        FileProblem::Content(error) => file.field.report(format!("{}: {error}", file.name), help(error)),
    }
}

fn help(error: &PemError) -> &'static str {
    match error {
        PemError::Missing("private key") | PemError::Key(_) => {
            "a key is a section PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY in PEM: RSA, ECDSA or Ed25519"
        }
        PemError::Encrypted => {
            "remove the password, and let the file be read by the gateway's user only: openssl pkey -in OLD -out NEW"
        }
        PemError::Mismatch => "the key has to be the one with which the first certificate of the file was made",
        PemError::Missing(_) | PemError::Pem(_) | PemError::Certificate(..) | PemError::TooMany => {
            "certificates are sections CERTIFICATE in PEM; in a chain, that of the private key is the first"
        }
    }
}
