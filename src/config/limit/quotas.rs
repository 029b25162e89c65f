//! `[limits.NAME.quotas]`: where quotas of keys are read from, and how long they are used.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::keys as limit;
use crate::config::PostgresUrl;
use crate::config::key::{Key, Source};
use crate::config::kinds::{self, number, text, wait, words};
use crate::config::pem_files::{SystemAuthorities, authorities};
use crate::config::read::{Field, Section, Wrong, tables};
use crate::config::report::quoted;
use crate::config::{secret, values};
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

const SOURCE: &str = "source = \"https://plans.internal/v1/{key}\" or source = \"postgres://gateway@db/plans\"";
const QUERY: &str = "query = \"select rates, tier, exempt, block from plans where key = $1\"";
const KEY: &str = "{key}";
/// Replaces `{key}` while the rest of a URL is checked.
const STAND_IN: &str = "KEY";
/// In PostgreSQL, in bytes.
const MAX_CHANNEL: usize = 63;

#[derive(Clone, Debug, PartialEq)]
pub struct Quotas {
    pub server: QuotaServer,
    pub cache_for: Duration,
    pub max_cached: usize,
    pub timeout: Duration,
    pub send: SentKey,
}

#[derive(Clone, Debug, PartialEq)]
pub enum QuotaServer {
    Http(HttpQuotas),
    Postgres(PostgresSettings),
}

/// A server with a document for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpQuotas {
    /// `{key}` in the target is replaced by a key.
    pub url: Url,
    /// `None` without `https`.
    pub tls: Option<ConnectorTls>,
}

/// A database with a row for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    /// With the user and the password.
    pub url: PostgresUrl,
    /// `None` if no connection can use TLS.
    pub tls: Option<ConnectorTls>,
    pub query: String,
    pub channel: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentKey {
    Key,
    /// The SHA-256 digest in lower-case hexadecimal digits.
    Sha256,
}

/// Without parts that may be secret.
impl fmt::Display for QuotaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(settings) => write!(f, "{}", settings.url),
            Self::Postgres(settings) => write!(f, "{}", settings.url),
        }
    }
}

tables! {
    /// Reads the rates of keys from a store, through a cache (docs/quotas.md).
    keys {
        /// Where the rates are: a URL with `{key}` in its path or query, or a PostgreSQL database; also `"file:PATH"` or
        /// `"env:NAME"`.
        source: () = kinds::secret().required() => "https://plans.internal/v1/{key}";
        /// For PostgreSQL: the query about a key, which is `$1`.
        query: () = text() => "select rates, tier, exempt, block from plans where key = $1";
        /// For PostgreSQL: a `NOTIFY` of a key on this channel makes the gateway ask about that key at once.
        channel: () = text() => "gateway_plans";
        /// How long the gateway uses an answer.
        cache_for: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(86_400)), "60s";
        /// The maximum number of cached keys.
        max_cached: usize = number(1, 10_000_000), 100_000;
        /// The longest time that a request waits for the store; then the limit's own rates apply.
        timeout: Duration = wait(Duration::from_millis(1)..=Duration::from_secs(5)), "20ms";
        /// What the gateway sends to the store: the key, or its digest (SHA-256) in lower-case hexadecimal digits.
        send: SentKey = words(&[("key", SentKey::Key), ("sha256", SentKey::Sha256)]), "key";
    }
}

/// `key` is that of the limit.
pub(super) fn read(
    section: &Section<'_>,
    key: Option<&Key>,
    has_rates: bool,
    system: &SystemAuthorities,
) -> Option<Quotas> {
    let section = section.table(&limit::quotas)?;
    if !has_rates {
        let help = "add rates to the limit: they hold for keys that the source does not know, and while it is away";
        section.source.report(section.span.clone(), "the limit has no rates that quotas could replace", help);
    }
    if key.and_then(|key| key.parts.first()).is_some_and(|part| part.iter().all(|source| *source == Source::Global)) {
        let help = "count by what the source knows, like key = \"header:x-api-key\"";
        let message = "every request has the key `global`, so there is nothing to ask the source about";
        section.source.report(section.span.clone(), message, help);
    }
    let located = section.needed(&keys::source);
    let server = located.and_then(|field| server(&section, &field, system));
    let (cache_for, timeout) = (section.read(&keys::cache_for), section.read(&keys::timeout));
    let (max_cached, send) = (section.read(&keys::max_cached), section.read(&keys::send));
    Some(Quotas { server: server?, cache_for, max_cached, timeout, send })
}

/// The source may be in a file or a variable, because it may have a password.
fn server(section: &Section<'_>, field: &Field<'_>, system: &SystemAuthorities) -> Option<QuotaServer> {
    let written = field.hiding_query().text()?;
    let is_named = secret::is_named(field);
    // A wrong value is shown in messages, unless it may have a password.
    let has_secret = is_named || written.contains('@');
    let text = if has_secret { secret::read(field, "source of quotas")? } else { written.to_owned() };
    let refuse = |wrong: Wrong| {
        // The text of a file or variable may be secret, and it has no place in this file.
        let wrong =
            if is_named { Wrong::new(format!("{} has no valid source", quoted(written)), SOURCE) } else { wrong };
        field.refuse(wrong);
    };
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return postgres(section, field, &text, refuse, system).map(QuotaServer::Postgres);
    }
    let of_postgres = [keys::query.name, keys::channel.name];
    section.misplaced(&of_postgres, "a source that begins with postgres://", "remove it");
    let url = match http(&text) {
        Ok(url) if is_named => Url { target: url.target.with_secret_path(), ..url },
        Ok(url) => url,
        Err(wrong) => {
            refuse(wrong);
            return None;
        }
    };
    Some(QuotaServer::Http(HttpQuotas { tls: system.tls_of(&url, field)?, url }))
}

