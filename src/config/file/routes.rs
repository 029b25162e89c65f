//! `[[routes]]`: which requests, and what answers them.

use std::ops::Range;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::super::read::{Findings, Read, Section, Value, boolean, integer, list, string};
use super::super::report::Problem;
use super::super::{Host, PathPattern, Segment};

/// More limits than anybody needs, and a bound for what one decision reads.
const MAX_LIMITS: usize = 8;

/// A route whose names are not looked up yet.
#[derive(Debug)]
pub(crate) struct WrittenRoute<'a> {
    pub(crate) span: Range<usize>,
    pub(crate) host: Host,
    pub(crate) path: Option<PathPattern>,
    pub(crate) methods: Vec<Method>,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) upstream: Option<(&'a str, Range<usize>)>,
    pub(crate) respond: Option<((StatusCode, String), Range<usize>)>,
    pub(crate) limits: Vec<(&'a str, Range<usize>)>,
    pub(crate) strip_prefix: Option<(&'a str, Range<usize>)>,
    pub(crate) preserve_host: Option<(bool, Range<usize>)>,
}

pub(crate) fn route<'a>(section: Section<'a>, findings: &'a Findings) -> WrittenRoute<'a> {
    let named = |value: &'a Value<'a>| string(value).map(|name| (name, value.span()));
    let limits = section.read("limits", |value| match value.get_ref().as_array() {
        Some(empty) if empty.is_empty() => Ok(Vec::new()),
        Some(many) if many.len() > MAX_LIMITS => {
            Err(Problem::plain(value.span(), format!("a route has at most {MAX_LIMITS} limits")))
        }
        _ => list(value, "limits", false),
    });
    let methods = section.read("methods", |value| list(value, "methods", false));
    let route = WrittenRoute {
        span: section.span.clone(),
        host: section.read("host", host).unwrap_or(Host::Any),
        path: section.need("path", "\"/*\"", path),
        methods: methods.into_iter().flatten().filter_map(|value| findings.keep(method(value))).collect(),
        headers: section.value("headers").map(|value| headers(value, findings)).unwrap_or_default(),
        upstream: section.read("upstream", named),
        respond: section.value("respond").and_then(|value| respond(value, findings)),
        limits: limits.into_iter().flatten().filter_map(|value| findings.keep(named(value))).collect(),
        strip_prefix: section.read("strip_prefix", named),
        preserve_host: section.read("preserve_host", |value| Ok((boolean(value)?, value.span()))),
    };
    section.finish();
    route
}

fn host(value: &Value<'_>) -> Read<Host> {
    let text = string(value)?;
    let lower = text.to_ascii_lowercase();
    let help = "a host is \"api.example.com\" or \"*.example.com\", without scheme and port";
    let (name, under) = lower.strip_prefix("*.").map_or((lower.as_str(), false), |name| (name, true));
    let ipv6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let valid = match ipv6 {
        Some(address) => !under && address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
                && !name.starts_with('.')
        }
    };
    match (valid, under) {
        (true, true) => Ok(Host::Under(name.to_owned())),
        (true, false) => Ok(Host::Exact(name.to_owned())),
        (false, _) => Err(Problem::new(value.span(), format!("`{text}` is not a host"), help)),
    }
}

fn path(value: &Value<'_>) -> Read<PathPattern> {
    let text = string(value)?;
    let help = "a path is \"/exact\", \"/with/{name}\" for any one segment, or \"/under/*\" for all that follows";
    let bad = |why: String| Problem::new(value.span(), format!("`{text}` {why}"), help);
    let rest = text.strip_prefix('/').ok_or_else(|| bad("does not begin with /".to_owned()))?;
    let mut written: Vec<&str> = rest.split('/').collect();
    let takes_rest = written.last() == Some(&"*");
    if takes_rest {
        written.pop();
    }
    let mut segments: Vec<Segment> = Vec::new();
    for (position, segment) in written.iter().enumerate() {
        let last = position + 1 == written.len() && !takes_rest;
        if segment.is_empty() && !last {
            return Err(bad("has an empty segment".to_owned()));
        }
        let segment = segment_of(segment).map_err(&bad)?;
        if matches!(segment, Segment::Capture(_)) && segments.contains(&segment) {
            return Err(bad("uses the same name twice".to_owned()));
        }
        segments.push(segment);
    }
    Ok(PathPattern { text: text.to_owned(), segments, rest: takes_rest })
}

fn segment_of(text: &str) -> Result<Segment, String> {
    if let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        let valid = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        return if valid {
            Ok(Segment::Capture(name.to_owned()))
        } else {
            Err(format!("has no valid name in {{{name}}}"))
        };
    }
    if text.contains(['{', '}']) {
        return Err("has a brace inside a segment: {name} is a whole segment".to_owned());
    }
    if text.contains('*') {
        return Err("has a * that is not the whole last segment".to_owned());
    }
    if matches!(text, "." | "..") {
        return Err("has a dot segment, which no request can have".to_owned());
    }
    // As requests are matched: what needs no escape is written without one.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()+,;=:@".contains(&byte);
    if text.bytes().all(plain) {
        return Ok(Segment::Literal(text.to_owned()));
    }
    let escaped = percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    Err(match text.contains('%') {
        // An escape in the spelling of the routes is the only way to write some characters.
        true if is_escaped(text) => return Ok(Segment::Literal(text.to_owned())),
        true => "has an escape that is not needed, or not in upper case".to_owned(),
        false => format!("has characters that a path escapes: write {escaped}"),
    })
}

