//! Checks across sections: names that routes use, captures that keys use, addresses of listeners, duplicate routes.

mod named_limits;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

use http::Method;

use super::file::Draft;
use super::read::{Name, Source};
use super::report::{either, nearest};
use super::route::{Answer, Draft as RouteDraft};
use super::spellings::{unmatchable, ways_around};
use super::{
    Action, Balance, Config, Cost, DEFAULT_PRIORITY, Decisions, Host, Limit, PathPattern, Route, Segment,
    Source as KeySource, Tiers, Upstream,
};

const SMALLEST: &str = "the smallest file is\n\n[upstreams.api]\nservers = [\"http://127.0.0.1:9000\"]\n\n\
                        [[routes]]\npath = \"/*\"\nupstream = \"api\"";

/// Resolves every name and reports contradictions. The result is complete only if nothing was reported.
pub(super) fn resolve(draft: Draft<'_>, source: &Source<'_>) -> Config {
    listeners(&draft.listeners, source);
    if draft.routes.is_empty() && draft.descriptors.is_empty() && source.is_clean() {
        source.report(0..0, source.no_routes(), SMALLEST);
    }
    indistinct(&draft.routes, source);
    named_limits::check_pools(&draft, source);
    let routes: Vec<_> = draft.routes.iter().filter_map(|route| resolve_route(route, &draft, source)).collect();
    unused(&draft, source);
    ways_around(&draft.routes, draft.server.paths, source);
    endless_redirects(&draft, source);
    unknown_tiers(&draft, &routes, source);
    unused_priorities(&draft, source);
    unseen(&draft, source);
    let descriptors = named_limits::resolve_descriptors(&draft, source);
    let notices = named_limits::resolve_notices(&draft, source);
    let watched = |limit: Limit| Limit { watched: super::notices::watched(&notices, &limit), ..limit };
    let tokens: Vec<_> = draft.jwts.iter().map(|(name, _)| name.clone()).collect();
    let limits = draft.limits.into_iter().filter_map(|(_, limit)| limit).map(watched).collect();
    let config = Config {
        server: draft.server,
        decisions: draft.decisions.map(|decisions| Decisions { descriptors, ..decisions }),
        log: draft.log,
        admin: draft.admin,
        tracing: draft.tracing,
        notices,
        gateways: draft.store.fixed_gateways(),
        store: draft.store,
        upstreams: draft.upstreams.into_iter().filter_map(|(_, upstream)| upstream).collect(),
        jwts: draft.jwts.into_iter().filter_map(|(_, jwt)| jwt).collect(),
        limits,
        routes,
        files: source.files(),
        at_start: source.all_at_start(),
        warnings: source.warnings(),
    };
    unused_tokens(&tokens, &config, source);
    Config { warnings: source.warnings(), ..config }
}

fn unused_tokens(tokens: &[Name<'_>], config: &Config, source: &Source<'_>) {
    let is_used = |name: &Name<'_>| config.routes.iter().any(|route| config.uses_token(route, name.text));
    for name in tokens.iter().filter(|name| source.is_clean() && !is_used(name)) {
        let help = format!("add a limit with key = \"jwt:{}:sub | client-ip\" to a route, or remove it", name.text);
        source.warn(name.span.clone(), format!("no route uses the tokens `{}`, so none is verified", name.text), help);
    }
}

fn unused(draft: &Draft<'_>, source: &Source<'_>) {
    for (name, _) in &draft.limits {
        let is_pool = draft.overflows.iter().any(|of| of.pool.as_ref().is_some_and(|pool| pool.text == name.text));
        let of_descriptors = draft.descriptors.iter().flat_map(|rule| &rule.limits);
        let mut used = draft.routes.iter().flat_map(|route| &route.limits).chain(of_descriptors);
        if !is_pool && !used.any(|used| used.text == name.text) {
            let help = format!("add limits = [\"{}\"] to the routes that need it, or remove it", name.text);
            source.warn(
                name.span.clone(),
                format!("no route uses the limit `{}`, so it limits nothing", name.text),
                help,
            );
        }
    }
    for (name, _) in &draft.upstreams {
        let is_used = |route: &RouteDraft<'_>| match &route.answer {
            Some(Answer::Forward { upstream, .. }) => upstream.text == name.text,
            Some(Answer::Respond { .. } | Answer::Redirect(_)) | None => false,
        };
        if !draft.routes.iter().any(is_used) {
            let help = format!("add upstream = \"{}\" to a route, or remove it", name.text);
            source.warn(name.span.clone(), format!("no route uses the upstream `{}`", name.text), help);
        }
    }
}

