//! Describes a configuration for `gateway check`.

mod json;
mod limits;
mod reload;
mod upstreams;

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use http::{HeaderName, HeaderValue, Method};

use super::certificates;
use crate::base::jwt;
use crate::base::wildcard::Wildcard;
use crate::config::{
    Action, Config, Cors, Decisions, DescriptorRule, EscapedSlashes, HeaderChanges, HeaderText, Jwks, Jwt, Listener,
    MaxConnections, OnError, PathMatching, PathPattern, PathRules, Route, SentPath, Share, Shed, Store, UNLIMITED,
    is_secret,
};
use crate::net::Traffic;
use crate::request::identify::body::BodyInspector;
use crate::request::route;
use crate::sources::jwks::FETCH_EVERY;

pub use json::json;
pub use reload::describe_reload;

/// The most patterns and networks that one allowance lists; further ones are only counted.
const MOST_TEXTS: usize = 1_000;

pub fn describe(config: &Config) -> String {
    fmt::from_fn(|f| write(f, config)).to_string()
}

fn listener(listener: Listener) -> String {
    let Listener { address, tls, traffic } = listener;
    let what = if traffic == Traffic::Decisions { " for decisions" } else { "" };
    format!("{address}{}{what}", if tls { " (TLS)" } else { "" })
}

fn write(f: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    let listen: Vec<_> = config.listeners().map(listener).collect();
    writeln!(f, "listens on {}", listen.join(", "))?;
    if let Some(Decisions { refused_status, .. }) = &config.decisions {
        writeln!(f, "answers other proxies {} if a limit refuses", refused_status.as_u16())?;
    }
    admin(f, config)?;
    if let Some(tracing) = &config.tracing {
        let (share, endpoint) = ((tracing.sample * 1e6).round() / 1e4, tracing.collector.endpoint());
        writeln!(f, "traces {share} % of requests, and those that trusted proxies sample, for {endpoint}")?;
    }
    for one in &config.notices {
        let at: Vec<_> = one.at.iter().map(|share| format!("{} %", f64::from(*share) / 1e4)).collect();
        let keys = if one.full_keys { "in full" } else { "masked" };
        let at = at.join(", ");
        writeln!(f, "tells {} when a key, {keys}, has used {at} of a rate of {}", one.url, one.limits.join(", "))?;
    }
    if config.server.proxy_protocol {
        writeln!(f, "expects the PROXY protocol: the address of a connection is the one that its preamble names")?;
    }
    if config.server.trusted_proxies.is_empty() {
        writeln!(f, "trusts no proxy: the client's address is that of the connection")?;
    } else {
        let trusted: Vec<_> = config.server.trusted_proxies.iter().map(ToString::to_string).collect();
        writeln!(f, "trusts X-Forwarded-For and Forwarded from {}", trusted.join(", "))?;
    }
    if config.server.forwarded {
        writeln!(f, "tells upstreams about the client in X-Forwarded-For, and in Forwarded too")?;
    }
    match config.server.max_connections {
        MaxConnections::Auto => write!(f, "accepts as many connections as the limit of file handles allows")?,
        MaxConnections::Number(most) => write!(f, "accepts up to {most} connections")?,
    }
    match config.server.max_connections_per_ip {
        0 => writeln!(f)?,
        most => writeln!(f, ", up to {most} per address")?,
    }
    writeln!(f, "{}", paths(config.server.paths))?;
    config.server.shed.iter().try_for_each(|shed| self::shed(f, shed))?;
    certificates::describe(f, config)?;
    writeln!(f, "\nstore")?;
    store(f, &config.store)?;
    writeln!(f, "\nroutes, in the order they match")?;
    let limits = |route: &Route| {
        let names: Vec<_> = route.limits.iter().map(|index| config.limits[*index].name.as_str()).collect();
        if names.is_empty() { "no limit".to_owned() } else { format!("limits: {}", names.join(", ")) }
    };
    for (_, route) in route::order(&config.routes) {
        writeln!(f, "  {}", route::label(route))?;
        writeln!(f, "    {}", action(config, route))?;
        if route.ignore_case {
            writeln!(f, "    ignores the case of letters in the path")?;
        }
        if route.max_body_size != UNLIMITED {
            writeln!(f, "    accepts bodies of at most {} bytes", route.max_body_size)?;
        }
        if let Some(BodyInspector { most, .. }) = BodyInspector::new(config, route) {
            writeln!(f, "    reads bodies of at most {most} bytes before the decision")?;
        }
        if let Some(limit) = route.timeout {
            writeln!(f, "    waits at most {limit:?} for the head of the response")?;
        }
        changed_headers(f, "request", &route.request_headers)?;
        changed_headers(f, "response", &route.response_headers)?;
        if config.server.shed.is_some() {
            writeln!(f, "    priority {}", route.priority)?;
        }
        route.cors.as_ref().map_or(Ok(()), |cors| self::cors(f, cors))?;
        writeln!(f, "    {}", limits(route))?;
    }
    let descriptors = config.descriptors();
    if !descriptors.is_empty() {
        writeln!(f, "\ndescriptors, in the order they are compared")?;
    }
    for DescriptorRule { domain, entries, reports, quota_mode, route } in descriptors {
        let entries = entries.iter().map(|(key, Wildcard(value))| format!("{key} = {value:?}"));
        let reports = if *reports { ", reports of what has been used" } else { "" };
        let quota = if *quota_mode { ", over the limit is only told" } else { "" };
        writeln!(f, "  {domain}: {{ {} }}{reports}{quota}", entries.collect::<Vec<_>>().join(", "))?;
        writeln!(f, "    {}", limits(route))?;
    }
    if !config.jwts.is_empty() {
        writeln!(f, "\ntokens")?;
        config.jwts.iter().try_for_each(|jwt| token(f, jwt))?;
    }
    writeln!(f, "\nlimits")?;
    if !config.limits.is_empty() {
        let changes = match &config.store {
            Store::Memory { .. } => "a name, a key or a period",
            Store::Shared(_) => "more than quotas",
        };
        writeln!(f, "  a reload keeps their counters unless it changes {changes}; to compare two files, use")?;
        writeln!(f, "  `gateway check NEW --against OLD`")?;
    }
    config.limits.iter().try_for_each(|limit| limits::describe(f, limit))?;
    writeln!(f, "\nupstreams")?;
    config.upstreams.iter().try_for_each(|upstream| upstreams::describe(f, upstream))
}

