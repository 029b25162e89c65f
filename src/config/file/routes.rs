//! `[[routes]]`: which requests they match, and what happens to them.

use std::net::Ipv6Addr;
use std::ops::Range;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::{content, paths};
use crate::config::read::{Field, Name, Section, Wrong, report_repeated, set};
use crate::config::report::quoted;
use crate::config::{HeaderMatch, Host, PathPattern, values};

/// A route as read; a value that is `None` has an error that was reported.
pub(in crate::config) struct Draft<'a> {
    /// Its place in the file.
    pub(in crate::config) span: Range<usize>,
    pub(in crate::config) host: Option<Host>,
    pub(in crate::config) path: Option<PathPattern>,
    /// Where the path is written.
    pub(in crate::config) path_span: Range<usize>,
    /// `None` if it is not in the file.
    pub(in crate::config) ignore_case: Option<bool>,
    pub(in crate::config) methods: Option<Vec<Method>>,
    pub(in crate::config) headers: Option<Vec<(HeaderName, HeaderMatch)>>,
    pub(in crate::config) answer: Option<Answer<'a>>,
    pub(in crate::config) limits: Vec<Name<'a>>,
    pub(in crate::config) max_body_size: Option<u64>,
}

/// Where the response comes from.
pub(in crate::config) enum Answer<'a> {
    /// An upstream, by name.
    Forward { upstream: Name<'a>, strip: usize, preserve_host: bool },
    /// The gateway.
    Respond { status: StatusCode, body: String, content_type: HeaderValue },
}

/// Reads all routes; `None` if there is no list of them.
pub(super) fn read<'a>(field: &Field<'a>) -> Option<Vec<Draft<'a>>> {
    if !field.is_list() {
        field.mistyped("a list of tables", "write [[routes]], with two brackets on each side, for each route");
        return None;
    }
    let list = field.list("")?;
    Some(list.iter().filter_map(|field| field.section("[[routes]]")).map(route).collect())
}

fn route(section: Section<'_>) -> Draft<'_> {
    let host = section.field("host").map_or(Some(Host::Any), |field| field.parse(host));
    let path = section.required("path", "add which paths it matches, like path = \"/*\" or path = \"/v1/{tenant}/*\"");
    let path_span = path.as_ref().map_or(section.span.clone(), |field| field.span.clone());
    let path = path.and_then(|field| field.parse(paths::pattern));
    let ignore_case = section.field("ignore_case").and_then(|field| field.boolean());
    let methods = section.field("methods").map_or(Some(Vec::new()), |field| methods(&field));
    let headers = section.field("headers").map_or(Some(Vec::new()), |field| headers(&field));
    let answer = answer(&section, path.as_ref());
    let limits = section.field("limits").map(|field| limits(&field)).unwrap_or_default();
    let max_body_size = values::body_size(&section);
    let span = section.span.clone();
    section.close(&[]);
    Draft { span, host, path, path_span, ignore_case, methods, headers, answer, limits, max_body_size }
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
    let list = field.some("[\"GET\", \"POST\"]", 64)?;
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

fn headers(field: &Field<'_>) -> Option<Vec<(HeaderName, HeaderMatch)>> {
    if !field.is_table() {
        field.mistyped("a table", "write names and values in braces: headers = { \"x-beta\" = \"1\" }");
        return None;
    }
    let mut headers: Vec<(HeaderName, HeaderMatch)> = Vec::new();
    let mut whole = true;
    for (key, field) in field.section("`headers`")?.entries() {
        let name = match values::header(key.text) {
            Ok(name) => name,
            Err(wrong) => {
                field.source.report(key.span, wrong.message, wrong.help);
                whole = false;
                continue;
            }
        };
        if headers.iter().any(|(earlier, _)| *earlier == name) {
            let help = "upper and lower case are the same in the name of a header";
            field.source.report(key.span, format!("the header `{name}` is listed twice"), help);
        }
        let value = field.parse(|text| match HeaderValue::from_str(text) {
            Ok(_) if text == "*" => Ok(HeaderMatch::Present),
            Ok(_) if text.trim() == text => Ok(HeaderMatch::Exact(text.to_owned())),
            _ => Err(Wrong::new(
                format!("{} is not the value of a header", quoted(text)),
                "a value is visible ASCII characters, without spaces around them",
            )),
        });
        whole &= value.is_some();
        headers.extend(value.map(|value| (name, value)));
    }
    whole.then_some(headers)
}

fn limits<'a>(field: &Field<'a>) -> Vec<Name<'a>> {
    let Some(list) = field.list("[\"per-client\"]") else { return Vec::new() };
    field.at_most(&list, values::MOST);
    let names = list.iter().filter_map(|field| Some((field.text()?, field.clone())));
    let names: Vec<_> = names.collect();
    report_repeated(&names, "this limit", "list it once: a request is counted once by each limit");
    names.into_iter().map(|(text, field)| Name { text, span: field.span }).collect()
}

fn answer<'a>(section: &Section<'a>, path: Option<&PathPattern>) -> Option<Answer<'a>> {
    let upstream = section.field("upstream");
    let strip = section.field("strip_prefix");
    let preserve_host = section.field("preserve_host");
    let respond = section.field("respond");
    if upstream.is_none() && respond.is_none() {
        let help = "add upstream = \"NAME\", or respond = { status = 200, body = \"hello\\n\" }";
        section.source.report(section.span.clone(), "the route has neither `upstream` nor `respond`", help);
        return None;
    }
    if let Some(respond) = respond {
        if upstream.is_some() {
            let message = "the route has both `upstream` and `respond`";
            section.source.report(section.key_span("respond"), message, "keep the one that should answer");
        }
        for (key, field) in [("strip_prefix", strip), ("preserve_host", preserve_host)] {
            if field.is_some() && upstream.is_none() {
                let message = format!("`{key}` has no effect with `respond`");
                section.source.report(section.key_span(key), message, "remove it: nothing is forwarded");
            }
        }
        return answer_itself(&respond);
    }
    let field = upstream?;
    let strip = match (strip, path) {
        (Some(strip), Some(path)) => strip.parse(|text| paths::stripped(text, path)),
        _ => None,
    };
    Some(Answer::Forward {
        upstream: Name { text: field.text()?, span: field.span },
        strip: strip.unwrap_or(0),
        preserve_host: preserve_host.and_then(|field| field.boolean()).unwrap_or(false),
    })
}

fn answer_itself<'a>(field: &Field<'_>) -> Option<Answer<'a>> {
    if !field.is_table() {
        field.mistyped("a table", "write respond = { status = 200, body = \"hello\\n\" }");
        return None;
    }
    let section = field.section("`respond`")?;
    let mut status = StatusCode::OK;
    set(&mut status, section.field("status").and_then(|field| values::status(&field, 200..=599)));
    let (body, content_type) = content::read(&section, status);
    section.close(&[]);
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
