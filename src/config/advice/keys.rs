//! Advice about the keys of limits.

use std::collections::BTreeMap;
use std::fmt::Display;

use http::HeaderName;

use super::Advised;
use crate::base::http::header_rules::is_of_proxies;
use crate::config::overrides::Allowance;
use crate::config::{Config, Cost, Limit, Missing, Role, Route, Source, is_secret};

/// Headers in which proxies name the client. The gateway reads them itself, from proxies that it trusts.
const ADDRESSES: [&str; 5] = ["x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip", "x-client-ip"];

/// Keys that look like the client's address, but that every client can choose.
pub(super) fn chosen_addresses(advised: &Advised<'_>) {
    for limit in advised.config.limits.iter().filter(|_| may_proxies_send(advised.config)) {
        if let Some(name) = chosen_address(limit) {
            let message =
                format!("`{}` counts by `{name}`, in which every client can write another address", limit.name);
            let help = "use `client-ip`, and list your proxies in `trusted_proxies`: then it is read from this header";
            advised.warn(&[&"limits", &limit.name, &"key"], message, help);
        }
    }
}

fn chosen_address(limit: &Limit) -> Option<&HeaderName> {
    limit.key.parts.iter().flatten().find_map(|source| match source {
        Source::Header(name) if ADDRESSES.contains(&name.as_str()) => Some(name),
        _ => None,
    })
}

/// Whether headers of proxies count from somebody. Other proxies that ask for decisions may send any header.
fn may_proxies_send(config: &Config) -> bool {
    !config.server.trusted_proxies.is_empty() || config.decisions.is_some()
}

/// Headers that count only if a trusted proxy sends them, although no proxy is trusted.
pub(super) fn of_proxies(advised: &Advised<'_>) {
    let config = advised.config;
    if may_proxies_send(config) {
        return;
    }
    let warn = |path: &[&dyn Display], name: &HeaderName| {
        let message = format!("`{name}` counts only from `trusted_proxies`, and there are none");
        let help = match ADDRESSES.contains(&name.as_str()) {
            true => "use `client-ip`, and list your proxies in `trusted_proxies`: then it is read from this header",
            false => "list the proxies that write this header in `trusted_proxies`",
        };
        advised.warn(path, message, help);
    };
    for limit in &config.limits {
        let of_tier = limit.tiers.as_ref().and_then(|tiers| tiers.source.header()).map(|name| (name, "tier"));
        let of_cost = limit.cost.request_header().map(|name| (name, "cost"));
        let of_key = limit.key.parts.iter().flatten().filter_map(Source::header).map(|name| (name, "key"));
        for (name, key) in of_key.chain(of_tier).chain(of_cost).filter(|(name, _)| is_of_proxies(name)) {
            warn(&[&"limits", &limit.name, &key], name);
        }
    }
    for (index, route) in config.routes.iter().enumerate() {
        for (name, _) in route.headers.iter().filter(|(name, _)| is_of_proxies(name)) {
            warn(&[&"routes", &index, &"headers"], name);
        }
    }
}

/// Limits by `client-ip` where only other proxies ask, none of which is trusted to name its clients.
pub(super) fn addresses_of_proxies(advised: &Advised<'_>) {
    let config = advised.config;
    if !config.server.listen.is_empty() || !config.server.trusted_proxies.is_empty() {
        return;
    }
    let has_address = |limit: &&Limit| limit.sources().any(|source| matches!(source, Source::ClientIp { .. }));
    if let Some(limit) = config.routes.iter().flat_map(|route| config.limits_of(route)).find(has_address) {
        let message =
            format!("`{}` counts all clients of a proxy that asks as one: their addresses are unknown", limit.name);
        advised.warn(&[&"limits", &limit.name, &"key"], message, "list the proxies that ask in `trusted_proxies`");
    }
}

/// Limits that alone bound what a client sends to a route, although it can invent a new key for each request.
pub(super) fn invented(advised: &Advised<'_>) {
    let config = advised.config;
    let is_of_nobody = |source: &&Source| !may_proxies_send(config) && source.header().is_some_and(is_of_proxies);
    let mut found = BTreeMap::new();
    for route in &config.routes {
        let limits: Vec<_> =
            route.limits.iter().filter_map(|index| Some((index, config.limits.get(*index)?))).collect();
        for (index, limit) in &limits {
            let Some(source) = unverified(limit, route).filter(|source| !is_of_nobody(source)) else { continue };
            if limit.on_limit.role() == Role::Refuses
                && !limits.iter().any(|(_, other)| bounds(other, limit))
                && chosen_address(limit).is_none()
            {
                found.entry(*index).or_insert((*limit, source));
            }
        }
    }
    for (limit, source) in found.into_values() {
        let message = format!("`{}` limits nobody who invents a new `{source}` for each request", limit.name);
        let is_first = limit.key.parts.first().is_some_and(|first| first.contains(source));
        let help = match limit.known_keys {
            None if is_first => known_keys_of(limit),
            _ => "add another limit to its routes: key = \"client-ip\"".to_owned(),
        };
        advised.warn(&[&"limits", &limit.name, &"key"], message, help);
    }
}

