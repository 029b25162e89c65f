//! `[server.tls.acme]`: for which names an authority is asked for a certificate.

use super::upstream_tls::{SystemAuthorities, authorities};
use crate::config::read::{Field, Section, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::acme;
use crate::config::{Acme, values};
use crate::net::fetch::Url;
use crate::net::tls::{Authorities, ConnectorTls};

/// Reads the section; `None` if it has an error.
pub(super) fn read(section: Section<'_>, system: &SystemAuthorities) -> Option<Acme> {
    let names =
        section.required(&acme::names, &format!("add those that clients ask for: names = {}", acme::names.example));
    let names = names.and_then(|field| names_of(&field));
    let email = section.field(&acme::email).map(|field| field.parse(email));
    let agreed = section.required(&acme::agree, "read the terms of the authority, and write: agree = true");
    let has_agreed = agreed.is_some_and(|field| agreement(&field));
    let url = section.read_as(&acme::directory, |field| field.parse(values::document));
    let ca = section.field(&acme::ca);
    let (ca, tls) = match (&ca, &url.server_name) {
        (Some(field), _) => authorities(field).map(|(path, authorities)| (Some(path), Some(authorities))),
        (None, None) => Some((None, None)),
        (None, Some(_)) => of_system(&section, &url, system).map(|authorities| (None, Some(authorities))),
    }
    .unzip();
    let challenge = section.read(&acme::challenge);
    let tls = tls.map(|authorities| authorities.map(|authorities| ConnectorTls::new(authorities, None)).transpose());
    if let Some(Err(error)) = &tls {
        section.source.report(section.span.clone(), format!("cannot use TLS: {error}"), "");
    }
    section.close();
    let (tls, email) = (tls?.ok()?, email.map_or(Some(None), |email| email.map(Some))?);
    has_agreed.then_some(())?;
    Some(Acme { names: names?, email, directory: url, ca: ca?, tls, challenge })
}

fn of_system(section: &Section<'_>, url: &Url, system: &SystemAuthorities) -> Option<Authorities> {
    let read = system.read();
    if let Err(why) = &read {
        let help = "name the authorities that have issued the certificate of the directory as `ca`, or install those of the \
                    system (the package ca-certificates)";
        let message = format!("the system has no authorities that are trusted for {url}: {why}");
        section.source.report(section.span.clone(), message, help);
    }
    read.ok()
}

fn agreement(field: &Field<'_>) -> bool {
    let agreed = field.boolean();
    if agreed == Some(false) {
        let help =
            "an authority issues certificates only to those who agree to its terms: read them, and write agree = true";
        field.report("without agreement there is no certificate", help);
    }
    agreed == Some(true)
}

fn names_of(field: &Field<'_>) -> Option<Vec<String>> {
    let list = field.list(&acme::names)?;
    let count = list.len();
    let named: Vec<_> = list.into_iter().filter_map(|field| Some((field.parse(name)?, field))).collect();
    report_repeated(&named, "this name", "list it once");
    (named.len() == count).then(|| named.into_iter().map(|(name, _)| name).collect())
}

/// A name for which an authority can look whether the gateway answers.
fn name(text: &str) -> Result<String, Wrong> {
    if text.contains('*') {
        let help = "list each name: a wildcard needs proof by DNS (dns-01), which the gateway does not give";
        return Err(Wrong::new(format!("{} has a wildcard", quoted(text)), help));
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Err(Wrong::new(format!("{} is an address", quoted(text)), "write the name that clients use"));
    }
    values::hostname(text)?;
    Ok(text.to_ascii_lowercase())
}

/// An address as it stands in a `mailto:` URL, without the marks that would end it or begin another part.
fn email(text: &str) -> Result<String, Wrong> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-/=^_`{|}~.@".contains(&byte);
    let parts = text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && values::hostname(host).is_ok());
    if parts && text.bytes().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new(format!("{} is not an email address", quoted(text)), "like \"ops@example.com\""))
}