/// Where the counters are, and which gateways share the limits.
fn store(f: &mut fmt::Formatter<'_>, store: &Store) -> fmt::Result {
    match store {
        Store::Memory { max_keys, max_memory, snapshot, share } => {
            writeln!(f, "  memory, at most {max_keys} keys and {} MiB", max_memory >> 20)?;
            match share {
                Some(Share::Gateways(gateways)) => {
                    writeln!(f, "  {gateways} gateways share the limits: this one has its part of every rate")?;
                }
                Some(Share::Name(name)) => {
                    writeln!(f, "  as many gateways share the limits as {name} has addresses, looked up every 5 s")?;
                }
                None => {}
            }
            match snapshot {
                Some(path) => writeln!(f, "  saved to {} at the end, and read from it at the start", path.display()),
                None => Ok(()),
            }
        }
        Store::Shared(shared) => {
            writeln!(f, "  {} at {}", shared.software.word(), shared.servers.join(", "))?;
            if let sentinels @ [_, ..] = &shared.login.sentinels[..] {
                writeln!(f, "  the sentinels {} know its address", sentinels.join(", "))?;
            }
            if shared.login.cluster {
                writeln!(f, "  they are nodes of a cluster, and say where the others are")?;
            }
            let away = match shared.on_error {
                OnError::Local => "are counted in this process",
                OnError::Allow => "pass and are not counted",
                OnError::Reject => "are answered 503",
            };
            writeln!(f, "  keys begin with {}:", shared.prefix)?;
            if shared.strict {
                writeln!(f, "  strict: each admission is confirmed by {} first", shared.software.name())?;
            }
            writeln!(f, "  waits at most {:?}; without an answer requests {away}", shared.timeout)
        }
    }
}

fn token(f: &mut fmt::Formatter<'_>, jwt: &Jwt) -> fmt::Result {
    let Jwt { name, issuer, audience, jwks, algorithms, from, required } = jwt;
    writeln!(f, "  {name}")?;
    write!(f, "    from {from}, of the issuer {issuer}, ")?;
    if audience.is_empty() {
        writeln!(f, "without an audience")?;
    } else {
        writeln!(f, "for the audience {}", audience.join(" or "))?;
    }
    let names: Vec<_> = algorithms.iter().map(|algorithm| jwt::algorithm_name(*algorithm)).collect();
    write!(f, "    signed with {}; ", names.join(", "))?;
    match jwks {
        Jwks::File { path, keys } => writeln!(f, "{} key(s) in {}", keys.count(), path.display())?,
        Jwks::Server { url, .. } => writeln!(f, "the keys are fetched from {url} every {FETCH_EVERY:?}")?,
    }
    let without = if *required { "are answered 401" } else { "have no key" };
    writeln!(f, "    on routes that use it, requests without a valid token {without}")
}