/// Warns of routes that redirect requests over TLS to the same URL, in an endless loop.
fn endless_redirects(draft: &Draft<'_>, source: &Source<'_>) {
    if !draft.server.listen.iter().any(|listener| listener.tls) {
        return;
    }
    for route in draft.routes.iter().filter(|route| route.scheme.is_none()) {
        if matches!(&route.answer, Some(Answer::Redirect(redirect)) if redirect.is_same_url_over_tls()) {
            let message = "requests over TLS are redirected to the same URL, in an endless loop";
            source.warn(route.path_span.clone(), message, "add scheme = \"http\" to this route");
        }
    }
}

/// Warns of tiers that no request can have because the routes restrict the possible values.
fn unknown_tiers(draft: &Draft<'_>, routes: &[Route], source: &Source<'_>) {
    for (index, (name, limit)) in draft.limits.iter().enumerate() {
        let Some(Tiers { source: attribute, rates, .. }) = limit.as_ref().and_then(|limit| limit.tiers.as_ref()) else {
            continue;
        };
        let has_limit = |route: &&Route| route.limits.contains(&index) || route.pools.contains(&index);
        let routes: Vec<_> = routes.iter().filter(has_limit).collect();
        for (tier, _) in rates {
            let value = limit.as_ref().and_then(|limit| limit.forms.normal(attribute, tier).ok());
            let is_possible = |route: &&Route| value.as_ref().is_some_and(|value| can_be(attribute, value, route));
            if routes.is_empty() || routes.iter().any(is_possible) {
                continue;
            }
            let message = format!("no request can have the tier `{tier}` of `{}`", name.text);
            let help = format!("the tier comes from `{attribute}`, and no route of the limit accepts this value");
            source.warn(name.span.clone(), message, help);
        }
    }
}

/// Warns of priorities without load shedding, where they have no effect.
fn unused_priorities(draft: &Draft<'_>, source: &Source<'_>) {
    if draft.server.shed.is_some() {
        return;
    }
    let help = "add [server.shed], for example with latency = \"500ms\", or remove it";
    for (_, place) in draft.routes.iter().filter_map(|route| route.priority.as_ref()) {
        source.warn(place.clone(), "`priority` has no effect without [server.shed]", help);
    }
    for (name, limit) in &draft.limits {
        let tiers = limit.as_ref().and_then(|limit| limit.tiers.as_ref());
        if let Some((tier, _)) = tiers.and_then(|tiers| tiers.priorities.first()) {
            let message = format!("the priority of the tier `{tier}` has no effect without [server.shed]");
            source.warn(name.span.clone(), message, help);
        }
    }
}

/// Warns of limits whose key or cost needs what other proxies do not show, if there is no listener for requests.
fn unseen(draft: &Draft<'_>, source: &Source<'_>) {
    if draft.decisions.is_none() || !draft.server.listen.is_empty() {
        return;
    }
    for (name, limit) in draft.limits.iter().filter_map(|(name, limit)| Some((name, limit.as_ref()?))) {
        if matches!(limit.cost, Cost::OnStatus(..) | Cost::ResponseHeader { .. } | Cost::Tokens(_) | Cost::Bytes(_)) {
            let message = format!("the cost in `{}` comes from responses, which other proxies do not show", name.text);
            source.warn(
                name.span.clone(),
                message,
                "each request is charged what is reserved: use a cost that is known in advance",
            );
        }
        let is_hidden = |part: &&KeySource| matches!(part, KeySource::Json(_) | KeySource::ClientCert);
        if let Some(hidden) = limit.key.parts.iter().flatten().find(is_hidden) {
            let message = format!("`{}` counts by `{hidden}`, which other proxies do not show", name.text);
            source.warn(name.span.clone(), message, "it is missing in each request: use a header that the proxy sets");
        }
    }
}