/// Whether all escapes are of bytes that need one, in upper case.
fn is_escaped(text: &str) -> bool {
    let mut parts = text.split('%');
    let plain =
        |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()+,;=:@".contains(&byte));
    parts.next().is_some_and(plain)
        && parts.all(|part| {
            let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            let upper = part.get(..2).is_some_and(|digits| !digits.bytes().any(|digit| digit.is_ascii_lowercase()));
            let needed = byte.is_some_and(|byte| !byte.is_ascii_alphanumeric() && !b"-._~".contains(&byte));
            upper && needed && plain(&part[2..])
        })
}

fn method(value: &Value<'_>) -> Read<Method> {
    let text = string(value)?;
    let upper = text.to_ascii_uppercase();
    if upper != text {
        return Err(Problem::new(
            value.span(),
            format!("`{text}` is not a method"),
            format!("did you mean `{upper}`?"),
        ));
    }
    let help = "methods are like \"GET\", \"POST\"";
    Method::from_bytes(text.as_bytes())
        .map_err(|_| Problem::new(value.span(), format!("`{text}` is not a method"), help))
}

fn headers(value: &Value<'_>, findings: &Findings) -> Vec<(HeaderName, String)> {
    let Some(section) = Section::of("`headers`", value, findings) else { return Vec::new() };
    let header = |(name, span, value): (&str, Range<usize>, &Value<'_>)| {
        let bad = |what: &str| Problem::plain(span.clone(), format!("`{name}` has no valid {what} of a header"));
        let parsed = findings.keep(HeaderName::try_from(name).map_err(|_| bad("name")))?;
        let text = findings.keep(string(value))?;
        findings.keep(HeaderValue::try_from(text).map_err(|_| bad("value")))?;
        Some((parsed, text.to_owned()))
    };
    section.entries().filter_map(header).collect()
}

fn respond(value: &Value<'_>, findings: &Findings) -> Option<((StatusCode, String), Range<usize>)> {
    let section = Section::of("`respond`", value, findings)?;
    let status = section.read("status", integer(200..=599)).and_then(|status| u16::try_from(status).ok());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::OK);
    let body = section.read("body", string).unwrap_or_default().to_owned();
    section.finish();
    Some(((status, body), value.span()))
}