fn admin(f: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    match &config.admin {
        Some(admin) => {
            let tls = if admin.tls.is_some() { " (TLS)" } else { "" };
            let token = match (&admin.token, &admin.read_token) {
                (None, _) => "",
                (Some(_), None) => ", for requests with the token",
                (Some(_), Some(_)) => ", for requests with the token, or to read with the read_token",
            };
            writeln!(f, "admin on {}{tls}{token}", admin.listen)?;
            if admin.listen.is_loopback() && !admin.hosts.is_empty() {
                writeln!(f, "admin also answers to {}", admin.hosts.join(", "))?;
            }
        }
        None => writeln!(f, "no admin listener")?,
    }
    Ok(())
}

fn statuses(ranges: &[RangeInclusive<u16>]) -> String {
    let text = |range: &RangeInclusive<u16>| {
        if range.start() == range.end() { range.start().to_string() } else { format!("{}xx", range.start() / 100) }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn shed(f: &mut fmt::Formatter<'_>, shed: &Shed) -> fmt::Result {
    let Shed { cpu, latency, status } = shed;
    let cpu = cpu.map(|share| format!("{} % of the processors are in use", f64::from(share) / 10.0));
    let latency = latency.map(|latency| format!("responses of an upstream take {latency:?}"));
    let either: Vec<_> = latency.into_iter().chain(cpu).collect();
    writeln!(f, "sheds the lowest priorities with status {} if {}", status.as_u16(), either.join(" or "))
}

fn paths(rules: PathRules) -> String {
    let matching = match rules.matching {
        PathMatching::Forgiving => "a final slash and ;parameters of a path are ignored",
        PathMatching::Exact => "a final slash and ;parameters make a different path",
    };
    let slashes = match rules.escaped_slashes {
        EscapedSlashes::Reject => "answered 400",
        EscapedSlashes::Keep => "part of a segment",
        EscapedSlashes::Decode => "slashes",
    };
    format!("{matching}; %2F and %5C are {slashes}")
}

fn changed_headers(f: &mut fmt::Formatter<'_>, message: &str, changes: &HeaderChanges<HeaderText>) -> fmt::Result {
    for (verb, headers) in [("sets", &changes.set), ("adds", &changes.add)] {
        for (name, text) in headers {
            let value = match text {
                HeaderText::Fixed(value) => shown_value(name, value),
                HeaderText::Template(_) if is_secret(name) => SECRET.into(),
                HeaderText::Template(template) => template.text.as_str().into(),
            };
            writeln!(f, "    {verb} the {message} header {name}: {value}")?;
        }
    }
    changes.remove.iter().try_for_each(|name| writeln!(f, "    removes the {message} header {name}"))
}

fn cors(f: &mut fmt::Formatter<'_>, cors: &Cors) -> fmt::Result {
    let Cors { origins, methods, headers, expose, credentials, max_age } = cors;
    let listed = |names: &[HeaderName]| names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
    let origins = origins.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let methods = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    let headers = match headers.as_deref() {
        None => "any headers".to_owned(),
        Some([]) => "no other headers".to_owned(),
        Some(names) => format!("the headers {}", listed(names)),
    };
    let credentials = if *credentials { " and credentials" } else { "" };
    writeln!(f, "    answers preflights, and charges them to no limit")?;
    writeln!(f, "    allows pages of {origins} to send {methods} with {headers}{credentials}")?;
    if !expose.is_empty() {
        writeln!(f, "    lets these pages read the response headers {}", listed(expose))?;
    }
    if let Some(age) = max_age {
        writeln!(f, "    lets browsers keep the answer to a preflight for {age:?}")?;
    }
    Ok(())
}

const SECRET: &str = "***";

/// The value of a header, or `***` if it is secret.
pub fn shown_value<'a>(name: &HeaderName, value: &'a HeaderValue) -> Cow<'a, str> {
    if value.is_sensitive() || is_secret(name) { SECRET.into() } else { String::from_utf8_lossy(value.as_bytes()) }
}

/// Where the response of a route comes from.
pub fn action(config: &Config, route: &Route) -> String {
    match &route.action {
        Action::Respond { status, .. } => format!("answers {status}"),
        Action::Redirect(redirect) => format!("redirects to {} with status {}", redirect.to.text, redirect.status),
        Action::Forward { upstream, path, preserve_host, .. } => {
            let changed = match path {
                SentPath::Stripped(0) => String::new(),
                SentPath::Stripped(count) => format!(", without {}", first_segments(&route.path, *count)),
                SentPath::Rewritten(template) => format!(", as {}", template.text),
            };
            let host = if *preserve_host { ", with the client's Host" } else { "" };
            format!("forwards to {}{changed}{host}", config.upstreams[*upstream].name)
        }
    }
}

fn first_segments(path: &PathPattern, count: usize) -> String {
    path.text.split('/').take(count + 1).collect::<Vec<_>>().join("/")
}
