//! `cors` of a route: which pages of other origins may use it, and how. The protocol is that of the Fetch standard,
//! section 3.3, <https://fetch.spec.whatwg.org/#http-cors-protocol>.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use http::{HeaderName, Method, header};

use super::header_changes::{HeaderChanges, HeaderText};
use super::{HeaderMatch, keys as route};
use crate::config::kinds::{flag, shaped, wait};
use crate::config::read::{Field, Section, Setting, Shape, Wrong, report_repeated, tables};
use crate::config::report::quoted;
use crate::config::values;

const ORIGIN: &str = "an origin is a scheme, a host and perhaps a port, like \"https://app.example.com\"";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    pub origins: Vec<OriginPattern>,
    pub methods: Vec<Method>,
    pub headers: Option<Vec<HeaderName>>,
    pub expose: Vec<HeaderName>,
    /// Whether pages may send credentials such as cookies. Never with [`OriginPattern::Any`].
    pub credentials: bool,
    pub max_age: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// `*`
    Any,
    /// As browsers write it.
    Exact(String),
    /// Every subdomain of a host, with this scheme and this port.
    Under {
        /// `https://`
        scheme: String,
        /// `.example.com`, or `.example.com:8443`
        rest: String,
    },
}

impl OriginPattern {
    /// Browsers write an origin in one way only, so texts are compared (RFC 6454, section 6.2).
    pub fn matches(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(wanted) => wanted == origin,
            Self::Under { scheme, rest } => origin
                .strip_prefix(scheme.as_str())
                .and_then(|host| host.strip_suffix(rest.as_str()))
                .is_some_and(is_name),
        }
    }
}

/// As the configuration spells it.
impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(origin) => f.write_str(origin),
            Self::Under { scheme, rest } => write!(f, "{scheme}*{rest}"),
        }
    }
}

/// Whether the text is labels of a host and nothing else, so that no other part of an origin can hide in it.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        !part.is_empty() && part.bytes().all(is_letter)
    };
    text.split('.').all(is_part)
}

tables! {
    /// Lets pages of other origins use a route (docs/routes.md).
    keys "`cors`" {
        /// The origins of the pages; `"https://*.example.com"` for all names below `example.com`, `"*"` for all.
        origins: () = shaped(Shape::List(&Shape::Text, 1, 64)).required() => ["https://app.example.com"];
        /// The methods that pages may use. By default those of the route, or GET, HEAD and POST.
        methods: () = shaped(Shape::List(&Shape::Text, 1, 64)) => ["GET", "POST"];
        /// The headers that pages may send. By default all.
        headers: () = shaped(Shape::List(&Shape::Text, 0, 64)) => ["content-type"];
        /// The headers that pages may read.
        expose: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["x-request-id"];
        /// Lets pages send cookies and the like.
        credentials: bool = flag(), false;
        /// How long browsers keep the answer to a preflight.
        max_age: Duration = wait(Duration::from_secs(1)..=Duration::from_secs(86_400)) => "10m";
    }
}

/// `route_methods` are the methods of the route, if they have no error.
pub(super) fn read(section: &Section<'_>, route_methods: Option<&[Method]>) -> Option<Cors> {
    let origins = section.needed(&keys::origins).and_then(|field| origins(&field));
    let route_methods = route_methods.filter(|methods| !methods.is_empty());
    let methods = match section.field(&keys::methods) {
        Some(field) => methods(&field, route_methods),
        // Without `methods`: those of the route, or those that browsers send to other origins without a preflight.
        None => Some(route_methods.map_or(vec![Method::GET, Method::HEAD, Method::POST], <[Method]>::to_vec)),
    };
    let names = |key: &Setting<()>, help| section.field(key).and_then(|field| names(&field, key, help));
    let headers = names(&keys::headers, "remove `headers`: then preflights are allowed all headers that they ask for");
    let expose = names(&keys::expose, "list the headers that pages may read");
    let credentials = section.read(&keys::credentials);
    let max_age = section.given(&keys::max_age);
    let origins = origins?;
    if credentials {
        check_trusted(&origins);
    }
    Some(Cors {
        origins: origins.into_iter().map(|(origin, _)| origin).collect(),
        methods: methods?,
        headers,
        expose: expose.unwrap_or_default(),
        credentials,
        max_age,
    })
}

