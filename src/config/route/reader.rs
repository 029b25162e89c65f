//! Reads `[[routes]]`: which requests they match, and what happens to them.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use http::{HeaderName, Method, header};

use super::action::{self, Action};
use super::header_changes::{self, HeaderChanges, HeaderText};
use super::path_pattern::{self, PathPattern, Segment, check_sources};
use super::{HeaderMatch, Host, Route, cors, keys as route};
use crate::config::named::Named;
use crate::config::read::{Field, Section, Setting, Wrong};
use crate::config::report::quoted;
use crate::config::server::{DEFAULT_PRIORITY, Server};
use crate::config::{Cost, EscapedSlashes, PathMatching, PathRules, secret, values};

/// Those without an error.
pub(in crate::config) fn read(
    file: &Section<'_>,
    key: &'static Setting<()>,
    named: &Named<'_>,
    server: &Server,
) -> Vec<Route> {
    let Some(field) = file.field(key) else { return Vec::new() };
    if !field.value.is_array() {
        field.mistyped("a list of tables", "write [[routes]], with two brackets on each side, for each route");
        return Vec::new();
    }
    let sections = file.tables(key);
    // There may be very many routes, and a vector that grows takes up to twice the memory.
    let mut routes = Vec::with_capacity(sections.size_hint().1.unwrap_or_default());
    let mut earlier = HashMap::new();
    routes.extend(sections.filter_map(|section| route(&section, named, server, &mut earlier)));
    routes
}

/// `earlier` has which requests the routes before it match, and where these routes are.
fn route(
    section: &Section<'_>,
    named: &Named<'_>,
    server: &Server,
    earlier: &mut HashMap<String, usize>,
) -> Option<Route> {
    let host = section.field(&route::host).map_or(Some(Host::Any), |field| field.parse(host));
    let path = section.needed(&route::path).and_then(|field| {
        let path = field.parse(path_pattern::pattern)?;
        check_spelling(&path, server.paths, &field);
        Some(path)
    });
    let ignore_case = section.read(&route::ignore_case);
    let methods = section.field(&route::methods).map_or(Some(Vec::new()), |field| methods(&field));
    let headers = section.field(&route::headers).map_or(Some(Vec::new()), |field| needed_headers(&field));
    let scheme = section.given(&route::scheme);
    if let (Some(host), Some(path), Some(methods), Some(headers)) = (&host, &path, &methods, &headers) {
        let requests = format!("{} {scheme:?}", requests(host, path, ignore_case, methods, headers));
        check_distinct(requests, section, earlier);
    }
    let action = action::read(section, path.as_ref(), named);
    let limits = section.field(&route::limits).map(|field| limits(&field, path.as_ref(), named)).unwrap_or_default();
    let max_body_size = section.given(&route::max_body_size).unwrap_or(server.max_body_size);
    let body_timeout = section.given(&route::body_timeout).unwrap_or(server.body_timeout);
    let inspect_body = section.given(&route::inspect_body).unwrap_or(server.inspect_body);
    let timeout = section.given(&route::timeout);
    let changes = |changeable: &header_changes::Changeable| match section.field(changeable.key) {
        Some(field) => changeable.read(&field, path.as_ref()),
        None => Some(HeaderChanges::default()),
    };
    let (request_headers, response_headers) =
        (changes(&header_changes::OF_REQUESTS), changes(&header_changes::OF_RESPONSES));
    let sets_host = |changes: &HeaderChanges<HeaderText>| changes.set.iter().any(|(name, _)| *name == header::HOST);
    if matches!(action, Some(Action::Forward { preserve_host: true, .. }))
        && request_headers.as_ref().is_some_and(sets_host)
    {
        let why = "has no effect: `request_headers` sets the Host header";
        section.refuse(&[route::preserve_host.name], why, "keep one of them");
    }
    let priority = section.given(&route::priority).unwrap_or(DEFAULT_PRIORITY);
    let cors = section.table(&route::cors).and_then(|table| {
        cors::check(section, headers.as_deref(), response_headers.as_ref());
        cors::read(&table, methods.as_deref())
    });
    Some(Route {
        host: host?,
        path: path?,
        ignore_case,
        methods: methods?,
        headers: headers?,
        scheme,
        action: action?,
        pools: named.pools(&limits),
        limits,
        max_body_size,
        inspect_body,
        body_timeout,
        timeout,
        request_headers: request_headers?,
        response_headers: response_headers?,
        priority,
        cors,
    })
}

/// Reports a literal that can never match, because requests with this spelling are refused or read differently.
fn check_spelling(path: &PathPattern, rules: PathRules, field: &Field<'_>) {
    for segment in &path.segments {
        let Segment::Literal(text) = segment else { continue };
        let has_slash = text.contains("%2F") || text.contains("%5C");
        let why = match rules.escaped_slashes {
            EscapedSlashes::Reject if has_slash => "requests with %2F or %5C in their path are refused",
            EscapedSlashes::Decode if has_slash => "%2F and %5C in the path of a request are slashes",
            _ if text.contains(';') && rules.matching == PathMatching::Forgiving => {
                "a `;` and the text after it in a segment are ignored"
            }
            _ => continue,
        };
        let help = if has_slash {
            "write a slash; or set escaped_slashes = \"keep\" in [server], if your upstreams treat it as part of a segment"
        } else {
            "remove it, or set path_matching = \"exact\" in [server]"
        };
        field.report(format!("the path {} can never match: {why}", quoted(&path.text)), help);
        return;
    }
}

