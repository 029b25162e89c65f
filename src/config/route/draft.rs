//! `[[routes]]` as read: which requests they match, and what happens to them. Names are not looked up yet.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::time::Duration;

use http::{HeaderName, Method, header};

use super::action::{Answer, answer};
use super::header_changes::{self, HeaderChanges, HeaderText};
use super::path_pattern::{self, PathPattern};
use super::{Cors, HeaderMatch, Host, Scheme, cors, keys as route};
use crate::config::read::{Field, Name, Section, Setting, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::{secret, values};

/// A route as read; a value that is `None` had an error, which was reported.
pub(in crate::config) struct Draft<'a> {
    pub(in crate::config) span: Range<usize>,
    pub(in crate::config) host: Option<Host>,
    pub(in crate::config) path: Option<PathPattern>,
    pub(in crate::config) path_span: Range<usize>,
    /// `None` if the key is absent.
    pub(in crate::config) ignore_case: Option<bool>,
    pub(in crate::config) methods: Option<Vec<Method>>,
    pub(in crate::config) headers: Option<Vec<(HeaderName, HeaderMatch)>>,
    pub(in crate::config) scheme: Option<Scheme>,
    pub(in crate::config) answer: Option<Answer<'a>>,
    pub(in crate::config) limits: Vec<Name<'a>>,
    pub(in crate::config) max_body_size: Option<u64>,
    #[expect(clippy::option_option, reason = "it may be missing, or say that there is none")]
    pub(in crate::config) body_timeout: Option<Option<Duration>>,
    pub(in crate::config) inspect_body: Option<usize>,
    pub(in crate::config) timeout: Option<Duration>,
    pub(in crate::config) request_headers: Option<HeaderChanges<HeaderText>>,
    pub(in crate::config) response_headers: Option<HeaderChanges<HeaderText>>,
    pub(in crate::config) priority: Option<(u8, Range<usize>)>,
    pub(in crate::config) cors: Option<Cors>,
}

pub(in crate::config) fn read<'a>(file: &Section<'a>, key: &'static Setting<()>) -> Vec<Draft<'a>> {
    let Some(field) = file.field(key) else { return Vec::new() };
    if !field.is_list() {
        field.mistyped("a list of tables", "write [[routes]], with two brackets on each side, for each route");
        return Vec::new();
    }
    let sections = file.tables(key);
    // There may be very many routes, and a vector that grows takes up to twice the memory.
    let mut routes = Vec::with_capacity(sections.size_hint().1.unwrap_or_default());
    routes.extend(sections.map(route));
    routes
}

fn route(section: Section<'_>) -> Draft<'_> {
    let host = section.field(&route::host).map_or(Some(Host::Any), |field| field.parse(host));
    let path =
        section.required(&route::path, "add which paths it matches, like path = \"/*\" or path = \"/v1/{tenant}/*\"");
    let path_span = path.as_ref().map_or(section.span.clone(), |field| field.span.clone());
    let path = path.and_then(|field| field.parse(path_pattern::pattern));
    let ignore_case = section.given(&route::ignore_case);
    let methods = section.field(&route::methods).map_or(Some(Vec::new()), |field| methods(&field));
    let headers = section.field(&route::headers).map_or(Some(Vec::new()), |field| needed_headers(&field));
    let scheme = section.given(&route::scheme);
    let answer = answer(&section, path.as_ref());
    let limits = section.field(&route::limits).map(|field| limit_names(&field, &route::limits)).unwrap_or_default();
    let max_body_size = section.given(&route::max_body_size);
    let body_timeout = section.given(&route::body_timeout);
    let inspect_body = section.given(&route::inspect_body);
    let timeout = section.given(&route::timeout);
    let changes = |changeable: &header_changes::Changeable| match section.field(changeable.key) {
        Some(field) => changeable.read(&field, path.as_ref()),
        None => Some(HeaderChanges::default()),
    };
    let (request_headers, response_headers) =
        (changes(&header_changes::OF_REQUESTS), changes(&header_changes::OF_RESPONSES));
    if let Some(Answer::Forward { preserve_host: true, .. }) = answer {
        host_twice(&section, request_headers.as_ref());
    }
    let priority = section.given(&route::priority).map(|priority| (priority, section.key_span(route::priority.name)));
    let cors = section.field(&route::cors).and_then(|field| {
        cors::check(&section, headers.as_deref(), response_headers.as_ref());
        cors::read(&field, methods.as_deref())
    });
    let span = section.span.clone();
    section.close();
    Draft {
        span,
        host,
        path,
        path_span,
        ignore_case,
        methods,
        headers,
        scheme,
        answer,
        limits,
        max_body_size,
        body_timeout,
        inspect_body,
        timeout,
        request_headers,
        response_headers,
        priority,
        cors,
    }
}

/// Reports that `request_headers` sets Host although the client's is kept.
fn host_twice(section: &Section<'_>, changes: Option<&HeaderChanges<HeaderText>>) {
    let is_set = changes.is_some_and(|changes| changes.set.iter().any(|(name, _)| *name == header::HOST));
    if is_set {
        let message = "`preserve_host` has no effect: `request_headers` sets the Host header";
        section.source.report(section.key_span(route::preserve_host.name), message, "keep one of them");
    }
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
        let help = "only the first part of a host can be `*`, like \"*.example.com\"";
        return Err(Wrong::new(format!("{} is not a host", quoted(text)), help));
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
    let count = list.len();
    if let Some(all) = list.iter().find(|field| field.is_text() && field.text() == Some("*")) {
        if count > 1 {
            all.report("`*` means every method, so the others have no effect", "keep only the `*`, or remove it");
            return None;
        }
        return Some(Vec::new());
    }
    let read: Vec<_> = list.into_iter().filter_map(|field| Some((field.parse(values::method)?, field))).collect();
    report_repeated(&read, "this method", "list it once");
    Some(read.into_iter().map(|(method, _)| method).collect()).filter(|methods: &Vec<_>| methods.len() == count)
}

fn needed_headers(field: &Field<'_>) -> Option<Vec<(HeaderName, HeaderMatch)>> {
    header_changes::table(field, "`headers`", |_, field| {
        if secret::is_named(field) {
            let place = field.text()?.to_owned();
            return secret::header_value(field).map(|value| HeaderMatch::Secret { value, place });
        }
        field.parse(|text| match text {
            "*" => Ok(HeaderMatch::Present),
            text => header_changes::value(text).map(HeaderMatch::Exact),
        })
    })
}

pub(in crate::config) fn limit_names<'a>(field: &Field<'a>, key: &Setting<()>) -> Vec<Name<'a>> {
    let Some(list) = field.list(key) else { return Vec::new() };
    let names = list.iter().filter_map(|field| Some((field.text()?, field.clone())));
    let names: Vec<_> = names.collect();
    report_repeated(&names, "this limit", "list it once: a request is counted once by each limit");
    names.into_iter().map(|(text, field)| Name { text, span: field.span }).collect()
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