fn http(text: &str) -> Result<Url, Wrong> {
    let help = "write https://, or http:// for a server on this machine, with {key} in the path, \
                like \"https://plans.internal/v1/{key}\"";
    let place = match (text.find(KEY), text.rfind(KEY)) {
        (Some(first), Some(last)) if first == last => first,
        (Some(_), _) => return Err(Wrong::new("the source has {key} more than once", "write it once")),
        _ if !text.contains("://") => return Err(Wrong::not(text, "a URL", SOURCE)),
        _ => return Err(Wrong::new("the source does not say where the key is", help)),
    };
    let host = text.split_once("://").map_or(0, |(scheme, _)| scheme.len() + 3);
    if text.get(host..).and_then(|rest| rest.find(['/', '?'])).is_none_or(|path| place < host + path) {
        return Err(Wrong::new("the key cannot be part of the host", help).at(place..place + KEY.len()));
    }
    let url = values::safe_url(&text.replacen(KEY, STAND_IN, 1), "quotas", "read keys and change quotas", help)?;
    // The target is the end of the URL, perhaps after an added slash, so `{key}` has the same distance from the end in both.
    let mut target = url.target.as_sent().to_owned();
    let start = target.len() - (text.len() - place - KEY.len()) - STAND_IN.len();
    target.replace_range(start..start + STAND_IN.len(), KEY);
    Ok(Url { target: target.into(), ..url })
}

fn postgres(
    section: &Section<'_>,
    field: &Field<'_>,
    text: &str,
    refuse: impl Fn(Wrong),
    system: &SystemAuthorities,
) -> Option<PostgresSettings> {
    let wrong = |why| Wrong::new(format!("the source cannot be used: {why}"), SOURCE);
    let url = PostgresUrl::parse(text).map(|url| PostgresUrl { is_database_secret: secret::is_named(field), ..url });
    let url = url.map_err(|why| refuse(wrong(why))).ok();
    let query = section.needed(&keys::query).and_then(|field| field.parse(query_of_key));
    let channel = section.field(&keys::channel).and_then(|field| field.parse(channel));
    let url = url?;
    let tls = match &url.root_certificates {
        _ if url.never_uses_tls() => None,
        None => Some(system.tls(field)?),
        Some(path) => Some(tls_of_file(field, path)?),
    };
    Some(PostgresSettings { url, tls, query: query?, channel })
}

/// Trusts only the authorities in a file.
fn tls_of_file(field: &Field<'_>, path: &Path) -> Option<ConnectorTls> {
    let path = field.path(&path.to_string_lossy())?;
    field.source.record(path.clone());
    let read = authorities(&path).map_err(|error| error.to_string());
    let settings = read.and_then(|authorities| ConnectorTls::new(authorities, None).map_err(|error| error.to_string()));
    let report = |why| {
        let message = format!("the authorities in sslrootcert cannot be used: {why}");
        field.report(message, "name a PEM file; a relative path starts at the folder of this file");
    };
    settings.map_err(report).ok()
}

fn query_of_key(text: &str) -> Result<String, Wrong> {
    let parameter = |(at, _): (usize, &str)| {
        let digits = text[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        text[at + 1..at + 1 + digits].to_owned()
    };
    let parameters: Vec<_> = text.match_indices('$').map(parameter).filter(|number| !number.is_empty()).collect();
    match parameters.iter().find(|number| *number != "1") {
        _ if parameters.is_empty() => Err(Wrong::new("the query does not use the key, which is $1", QUERY)),
        Some(other) => Err(Wrong::new(format!("the query uses ${other}, and there is only the key, $1"), QUERY)),
        None => Ok(text.to_owned()),
    }
}

/// A name that PostgreSQL reads in the same way with and without quotes: `notify Plans` announces on `plans`.
fn channel(text: &str) -> Result<String, Wrong> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_name = text.chars().all(is_plain) && !text.starts_with(|c: char| c.is_ascii_digit());
    if text.is_empty() || text.len() > MAX_CHANNEL || !is_name {
        let help = format!(
            "a name has 1 to {MAX_CHANNEL} lower-case letters, digits and _, and begins with no digit, like \"gateway_plans\""
        );
        return Err(Wrong::not(text, "the name of a channel", help));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_key_is_kept() {
        for (text, target) in [
            ("https://a.test/v1/{key}", "/v1/{key}"),
            ("https://a.test/v1/{key}/plan?a=b", "/v1/{key}/plan?a=b"),
            ("https://a.test/KEY/{key}", "/KEY/{key}"),
            ("http://127.0.0.1:9/{key}/KEY", "/{key}/KEY"),
            ("https://a.test?key={key}", "/?key={key}"),
        ] {
            assert_eq!(http(text).unwrap().target.as_sent(), target, "{text}");
        }
        for text in ["https://{key}.test/", "https://a.test/", "https://a.test/{key}/{key}", "http://a.test/{key}", "x"]
        {
            assert!(http(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_query_has_one_parameter() {
        for (query, is_valid) in
            [("select $1", true), ("select $1, $1", true), ("select 1", false), ("select $1, $2", false), ("$", false)]
        {
            assert_eq!(query_of_key(query).is_ok(), is_valid, "{query}");
        }
    }
}
