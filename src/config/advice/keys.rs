//! Advice about the keys of limits.

use std::fmt::Display;

use toml::de::DeValue;

use super::{Advice, Advised};
use crate::config::{Limit, Source};

/// Headers in which proxies name the client. The gateway reads them itself, from proxies that it trusts.
const ADDRESSES: [&str; 5] = ["x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip", "x-client-ip"];

/// Keys that look like the client's address, but that every client can choose.
pub(super) fn chosen_addresses(Advised { config, .. }: &Advised<'_>) -> Vec<Advice> {
    let mut all = Vec::new();
    for limit in &config.limits {
        let chosen = limit.key.parts.iter().flatten().find_map(|source| match source {
            Source::Header(name) if ADDRESSES.contains(&name.as_str()) => Some(name),
            _ => None,
        });
        if let Some(name) = chosen {
            let message =
                format!("`{}` counts by `{name}`, in which every client can write another address", limit.name);
            let help = "use `client-ip`, and list your proxies in `trusted_proxies`: then it is read from this header";
            all.push(Advice::new(&[&"limits", &limit.name, &"key"], message, help));
        }
    }
    all
}

/// Overrides for networks in limits whose keys are no addresses.
pub(super) fn networks_of_other_keys(advised: &Advised<'_>) -> Vec<Advice> {
    let mut all = Vec::new();
    for limit in advised.config.limits.iter().filter(|limit| !has_addresses(limit)) {
        let name = &limit.name;
        let path: [&dyn Display; 3] = [&"limits", name, &"overrides"];
        let Some(DeValue::Array(overrides)) = advised.written(&path).map(toml::Spanned::get_ref) else { continue };
        for at in 0..overrides.len() {
            let path: [&dyn Display; 5] = [&"limits", name, &"overrides", &at, &"keys"];
            let Some(DeValue::Array(keys)) = advised.written(&path).map(toml::Spanned::get_ref) else { continue };
            for (index, key) in keys.iter().enumerate() {
                let Some(text) = key.get_ref().as_str().filter(|text| text.parse::<ipnet::IpNet>().is_ok()) else {
                    continue;
                };
                let message = format!(
                    "{text:?} is a network, but the keys of `{name}` are not addresses: only a key with this text \
                     matches"
                );
                let path: [&dyn Display; 6] = [&"limits", name, &"overrides", &at, &"keys", &index];
                all.push(Advice::new(&path, message, "networks are for limits whose key has `client-ip`"));
            }
        }
    }
    all
}

fn has_addresses(limit: &Limit) -> bool {
    limit.key.parts.iter().flatten().any(|source| matches!(source, Source::ClientIp { .. }))
}

/// `missing` in limits whose key is never missing.
pub(super) fn never_missing(advised: &Advised<'_>) -> Vec<Advice> {
    let is_always_there = |source: &Source| {
        matches!(
            source,
            Source::ClientIp { .. } | Source::Path | Source::Host | Source::Method | Source::Route | Source::Global
        )
    };
    let is_never_missing = |limit: &&Limit| limit.key.parts.iter().all(|part| part.iter().any(is_always_there));
    let advice = |limit: &Limit| {
        let path: [&dyn Display; 3] = [&"limits", &limit.name, &"missing"];
        advised.written(&path)?;
        let message = format!("`missing` of `{}` has no effect: every request has `{}`", limit.name, limit.key);
        Some(Advice::new(&path, message, "remove it"))
    };
    // A key that is not among the known keys counts as missing.
    let without_list = advised.config.limits.iter().filter(|limit| limit.known_keys.is_none());
    without_list.filter(is_never_missing).filter_map(advice).collect()
}