pub(super) fn check(
    section: &Section<'_>,
    headers: Option<&[(HeaderName, HeaderMatch)]>,
    changes: Option<&HeaderChanges<HeaderText>>,
) {
    let added = changes.map_or(&[][..], |changes| &changes.add).iter().map(|(name, _)| name);
    let names = changes.into_iter().flat_map(HeaderChanges::replaced).chain(added);
    for name in names.filter(|name| name.as_str().starts_with("access-control-")) {
        let why = format!("cannot change `{name}` beside `cors`, which writes it");
        section.refuse(&[route::response_headers.name], &why, "keep one of them");
    }
    // All other headers are of the request that follows the preflight.
    let is_in_preflight = |name: &HeaderName| [header::ORIGIN, header::USER_AGENT, header::HOST].contains(name);
    if headers.is_some_and(|headers| headers.iter().any(|(name, _)| !is_in_preflight(name))) {
        let help = "add a route with the same `cors` for this host and path, without `headers`";
        section.warn(
            &[route::cors.name],
            "answers no preflight here: browsers send preflights without the headers of the route",
            help,
        );
    }
}

fn origins<'a>(field: &Field<'a>) -> Option<Vec<(OriginPattern, Field<'a>)>> {
    let list = field.list(&keys::origins)?;
    let read: Vec<_> = list.iter().filter_map(|field| Some((field.parse(origin)?, field.clone()))).collect();
    report_repeated(&read, "this origin", "list it once");
    if let Some((_, all)) = read.iter().find(|(origin, _)| *origin == OriginPattern::Any && list.len() > 1) {
        all.report("`*` means every origin, so the others have no effect", "keep only the `*`, or remove it");
    }
    (read.len() == list.len()).then_some(read)
}

/// Reports origins that must not be trusted with credentials.
fn check_trusted(origins: &[(OriginPattern, Field<'_>)]) {
    for (origin, field) in origins {
        match origin {
            OriginPattern::Any => {
                let message = "with `credentials`, every page could act as the users who visit it";
                field.report(message, "list the origins that you trust, or remove `credentials`");
            }
            OriginPattern::Exact(origin) if origin == "null" => {
                let help = "every page can open a frame with this origin: remove it, or remove `credentials`";
                field.report("with `credentials`, the origin \"null\" allows every page", help);
            }
            OriginPattern::Exact(_) | OriginPattern::Under { .. } => {}
        }
    }
}

fn origin(text: &str) -> Result<OriginPattern, Wrong> {
    if text == "*" {
        return Ok(OriginPattern::Any);
    }
    if text == "null" {
        return Ok(OriginPattern::Exact(text.to_owned()));
    }
    let not_one = |help: &str| Err(Wrong::not(text, "an origin", help));
    let Some((scheme, rest)) = text.split_once("://") else { return not_one(ORIGIN) };
    let start = scheme.len() + "://".len();
    if let Some(at) = rest.find(['/', '?', '#']) {
        let (alone, path) = text.split_at(start + at);
        let help = format!("browsers send only what is in front of it: write {}", quoted(alone));
        return Err(
            Wrong::new(format!("an origin has no path, found {}", quoted(path)), help).at(start + at..text.len())
        );
    }
    let lower = text.to_ascii_lowercase();
    if lower != text {
        return not_one(&format!("browsers send origins in lower case: write {}", quoted(&lower)));
    }
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.bytes().all(is_scheme) || !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return not_one(ORIGIN);
    }
    let under = rest.strip_prefix("*.");
    let named = under.unwrap_or(rest);
    if named.contains('*') {
        return not_one("only the first part of the host can be `*`, like \"https://*.example.com\"");
    }
    let (host, port) = values::authority(named, 0).map_err(|wrong| wrong.at(text.len() - named.len()..text.len()))?;
    let bracketed = |address: Ipv6Addr| format!("[{address}]");
    let shortest = host.parse().map_or(host.clone(), bracketed);
    let written = match (scheme, port) {
        ("https", 443) | ("http", 80) | (_, 0) => shortest,
        (_, port) => format!("{shortest}:{port}"),
    };
    if written != named {
        let star = if under.is_some() { "*." } else { "" };
        let right = format!("{scheme}://{star}{written}");
        return not_one(&format!("browsers write it in its shortest form: {}", quoted(&right)));
    }
    Ok(match under {
        Some(name) => OriginPattern::Under { scheme: format!("{scheme}://"), rest: format!(".{name}") },
        None => OriginPattern::Exact(text.to_owned()),
    })
}

/// Reports also methods that the route does not take, because their requests never reach it.
fn methods(field: &Field<'_>, route_methods: Option<&[Method]>) -> Option<Vec<Method>> {
    let takes = |method: &Method| {
        let by_get = |methods: &[Method]| *method == Method::HEAD && methods.contains(&Method::GET);
        route_methods.is_none_or(|methods| methods.contains(method) || by_get(methods))
    };
    let method = |field: &Field<'_>| {
        let method = field.parse(|text| match text {
            "*" => Err(all("list the methods that pages may use")),
            text => values::method(text),
        })?;
        if !takes(&method) {
            let help = "add it to `methods` of the route, or remove it here";
            field.report(format!("the route does not take {method}"), help);
        }
        Some(method)
    };
    field.distinct(&keys::methods, "this method", method)
}