/// `value` is in its normal form.
fn can_be(attribute: &KeySource, value: &str, route: &Route) -> bool {
    match attribute {
        KeySource::Method => {
            let is_listed = |method: &Method| method == value || (method == Method::GET && value == "HEAD");
            route.methods.is_empty() || route.methods.iter().any(is_listed)
        }
        KeySource::Host => match &route.host {
            Host::Any => true,
            Host::Under(name) => value.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
            Host::Exact(name) => value == name,
        },
        _ => true,
    }
}

fn resolve_route(route: &RouteDraft<'_>, draft: &Draft<'_>, source: &Source<'_>) -> Option<Route> {
    unmatchable(route, draft.server.paths, source);
    let mut limits = Vec::new();
    for name in &route.limits {
        let Some(index) = find(name, &draft.limits, "limit", source) else { continue };
        limits.push(index);
        let usage = |index: &usize| match &draft.limits[*index].1.as_ref()?.cost {
            Cost::Tokens(cost) => Some(&cost.pointers),
            _ => None,
        };
        if let Some((one, other)) = limits.iter().find_map(usage).zip(usage(&index))
            && one != other
        {
            let message = "the limits of a route must read the tokens of a response in the same place";
            source.report(name.span.clone(), message, "give them the same `tokens`, or put them on different routes");
        }
        if let (Some(limit), Some(path)) = (&draft.limits[index].1, &route.path) {
            captures(&limit.name, limit.sources(), path, name, source);
            for pool in named_limits::pools(&limits[limits.len() - 1..], draft) {
                let pool = draft.limits[pool].1.iter();
                pool.for_each(|pool| captures(&pool.name, pool.sources(), path, name, source));
            }
        }
    }
    let pools = named_limits::pools(&limits, draft);
    let action = match route.answer.as_ref()? {
        Answer::Respond { status, body, content_type } => {
            Action::Respond { status: *status, body: body.clone(), content_type: content_type.clone() }
        }
        Answer::Redirect(redirect) => Action::Redirect(redirect.clone()),
        Answer::Forward { upstream: name, path, preserve_host, rewrite_location } => {
            let index = find(name, &draft.upstreams, "upstream", source)?;
            if let (Some(Upstream { balance: Balance::Hash(key), .. }), Some(pattern)) =
                (&draft.upstreams[index].1, &route.path)
            {
                captures(name.text, key.parts.iter().flatten(), pattern, name, source);
            }
            let of_upstream = draft.upstreams[index].1.as_ref().is_none_or(|upstream| upstream.rewrite_location);
            let rewrite_location = rewrite_location.unwrap_or(of_upstream);
            Action::Forward { upstream: index, path: path.clone(), preserve_host: *preserve_host, rewrite_location }
        }
    };
    Some(Route {
        host: route.host.clone()?,
        path: route.path.clone()?,
        methods: route.methods.clone()?,
        headers: route.headers.clone()?,
        scheme: route.scheme,
        ignore_case: route.ignore_case.unwrap_or(false),
        action,
        limits,
        pools,
        inspect_body: route.inspect_body.unwrap_or(draft.server.inspect_body),
        max_body_size: route.max_body_size.unwrap_or(draft.server.max_body_size),
        body_timeout: route.body_timeout.unwrap_or(draft.server.body_timeout),
        timeout: route.timeout,
        request_headers: route.request_headers.clone()?,
        response_headers: route.response_headers.clone()?,
        priority: route.priority.as_ref().map_or(DEFAULT_PRIORITY, |(priority, _)| *priority),
        cors: route.cors.clone(),
    })
}

fn find<T>(name: &Name<'_>, defined: &[(Name<'_>, T)], what: &str, source: &Source<'_>) -> Option<usize> {
    let index = defined.iter().position(|(candidate, _)| candidate.text == name.text);
    if index.is_none() {
        let names: Vec<&str> = defined.iter().map(|(candidate, _)| candidate.text).collect();
        let help = match nearest(name.text, names.iter().copied()) {
            _ if name.text.contains("://") => {
                format!("give it a name: [{what}s.NAME] with servers = [{:?}], and write that name here", name.text)
            }
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => format!("define it: [{what}s.{}]", name.text),
            None => format!("define it: [{what}s.{}], or use {}", name.text, either(&names)),
        };
        source.report(name.span.clone(), format!("there is no {what} `{}`", name.text), help);
    }
    index
}

