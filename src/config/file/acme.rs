//! `[server.tls.acme]`: the names for which an authority issues a certificate.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::secret;
use super::upstream_tls::{SystemAuthorities, authorities};
use crate::config::read::{Field, Section, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::acme;
use crate::config::{Acme, ChallengeSecret, ExternalAccount, values};
use crate::net::tls::ConnectorTls;

/// `None` if the section has an error.
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
        (None, Some(_)) => {
            let help = "name the authorities that have issued the certificate of the directory as `ca`, or install those of \
                        the system (the package ca-certificates)";
            let report = |why| section.source.report(section.span.clone(), why, help);
            system.read().map_err(report).ok().map(|authorities| (None, Some(authorities)))
        }
    }
    .unzip();
    let challenge = section.read(&acme::challenge);
    let secret = section.field(&acme::challenge_secret).map(|field| challenge_secret(&field));
    let tls = tls.map(|authorities| authorities.map(|authorities| ConnectorTls::new(authorities, None)).transpose());
    if let Some(Err(error)) = &tls {
        section.source.report(section.span.clone(), format!("cannot use TLS: {error}"), "");
    }
    let external_account = external_account(&section);
    section.close();
    let (tls, email) = (tls?.ok()?, email.map_or(Some(None), |email| email.map(Some))?);
    let challenge_secret = secret.map_or(Some(None), |secret| secret.map(Some))?;
    has_agreed.then_some(())?;
    Some(Acme {
        names: names?,
        email,
        directory: url,
        ca: ca?,
        tls,
        challenge,
        challenge_secret,
        external_account: external_account?,
    })
}

/// The external account; `Some(None)` if there is none.
#[expect(clippy::option_option, reason = "the outer one is about errors")]
fn external_account(section: &Section<'_>) -> Option<Option<ExternalAccount>> {
    let (id, key) = (section.field(&acme::external_account_id), section.field(&acme::external_account_key));
    let (id, key) = match (id, key) {
        (None, None) => return Some(None),
        (Some(id), Some(key)) => (id, key),
        (Some(one), None) | (None, Some(one)) => {
            one.report("an external account has an id and a key", "add the other one: the authority shows both");
            return None;
        }
    };
    let written = secret::read(&key, "key of the external account")?;
    let decoded = URL_SAFE_NO_PAD.decode(written.trim_end_matches('=').replace('+', "-").replace('/', "_"));
    let Some(bytes) = decoded.ok().filter(|bytes| !bytes.is_empty()) else {
        key.report("the key is not base64url", "copy it as the authority shows it");
        return None;
    };
    Some(Some(ExternalAccount { id: id.text()?.to_owned(), key: bytes }))
}

/// Messages never show the secret.
fn challenge_secret(field: &Field<'_>) -> Option<ChallengeSecret> {
    let secret = secret::read(field, "secret of challenges")?;
    if secret.chars().count() >= secret::SHORTEST {
        return Some(ChallengeSecret::new(&secret));
    }
    let message = format!("the secret has fewer than {} characters", secret::SHORTEST);
    field.report(message, "make one that nobody can guess: openssl rand -hex 32");
    None
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

/// A name that an authority can check over the network.
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

/// An address that can stand in a `mailto:` URL: no character may end the address or begin another part of the URL.
fn email(text: &str) -> Result<String, Wrong> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-/=^_`{|}~.@".contains(&byte);
    let parts = text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && values::hostname(host).is_ok());
    if parts && text.bytes().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new(format!("{} is not an email address", quoted(text)), "like \"ops@example.com\""))
}
