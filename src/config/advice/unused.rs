//! Advice about what no request uses, and about what other proxies cannot use.

use std::collections::HashSet;
use std::fmt::Display;

use http::Method;

use super::Advised;
use crate::config::{Cost, Host, Route, Source, Tiers};

pub(super) fn limits(advised: &Advised<'_>) {
    let config = advised.config;
    let routes = config.routes.iter().chain(config.descriptors().iter().map(|rule| &rule.route));
    let mut used: HashSet<&str> =
        routes.flat_map(|route| config.limits_of(route)).map(|limit| limit.name.as_str()).collect();
    used.extend(config.limits.iter().filter_map(|limit| limit.overflow.as_deref()));
    for name in config.limits.iter().map(|limit| &limit.name).filter(|name| !used.contains(name.as_str())) {
        let help = format!("add limits = [\"{name}\"] to the routes that need it, or remove it");
        advised.warn_at_key(
            &[&"limits", name],
            format!("no route uses the limit `{name}`, so it limits nothing"),
            help,
        );
    }
}

pub(super) fn upstreams(advised: &Advised<'_>) {
    for (index, upstream) in advised.config.upstreams.iter().enumerate() {
        let name = &upstream.name;
        let is_used = |route: &Route| route.action.upstream() == Some(index);
        if !advised.config.routes.iter().any(is_used) {
            let help = format!("add upstream = \"{name}\" to a route, or remove it");
            advised.warn_at_key(&[&"upstreams", name], format!("no route uses the upstream `{name}`"), help);
        }
    }
}

pub(super) fn tokens(advised: &Advised<'_>) {
    let config = advised.config;
    for name in config.jwts.iter().map(|jwt| &jwt.name) {
        if !config.routes.iter().any(|route| config.uses_token(route, name)) {
            let help = format!("add a limit with key = \"jwt:{name}:sub | client-ip\" to a route, or remove it");
            let message = format!("no route uses the tokens `{name}`, so none is verified");
            advised.warn_at_key(&[&"jwt", name], message, help);
        }
    }
}

/// Tiers that no request can have because the routes restrict the possible values.
pub(super) fn tiers(advised: &Advised<'_>) {
    for (index, limit) in advised.config.limits.iter().enumerate() {
        let Some(Tiers { source, rates, .. }) = &limit.tiers else { continue };
        let has_limit = |route: &&Route| route.limits.contains(&index) || route.pools.contains(&index);
        let routes: Vec<_> = advised.config.routes.iter().filter(has_limit).collect();
        for (tier, _) in rates {
            if routes.is_empty() || routes.iter().any(|route| can_be(source, tier, route)) {
                continue;
            }
            let message = format!("no request can have the tier `{tier}` of `{}`", limit.name);
            let help = format!("the tier comes from `{source}`, and no route of the limit accepts this value");
            advised.warn_at_key(&[&"limits", &limit.name], message, help);
        }
    }
}

fn can_be(source: &Source, value: &str, route: &Route) -> bool {
    match source {
        Source::Method => {
            let is_listed = |method: &Method| method == value || (method == Method::GET && value == "HEAD");
            !value.bytes().any(|byte| byte.is_ascii_lowercase())
                && (route.methods.is_empty() || route.methods.iter().any(is_listed))
        }
        Source::Host => match &route.host {
            Host::Any => !value.contains(':') && !value.bytes().any(|byte| byte.is_ascii_uppercase()),
            Host::Under(name) => value.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
            Host::Exact(name) => value == name,
        },
        _ => true,
    }
}

/// Priorities have no effect without load shedding.
pub(super) fn priorities(advised: &Advised<'_>) {
    if advised.config.server.shed.is_some() {
        return;
    }
    let help = "add [server.shed], for example with latency = \"500ms\", or remove it";
    for index in 0..advised.config.routes.len() {
        let path: [&dyn Display; 3] = [&"routes", &index, &"priority"];
        if advised.written(&path).is_some() {
            advised.warn_at_key(&path, "`priority` has no effect without [server.shed]", help);
        }
    }
    for limit in &advised.config.limits {
        if let Some((tier, _)) = limit.tiers.as_ref().and_then(|tiers| tiers.priorities.first()) {
            let message = format!("the priority of the tier `{tier}` has no effect without [server.shed]");
            advised.warn_at_key(&[&"limits", &limit.name], message, help);
        }
    }
}

/// Limits whose key or cost needs what other proxies do not show, if there is no listener for requests.
pub(super) fn unseen(advised: &Advised<'_>) {
    if advised.config.decisions.is_none() || !advised.config.server.listen.is_empty() {
        return;
    }
    for limit in &advised.config.limits {
        let name = &limit.name;
        if matches!(limit.cost, Cost::OnStatus(..) | Cost::ResponseHeader { .. } | Cost::Tokens(_) | Cost::Bytes(_)) {
            let message = format!("the cost in `{name}` comes from responses, which other proxies do not show");
            let help = "each request is charged what is reserved: use a cost that is known in advance";
            advised.warn_at_key(&[&"limits", name], message, help);
        }
        let is_hidden = |part: &&Source| matches!(part, Source::Json(_) | Source::ClientCert);
        if let Some(hidden) = limit.key.parts.iter().flatten().find(is_hidden) {
            let message = format!("`{name}` counts by `{hidden}`, which other proxies do not show");
            let help = "it is missing in each request: use a header that the proxy sets";
            advised.warn_at_key(&[&"limits", name], message, help);
        }
    }
}