fn names(field: &Field<'_>, key: &Setting<()>, instead_of_all: &str) -> Option<Vec<HeaderName>> {
    let name = |text: &str| match text {
        "*" => Err(all(instead_of_all)),
        text => values::header(text),
    };
    field.distinct(key, "this header", |field| field.parse(name))
}

fn all(help: &str) -> Wrong {
    Wrong::new("`*` is not allowed here: with credentials, browsers read it as a name", help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_for_hosts_under_a_name_only() {
        let pattern = OriginPattern::Under { scheme: "https://".to_owned(), rest: ".example.com".to_owned() };
        for origin in ["https://app.example.com", "https://a.b-1.example.com", "https://x_y.example.com"] {
            assert!(pattern.matches(origin), "{origin}");
        }
        for origin in [
            "https://example.com",
            "https://.example.com",
            "https://a..example.com",
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://APP.example.com",
            "https://app.example.com.evil.test",
            "https://evil.test/.example.com",
            "https://evil.test#.example.com",
            "https://evil.test:1.example.com",
            "https://u@evil.test\\.example.com",
            "https://evil.test .example.com",
            "https://evilexample.com",
            "null",
            "",
        ] {
            assert!(!pattern.matches(origin), "{origin}");
        }
        assert_eq!(pattern.to_string(), "https://*.example.com");
    }

    #[test]
    fn an_origin_is_compared_as_it_is_written() {
        let pattern = OriginPattern::Exact("https://app.example.com".to_owned());
        assert!(pattern.matches("https://app.example.com"));
        for origin in ["https://app.example.com:443", "https://app.example.com/", "http://app.example.com", "null", "*"]
        {
            assert!(!pattern.matches(origin), "{origin}");
        }
    }

    #[test]
    fn origins_are_read_as_browsers_write_them() {
        for text in [
            "*",
            "null",
            "https://app.example.com",
            "http://localhost:3000",
            "https://[::1]:8443",
            "http://127.0.0.1",
            "https://*.example.com",
            "https://*.example.com:8443",
            "capacitor://localhost",
            "chrome-extension://abcdefghijklmnop",
            "http://a:443",
        ] {
            assert_eq!(origin(text).map(|origin| origin.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://App.example.com",
            "HTTPS://app.example.com",
            "https://app.example.com:443",
            "http://app.example.com:80",
            "http://app.example.com:08080",
            "http://app.example.com:",
            "https://*",
            "https://*example.com",
            "https://a.*.example.com",
            "*://example.com",
            "https://*.*.example.com",
            "https://user@example.com",
            "https://[::0:1]",
            "https://bücher.example",
            "1https://a",
            "Null",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }
}