/// The sources of a key whose values tell clients apart, but that any client can invent.
fn invented_parts(limit: &Limit) -> impl Iterator<Item = &Source> {
    // Only the first part is looked up among the known keys.
    let parts = limit.key.parts.iter().skip(usize::from(limit.known_keys.is_some()));
    parts.flatten().filter(|source| source.is_chosen_by_clients() && source.identifies_clients())
}

/// A source whose invented values would pass. An upstream refuses a token that it has not issued, and reports no use of tokens
/// for a key that it does not know, unless the gateway adds a credential of its own.
fn unverified<'l>(limit: &'l Limit, route: &Route) -> Option<&'l Source> {
    let is_credential = |name: &HeaderName| is_secret(name) || name.as_str().ends_with("api-key");
    let has_credential = route.request_headers.set.iter().any(|(name, _)| is_credential(name));
    let counts_use = matches!(limit.cost, Cost::Tokens(_));
    let is_blocked = limit.overrides.find(Some(b"?"), None).and_then(|index| limit.overrides.allowances().get(index))
        == Some(&Allowance::Block);
    let is_verified = |source: &Source| !has_credential && (counts_use || *source == Source::Bearer);
    invented_parts(limit).find(|source| !is_blocked && !is_verified(source))
}

/// Whether a client that invents keys of `limit` still comes to the end of what `other` allows.
fn bounds(other: &Limit, limit: &Limit) -> bool {
    let is_never_missing = other.key.parts.iter().any(|part| part.iter().any(Source::is_always_there));
    other.on_limit.role() == Role::Refuses
        && (!other.rates.is_empty() || limit.rates.is_empty())
        && (other.missing != Missing::Skip || is_never_missing)
        && invented_parts(other).next().is_none()
}

fn known_keys_of(limit: &Limit) -> String {
    let mut parts: Vec<_> = limit.key.spelled_parts().collect();
    let has_address = |part: &Vec<Source>| part.iter().any(Source::is_always_there);
    if let Some(first) = parts.first_mut().filter(|_| !limit.key.parts.first().is_some_and(has_address)) {
        first.push_str(" | client-ip");
    }
    let key = match &parts[..] {
        [one] => format!("{one:?}"),
        all => format!("{all:?}"),
    };
    format!(
        "list the keys that exist, so that all others count by address:\n\nkey = {key}\nknown_keys = \"keys.txt\"\n\n\
         or add another limit to its routes: key = \"client-ip\""
    )
}

/// `missing` in limits whose key is never missing.
pub(super) fn never_missing(advised: &Advised<'_>) {
    // A key that is not among the known keys counts as missing.
    for limit in advised.config.limits.iter().filter(|limit| limit.known_keys.is_none()) {
        let path: [&dyn Display; 3] = [&"limits", &limit.name, &"missing"];
        let is_never_missing = limit.key.parts.iter().all(|part| part.iter().any(Source::is_always_there));
        if is_never_missing && advised.written(&path).is_some() {
            let message = format!("`missing` of `{}` has no effect: every request has `{}`", limit.name, limit.key);
            advised.warn(&path, message, "remove it");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    const REST: &str = "[limits.per-client]\nkey = \"client-ip\"\nrates = [\"100/s\"]\n[upstreams.app]\n\
                        servers = [\"builtin:echo\"]\n[[routes]]\npath = \"/p/*\"\nupstream = \"app\"\n\
                        limits = [\"per-client\"]\n[[routes]]\npath = \"/*\"\nupstream = \"app\"\n\
                        [jwt.site]\nissuer = \"https://a.test/\"\naudience = [\"a\"]\nalgorithms = [\"RS256\"]\n\
                        jwks = \"https://a.test/keys\"\n";

    /// What is said of keys that clients invent.
    fn said(limit: &str, limits: &str) -> bool {
        let text = REST.replace("path = \"/*\"", &format!("path = \"/*\"\nlimits = [{limits}]"));
        let text = format!("[limits.l]\nrates = [\"10/s\"]\n{limit}\n{text}");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/warned");
        let config = crate::config::parse(text.as_bytes(), "gateway.toml", &folder).unwrap();
        config.warnings.to_string().contains("invents a new")
    }

    /// An invented key is not missing, so the address behind the `|` does not count it.
    #[test]
    fn a_key_with_the_address_as_the_last_source_is_warned_about_only_if_clients_can_invent_it() {
        for (limit, is_invented) in [
            ("key = \"header:x-api-key | client-ip\"\nknown_keys = \"keys.txt\"", false),
            ("key = \"jwt:sub | client-ip\"", false),
            ("key = \"client-cert | client-ip\"", false),
            ("key = \"bearer | client-ip\"", false),
            ("key = \"header:x-api-key | client-ip\"\non_limit = \"shadow\"", false),
            ("key = \"header:x-api-key | client-ip\"", true),
            ("key = \"cookie:session | client-ip\"", true),
            ("key = \"query:key | client-ip\"", true),
            ("key = \"jwt:sub | header:x-api-key | client-ip\"", true),
        ] {
            assert_eq!(said(limit, "\"l\""), is_invented, "{limit}");
            assert!(!said(limit, "\"l\", \"per-client\""), "another limit bounds what an address sends: {limit}");
        }
    }
}
