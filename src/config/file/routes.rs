//! `[[routes]]`: which requests they match, and what happens to them.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use super::{content, cors, headers, paths, redirect, rewrite, secret};
use crate::config::read::{Field, Name, Section, Setting, Wrong, report_repeated};
use crate::config::report::quoted;
use crate::config::settings::{respond, root, route};
use crate::config::{
    Cors, HeaderChanges, HeaderMatch, HeaderText, Host, PathPattern, Redirect, Scheme, SentPath, values,
};

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

pub(in crate::config) enum Answer<'a> {
    Forward { upstream: Name<'a>, path: SentPath, preserve_host: bool, rewrite_location: Option<bool> },
    Respond { status: StatusCode, body: String, content_type: HeaderValue },
    Redirect(Redirect),
}

pub(super) fn read<'a>(file: &Section<'a>) -> Vec<Draft<'a>> {
    let Some(field) = file.field(&root::routes) else { return Vec::new() };
    if !field.is_list() {
        field.mistyped("a list of tables", "write [[routes]], with two brackets on each side, for each route");
        return Vec::new();
    }
    let sections = file.tables(&root::routes);
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
    let path = path.and_then(|field| field.parse(paths::pattern));
    let ignore_case = section.given(&route::ignore_case);
    let methods = section.field(&route::methods).map_or(Some(Vec::new()), |field| methods(&field));
    let headers = section.field(&route::headers).map_or(Some(Vec::new()), |field| needed_headers(&field));
    let scheme = section.given(&route::scheme);
    let answer = answer(&section, path.as_ref());
    let limits = section.field(&route::limits).map(|field| limits(&field, &route::limits)).unwrap_or_default();
    let max_body_size = section.given(&route::max_body_size);
    let body_timeout = section.given(&route::body_timeout);
    let inspect_body = section.given(&route::inspect_body);
    let timeout = section.given(&route::timeout);
    let changes = |changeable: &headers::Changeable| match section.field(changeable.key) {
        Some(field) => changeable.read(&field, path.as_ref()),
        None => Some(HeaderChanges::default()),
    };
    let (request_headers, response_headers) = (changes(&headers::OF_REQUESTS), changes(&headers::OF_RESPONSES));
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
    headers::table(field, "`headers`", |_, field| {
        if secret::is_named(field) {
            let place = field.text()?.to_owned();
            return secret::header_value(field).map(|value| HeaderMatch::Secret { value, place });
        }
        field.parse(|text| match text {
            "*" => Ok(HeaderMatch::Present),
            text => headers::value(text).map(HeaderMatch::Exact),
        })
    })
}

pub(super) fn limits<'a>(field: &Field<'a>, key: &Setting<()>) -> Vec<Name<'a>> {
    let Some(list) = field.list(key) else { return Vec::new() };
    let names = list.iter().filter_map(|field| Some((field.text()?, field.clone())));
    let names: Vec<_> = names.collect();
    report_repeated(&names, "this limit", "list it once: a request is counted once by each limit");
    names.into_iter().map(|(text, field)| Name { text, span: field.span }).collect()
}

fn answer<'a>(section: &Section<'a>, path: Option<&PathPattern>) -> Option<Answer<'a>> {
    let upstream = section.field(&route::upstream);
    let strip = section.field(&route::strip_prefix);
    let rewrite = section.field(&route::rewrite);
    let preserve_host = section.read(&route::preserve_host);
    let rewrite_location = section.given(&route::rewrite_location);
    let own = [section.field(&route::respond), section.field(&route::redirect)];
    let given: Vec<_> =
        [(route::upstream.name, &upstream), (route::respond.name, &own[0]), (route::redirect.name, &own[1])]
            .into_iter()
            .filter_map(|(key, field)| field.is_some().then_some(key))
            .collect();
    match given[..] {
        [] => {
            let help = "add upstream = \"NAME\", or respond = { status = 200, body = \"hello\\n\" }";
            section.source.report(
                section.span.clone(),
                "the route has none of `upstream`, `respond` and `redirect`",
                help,
            );
            return None;
        }
        [first, .., last] => {
            let message = format!("the route has both `{first}` and `{last}`");
            section.source.report(section.key_span(last), message, "keep the one that should answer");
        }
        [_] if upstream.is_some() => {}
        [answers] => {
            let of_upstreams = [
                route::strip_prefix.name,
                route::rewrite.name,
                route::preserve_host.name,
                route::rewrite_location.name,
                route::timeout.name,
                route::request_headers.name,
            ];
            let why = format!("has no effect with `{answers}`");
            section.refuse(&of_upstreams, &why, "remove it: nothing is forwarded");
        }
    }
    match own {
        [Some(respond), _] => return answer_itself(&respond),
        [None, Some(field)] => return redirect::read(&field, path).map(Answer::Redirect),
        [None, None] => {}
    }
    let field = upstream?;
    if strip.is_some() && rewrite.is_some() {
        let message = "the route has both `strip_prefix` and `rewrite`";
        let help = "keep one: with `rewrite`, write {rest} for what follows the prefix";
        section.source.report(section.key_span(route::rewrite.name), message, help);
    }
    let rewritten = rewrite.zip(path).and_then(|(field, path)| field.parse(|text| rewrite::read(text, path)));
    let stripped = strip.zip(path).and_then(|(field, path)| field.parse(|text| paths::stripped(text, path)));
    Some(Answer::Forward {
        upstream: Name { text: field.text()?, span: field.span },
        path: rewritten.map_or(SentPath::Stripped(stripped.unwrap_or(0)), SentPath::Rewritten),
        preserve_host,
        rewrite_location,
    })
}

fn answer_itself<'a>(field: &Field<'_>) -> Option<Answer<'a>> {
    if !field.is_table() {
        field.mistyped("a table", "write respond = { status = 200, body = \"hello\\n\" }");
        return None;
    }
    let section = field.section(respond::TABLE.title, &respond::TABLE)?;
    let status = section.read(&respond::status);
    let (body, content_type) = content::read(&section, &respond::body, &respond::content_type, status);
    section.close();
    Some(Answer::Respond { status, body, content_type })
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
