//! `[limits.NAME.quotas]`: where quotas of keys are read from.

use std::path::Path;

use crate::config::file::secret;
use crate::config::file::upstream_tls::SystemAuthorities;
use crate::config::read::{Field, Section, Wrong};
use crate::config::report::quoted;
use crate::config::settings::{limit, quotas};
use crate::config::{HttpQuotas, Key, PostgresSettings, PostgresUrl, QuotaServer, Quotas, Source, tls, values};
use crate::net::fetch::Url;
use crate::net::tls::ConnectorTls;

const SOURCE: &str = "source = \"https://plans.internal/v1/{key}\" or source = \"postgres://gateway@db/plans\"";
const QUERY: &str = "query = \"select rates, tier, exempt, block from plans where key = $1\"";
const KEY: &str = "{key}";
/// Replaces `{key}` while the rest of a URL is checked.
const STAND_IN: &str = "KEY";
/// In PostgreSQL, in bytes.
const MAX_CHANNEL: usize = 63;

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
    let located = section.required(&quotas::source, &format!("add where quotas are: {SOURCE}"));
    let server = located.and_then(|field| server(&section, &field, system));
    let (cache_for, timeout) = (section.read(&quotas::cache_for), section.read(&quotas::timeout));
    let (max_cached, send) = (section.read(&quotas::max_cached), section.read(&quotas::send));
    section.close();
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
    let of_postgres = [quotas::query.name, quotas::channel.name];
    section.misplaced(&of_postgres, "a source that begins with postgres://", "remove it");
    let url = match http(&text) {
        Ok(url) if is_named => Url { target: url.target.with_secret_path(), ..url },
        Ok(url) => url,
        Err(wrong) => {
            refuse(wrong);
            return None;
        }
    };
    let tls = match url.server_name {
        None => None,
        Some(_) => Some(system.tls(field)?),
    };
    Some(QuotaServer::Http(HttpQuotas { url, tls }))
}

fn http(text: &str) -> Result<Url, Wrong> {
    let help = "write https://, or http:// for a server on this machine, with {key} in the path, \
                like \"https://plans.internal/v1/{key}\"";
    let place = match (text.find(KEY), text.rfind(KEY)) {
        (Some(first), Some(last)) if first == last => first,
        (Some(_), _) => return Err(Wrong::new("the source has {key} more than once", "write it once")),
        _ if !text.contains("://") => return Err(Wrong::new(format!("{} is not a URL", quoted(text)), SOURCE)),
        _ => return Err(Wrong::new("the source does not say where the key is", help)),
    };
    let host = text.split_once("://").map_or(0, |(scheme, _)| scheme.len() + 3);
    if text.get(host..).and_then(|rest| rest.find(['/', '?'])).is_none_or(|path| place < host + path) {
        return Err(Wrong::new("the key cannot be part of the host", help).at(place..place + KEY.len()));
    }
    let url = values::url(&text.replacen(KEY, STAND_IN, 1), "quotas", help)?;
    if url.server_name.is_none() && !values::is_here(&url) {
        let message = "without TLS others in the network could read keys and change quotas";
        return Err(Wrong::new(message, help).at(0.."http://".len()));
    }
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
    let url = PostgresUrl::parse(text).map(|url| url.with_secret_database(secret::is_named(field)));
    let url = url.map_err(|why| refuse(wrong(why))).ok();
    let query = section.required(&quotas::query, &format!("add what is asked about a key: {QUERY}"));
    let query = query.and_then(|field| field.parse(query_of_key));
    let channel = match section.field(&quotas::channel) {
        Some(field) => Some(field.parse(channel)?),
        None => None,
    };
    let url = url?;
    let tls = match url.root_certificates() {
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
    let read = tls::authorities(&path);
    let read = read.map_err(|error| error.to_string());
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
        return Err(Wrong::new(format!("{} is not the name of a channel", quoted(text)), help));
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