/// Reports a route that can never match, because an earlier one matches the same `requests`.
fn check_distinct(requests: String, section: &Section<'_>, earlier: &mut HashMap<String, usize>) {
    if let Some(first) = earlier.get(&requests) {
        let first = section.source.elsewhere(*first);
        let message = format!("this route can never match: the one {first} matches the same requests");
        let help = "remove one, or give them a different host, path, methods or headers";
        section.source.report(section.span.clone(), message, help);
    } else {
        earlier.insert(requests, section.span.start);
    }
}

/// A text that is equal for two routes if they match the same requests.
fn requests(
    host: &Host,
    path: &PathPattern,
    ignore_case: bool,
    methods: &[Method],
    headers: &[(HeaderName, HeaderMatch)],
) -> String {
    let segment = |segment: &Segment| match segment {
        Segment::Literal(text) if ignore_case => text.to_ascii_lowercase(),
        Segment::Literal(text) => text.clone(),
        Segment::Capture(_) => "{}".to_owned(),
    };
    let segments: Vec<_> = path.segments.iter().map(segment).collect();
    let mut methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
    methods.sort_unstable();
    let mut headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value)).collect();
    headers.sort_unstable();
    format!("{host} {segments:?} {} {ignore_case} {methods:?} {headers:?}", path.rest)
}

/// The indices of the limits. `path` is that of the route, if it has no error.
fn limits(field: &Field<'_>, path: Option<&PathPattern>, named: &Named<'_>) -> Vec<usize> {
    let mut limits = Vec::new();
    for (index, field) in named.limits_in(field, &route::limits) {
        limits.push(index);
        let usage = |index: &usize| match &named.limit(*index)?.cost {
            Cost::Tokens(cost) => Some(&cost.pointers),
            _ => None,
        };
        if let Some((one, other)) = limits.iter().find_map(usage).zip(usage(&index))
            && one != other
        {
            let message = "the limits of a route must read the tokens of a response in the same place";
            field.report(message, "give them the same `tokens`, or put them on different routes");
        }
        let Some(path) = path else { continue };
        let with_pools = [index].into_iter().chain(named.pools(&[index]));
        for limit in with_pools.filter_map(|index| named.limit(index)) {
            check_sources(&field, &limit.name, limit.sources(), path);
        }
    }
    limits
}

fn host(text: &str) -> Result<Host, Wrong> {
    if text == "*" {
        return Err(Wrong::new("\"*\" is not a host", "remove `host`: then the route matches every host"));
    }
    let lower = text.to_ascii_lowercase();
    let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    if lower.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(is_v6) {
        return Ok(Host::Exact(lower));
    }
    if is_v6(&lower) {
        let message = format!("{} is an IPv6 address without brackets", quoted(text));
        return Err(Wrong::new(message, format!("write it with brackets, as clients do: \"[{text}]\"")));
    }
    let (name, under) = lower.strip_prefix("*.").map_or((lower.as_str(), false), |name| (name, true));
    if name.contains('*') {
        return Err(Wrong::not(text, "a host", "only the first part of a host can be `*`, like \"*.example.com\""));
    }
    if let Some((alone, port)) = text.rsplit_once(':')
        && port.bytes().all(|byte| byte.is_ascii_digit())
    {
        let help = format!("a host has no port here: write {alone:?}");
        return Err(Wrong::new(format!("{} has a port", quoted(text)), help));
    }
    values::hostname(name)?;
    Ok(if under { Host::Under(name.to_owned()) } else { Host::Exact(name.to_owned()) })
}

fn methods(field: &Field<'_>) -> Option<Vec<Method>> {
    let list = field.list(&route::methods)?;
    if let Some(all) = list.iter().find(|field| field.value.is_str() && field.text() == Some("*")) {
        if list.len() > 1 {
            all.report("`*` means every method, so the others have no effect", "keep only the `*`, or remove it");
            return None;
        }
        return Some(Vec::new());
    }
    field.distinct(&route::methods, "this method", |field| field.parse(values::method))
}

fn needed_headers(field: &Field<'_>) -> Option<Vec<(HeaderName, HeaderMatch)>> {
    header_changes::table(field, "`headers`", |name, _, field| {
        if secret::is_named(field) {
            let place = field.text()?.to_owned();
            return secret::header_value(field).map(|value| HeaderMatch::Secret { value, place });
        }
        header_changes::parse(name, field, |text| match text {
            "*" => Ok(HeaderMatch::Present),
            text => header_changes::value(text).map(HeaderMatch::Exact),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hosts() {
        assert_eq!(host("API.example.com"), Ok(Host::Exact("api.example.com".to_owned())));
        assert_eq!(host("*.Example.com"), Ok(Host::Under("example.com".to_owned())));
        assert_eq!(host("[::1]"), Ok(Host::Exact("[::1]".to_owned())));
        for text in ["", "*", "*.", "a.*.b", "**.b", "a:80", "a.", "a b", "é.com", "http://a", "[::1]:80", "256.1.1.1"]
        {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
