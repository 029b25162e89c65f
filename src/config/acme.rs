//! `[server.tls.acme]`: names for which the gateway gets a certificate from an authority (ACME, RFC 8555).

use std::net::IpAddr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::kinds::{self, flag, shaped, text, words};
use super::pem_files::SystemAuthorities;
use super::read::{Section, Shape, Wrong, tables};
use super::report::quoted;
use super::{secret, values};
use crate::base::hidden::Hidden;
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

/// The reader has checked that the user agrees to the terms of the authority.
#[derive(Clone, Debug, PartialEq)]
pub struct Acme {
    /// The names of the certificate, at least one: in lower case, each once, none with a wildcard.
    pub names: Vec<String>,
    pub email: Option<String>,
    /// The URL of the directory (RFC 8555, section 7.1.1): `https://`, or `http://` on this machine.
    pub directory: Url,
    pub ca: Option<PathBuf>,
    /// `None` without `https`.
    pub tls: Option<ConnectorTls>,
    pub challenge: Challenge,
    /// A key, derived from the secret, that signs the answers that gateways leave for each other in a shared store; `None` for
    /// gateways with one state folder.
    pub challenge_secret: Option<Hidden<[u8; 32]>>,
    pub external_account: Option<ExternalAccount>,
}

/// An account that the operator already has with the authority; the ACME account is bound to it (RFC 8555, section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key identifier that the authority has given.
    pub id: String,
    pub key: Hidden<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// By the certificate of a TLS handshake (RFC 8737).
    TlsAlpn01,
    /// By a response to a plain request (RFC 8555, section 8.3).
    Http01,
}

tables! {
    /// A certificate that the gateway orders and renews automatically, with ACME (docs/protocols.md). Its key is in
    /// `--state-dir`.
    keys {
        /// The names for the certificate, without wildcards.
        names: () = shaped(Shape::List(&Shape::Text, 1, 100)).required() => ["api.example.com", "www.example.com"];
        /// Your email address for the authority, sent when the account is made.
        email: () = text() => "ops@example.com";
        /// Agrees to the authority's terms; must be `true`.
        agree: bool = flag().required() => true;
        /// The URL of the authority's directory: `https://`, or `http://` on this machine.
        directory: () = kinds::secret(), "https://acme-v02.api.letsencrypt.org/directory";
        /// The authorities that issued the certificate of the directory itself. By default those of the system.
        ca: () = text() => "tls/internal-ca.pem";
        /// How the gateway proves that it answers for its names: by a TLS handshake on port 443, or by a plain response on
        /// port 80. It answers both before routes and limits.
        challenge: Challenge =
            words(&[("tls-alpn-01", Challenge::TlsAlpn01), ("http-01", Challenge::Http01)]), "tls-alpn-01";
        /// The id of your account with the authority, for authorities that bind the new account to it (external account
        /// binding). Needs `external_account_key`.
        external_account_id: () = text() => "kid-1";
        /// The key of `external_account_id` in base64url, as the authority shows it; also `"file:PATH"` or `"env:NAME"`.
        external_account_key: () = kinds::secret() => "env:ACME_EAB_KEY";
        /// The secret with which gateways sign the answers that they leave for each other on the servers of the store: at
        /// least 16 characters, also `"file:PATH"` or `"env:NAME"`. Gateways that share a `--state-dir` need none
        /// (docs/memcached.md).
        challenge_secret: () = kinds::secret() => "env:CHALLENGE_SECRET";
    }
}

pub(super) fn read(section: &Section<'_>, system: &SystemAuthorities) -> Acme {
    let listed = section.needed(&keys::names);
    let names = listed.as_ref().and_then(|field| field.distinct(&keys::names, "this name", |field| field.parse(name)));
    let agrees = section.required(&keys::agree, "read the terms of the authority, and write: agree = true");
    if let Some(field) = agrees.filter(|field| field.boolean() == Some(false)) {
        let help =
            "an authority issues certificates only to those who agree to its terms: read them, and write agree = true";
        field.report("without agreement there is no certificate", help);
    }
    let directory = section.read_as(&keys::directory, |field| field.parse(values::document));
    let ca = section.field(&keys::ca);
    let needs_tls = ca.is_some() || directory.server_name.is_some();
    let tls = listed.filter(|_| needs_tls).and_then(|names| system.connector(ca.as_ref(), &names, None));
    let (ca, tls) = tls.unzip();
    Acme {
        names: names.unwrap_or_default(),
        email: section.field(&keys::email).and_then(|field| field.parse(email)),
        directory,
        ca: ca.flatten(),
        tls,
        challenge: section.read(&keys::challenge),
        challenge_secret: section
            .field(&keys::challenge_secret)
            .and_then(|field| secret::unguessable(&field, "secret of challenges"))
            .map(|secret| Hidden(blake3::derive_key("gateway 2026 notes of a challenge_secret", secret.as_bytes()))),
        external_account: external_account(section),
    }
}

/// `None` if there is none, or after a report.
fn external_account(section: &Section<'_>) -> Option<ExternalAccount> {
    let [id, key] = section.both(&keys::external_account_id, &keys::external_account_key)?;
    let written = secret::read(&key, "key of the external account")?;
    let decoded = URL_SAFE_NO_PAD.decode(written.trim_end_matches('=').replace('+', "-").replace('/', "_"));
    let Some(bytes) = decoded.ok().filter(|bytes| !bytes.is_empty()) else {
        key.report("the key is not base64url", "copy it as the authority shows it");
        return None;
    };
    Some(ExternalAccount { id: id.text()?.to_owned(), key: Hidden(bytes) })
}

/// A name that an authority can check over the network.
fn name(text: &str) -> Result<String, Wrong> {
    if text.contains('*') {
        let help = "list each name: a wildcard needs proof by DNS (dns-01), which the gateway does not give";
        return Err(Wrong::new(format!("{} has a wildcard", quoted(text)), help));
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(Wrong::new(format!("{} is an address", quoted(text)), "write the name that clients use"));
    }
    values::hostname(text)?;
    Ok(text.to_ascii_lowercase())
}

/// An address that can stand in a `mailto:` URL: no character may end the address or begin another part of the URL.
fn email(text: &str) -> Result<String, Wrong> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-/=^_`{|}~.@".contains(&byte);
    let parts = text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && values::hostname(host).is_ok());
    let wrong = || Wrong::not(text, "an email address", "like \"ops@example.com\"");
    (parts && text.bytes().all(is_allowed)).then(|| text.to_owned()).ok_or_else(wrong)
}