/// Checks that the path of a route has every capture that a limit or upstream of this route uses in `sources`.
fn captures<'a>(
    owner: &str,
    sources: impl Iterator<Item = &'a KeySource>,
    path: &PathPattern,
    name: &Name<'_>,
    source: &Source<'_>,
) {
    let captured = path.segments.iter().filter_map(|segment| match segment {
        Segment::Capture(name) => Some(name.as_str()),
        Segment::Literal(_) => None,
    });
    let captured: Vec<&str> = captured.collect();
    for wanted in sources {
        if let KeySource::Descriptor(_) = wanted {
            let message = format!("`{owner}` needs `{wanted}`, which requests do not have");
            source.report(name.span.clone(), message, "name it in [[decisions.descriptors]], or use another key");
        }
        let KeySource::Capture(wanted) = wanted else { continue };
        if captured.contains(&wanted.as_str()) {
            continue;
        }
        let help = match nearest(wanted, captured.iter().copied()) {
            Some(near) => format!("did you mean `path:{near}` in its key, or {{{wanted}}} in the path?"),
            None => format!("write {{{wanted}}} for a segment of the path, or use another key"),
        };
        let message = format!("`{owner}` needs `path:{wanted}`, but `{}` captures no `{wanted}`", path.text);
        source.report(name.span.clone(), message, help);
    }
}

/// Checks that no two listeners share a port on the same address, or on an address and the wildcard address.
fn listeners(listeners: &[(SocketAddr, Range<usize>)], source: &Source<'_>) {
    for (index, (address, span)) in listeners.iter().enumerate() {
        let clash = |earlier: &&(SocketAddr, Range<usize>)| {
            let (a, b) = (earlier.0, *address);
            let both = a.ip() == b.ip()
                || (a.is_ipv4() == b.is_ipv4() && (a.ip().is_unspecified() || b.ip().is_unspecified()));
            a.port() == b.port() && a.port() != 0 && both
        };
        if let Some((earlier, at)) = listeners[..index].iter().find(clash) {
            let message = format!("{address} is already in use by {earlier} {}", source.elsewhere(at.start));
            source.report(span.clone(), message, "give one of the listeners another port");
        }
    }
}

/// Reports routes that match the same requests as an earlier route, and so never match.
fn indistinct(routes: &[RouteDraft<'_>], source: &Source<'_>) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for route in routes {
        let Some(requests) = requests(route) else { continue };
        if let Some(first) = seen.get(&requests) {
            let first = source.elsewhere(*first);
            let message = format!("this route can never match: the one {first} matches the same requests");
            source.report(
                route.span.clone(),
                message,
                "remove one, or give them a different host, path, methods or headers",
            );
        } else {
            seen.insert(requests, route.span.start);
        }
    }
}

/// A text that is equal for two routes if they match the same requests.
fn requests(route: &RouteDraft<'_>) -> Option<String> {
    let host = match route.host.as_ref()? {
        Host::Any => "*".to_owned(),
        Host::Under(name) => format!("*.{name}"),
        Host::Exact(name) => name.clone(),
    };
    let path = route.path.as_ref()?;
    let ignore_case = route.ignore_case.unwrap_or(false);
    let segments: Vec<_> = path
        .segments
        .iter()
        .map(|segment| match segment {
            Segment::Literal(text) if ignore_case => text.to_ascii_lowercase(),
            Segment::Literal(text) => text.clone(),
            Segment::Capture(_) => "{}".to_owned(),
        })
        .collect();
    let mut methods: Vec<&str> = route.methods.as_ref()?.iter().map(Method::as_str).collect();
    methods.sort_unstable();
    let mut headers: Vec<_> = route.headers.as_ref()?.iter().map(|(name, value)| (name.as_str(), value)).collect();
    headers.sort_unstable();
    let (scheme, rest) = (route.scheme, path.rest);
    Some(format!("{host} {segments:?} {rest} {ignore_case} {methods:?} {headers:?} {scheme:?}"))
}
