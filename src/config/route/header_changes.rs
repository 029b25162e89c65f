//! How a route changes the headers of requests or responses.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::keys as route;
use super::path_pattern::PathPattern;
use super::template::{Placeholders, Template, TemplatePart, check_host};
use crate::base::http::header_rules::{Rule, is_any, reads_as_any};
use crate::config::kinds::shaped;
use crate::config::read::{Field, Setting, Shape, Wrong, tables};
use crate::config::report::quoted;
use crate::config::{secret, values};

/// `V` is the value of a header: a [`HeaderText`] in the configuration, a [`HeaderValue`] for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderChanges<V> {
    pub set: Vec<(HeaderName, V)>,
    pub add: Vec<(HeaderName, V)>,
    pub remove: Vec<HeaderName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderText {
    Fixed(HeaderValue),
    Template(Template),
}

pub fn is_secret(name: &HeaderName) -> bool {
    is_any(name, &[Rule::Secret])
}

impl<V> Default for HeaderChanges<V> {
    fn default() -> Self {
        Self { set: Vec::new(), add: Vec::new(), remove: Vec::new() }
    }
}

impl<V> HeaderChanges<V> {
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    pub fn replaced(&self) -> impl Iterator<Item = &HeaderName> {
        self.remove.iter().chain(self.set.iter().map(|(name, _)| name))
    }

    /// Removes headers that the route removes or sets. For interim responses: nothing is added to them, but nothing hidden is
    /// shown.
    pub fn hide(&self, headers: &mut HeaderMap) {
        for name in self.replaced() {
            headers.remove(name);
        }
    }
}

impl HeaderChanges<HeaderText> {
    /// The changes with the values that `fill` returns. If `fill` returns none, a header to set is removed, and a line to add is
    /// left out.
    pub fn filled(&self, mut fill: impl FnMut(&HeaderText) -> Option<HeaderValue>) -> HeaderChanges<HeaderValue> {
        let mut filled = HeaderChanges { remove: self.remove.clone(), ..HeaderChanges::default() };
        for (name, text) in &self.set {
            match fill(text) {
                Some(value) => filled.set.push((name.clone(), value)),
                None => filled.remove.push(name.clone()),
            }
        }
        filled.add.extend(self.add.iter().filter_map(|(name, text)| Some((name.clone(), fill(text)?))));
        filled
    }
}

impl HeaderChanges<HeaderValue> {
    /// Strict-Transport-Security is only sent to clients that use TLS (RFC 6797, section 7.2).
    pub fn apply(&self, headers: &mut HeaderMap, over_tls: bool) {
        let is_sent = |name: &HeaderName| over_tls || *name != header::STRICT_TRANSPORT_SECURITY;
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in self.set.iter().filter(|(name, _)| is_sent(name)) {
            headers.insert(name.clone(), value.clone());
        }
        for (name, value) in self.add.iter().filter(|(name, _)| is_sent(name)) {
            headers.append(name.clone(), value.clone());
        }
    }
}

tables! {
    /// Changes to headers. Values may have placeholders, or be `"file:PATH"` or `"env:NAME"`.
    keys {
        /// Headers that replace those of the same name.
        set: () = shaped(Shape::Headers), {} => { x-tenant = "{tenant}" };
        /// Headers to add beside those of the same name.
        add: () = shaped(Shape::Headers), {} => { x-team = "a" };
        /// Headers to remove.
        remove: () = shaped(Shape::List(&Shape::Text, 0, 64)), [] => ["server"];
    }
}

/// A table of headers with values. `read` reads a value, or reports what is wrong with it or with the place of the name.
pub(in crate::config) fn table<'a, T>(
    field: &Field<'a>,
    title: &str,
    read: impl Fn(&HeaderName, Range<usize>, &Field<'a>) -> Option<T>,
) -> Option<Vec<(HeaderName, T)>> {
    if !field.value.is_table() {
        let help = format!("write names and values in braces: {} = {{ \"x-beta\" = \"1\" }}", title.trim_matches('`'));
        field.mistyped("a table", help);
        return None;
    }
    let mut headers: Vec<(HeaderName, T)> = Vec::new();
    let mut whole = true;
    for (key, field) in field.entries(title)? {
        let name = match values::header(key.text) {
            Ok(name) => name,
            Err(wrong) => {
                field.source.report(key.span, wrong.message, wrong.help);
                // A name that is misspelt may be that of a secret.
                field.source.hide(field.span.clone());
                whole = false;
                continue;
            }
        };
        if headers.iter().any(|(earlier, _)| *earlier == name) {
            let help = "upper and lower case are the same in the name of a header";
            field.source.report(key.span.clone(), format!("the header `{name}` is listed twice"), help);
        }
        if is_secret(&name) && !secret::is_named(&field) {
            field.source.hide(field.span.clone());
        }
        let value = read(&name, key.span, &field);
        whole &= value.is_some();
        headers.extend(value.map(|value| (name, value)));
    }
    whole.then_some(headers)
}

/// Reads the value of a header. A message about a credential does not quote it.
pub(super) fn parse<'a, T>(
    name: &HeaderName,
    field: &Field<'a>,
    read: impl FnOnce(&'a str) -> Result<T, Wrong>,
) -> Option<T> {
    let without_value = |wrong| Wrong { message: format!("the value of `{name}` is not valid"), ..wrong };
    field.parse(|text| read(text).map_err(|wrong| if is_secret(name) { without_value(wrong) } else { wrong }))
}

pub(super) fn value(text: &str) -> Result<HeaderValue, Wrong> {
    HeaderValue::from_str(text).ok().filter(|_| text.trim() == text).ok_or_else(|| {
        Wrong::not(text, "the value of a header", "a value is visible ASCII characters, without spaces around them")
    })
}

/// What a route may change in the headers of requests or of responses.
pub(super) struct Changeable {
    pub(super) key: &'static Setting<()>,
    example: &'static str,
    /// Whether a header cannot be changed, because the gateway writes it or it belongs to the connection.
    is_fixed: fn(&HeaderName) -> bool,
    /// Whether the gateway writes the header itself and only one line of it is allowed.
    is_single: fn(&HeaderName) -> bool,
    /// The word in messages.
    message: &'static str,
}

/// A server may read another spelling of a name as the same header.
pub(super) const OF_REQUESTS: Changeable = Changeable {
    key: &route::request_headers,
    example: "write request_headers = { set = { \"x-team\" = \"a\" }, remove = [\"x-debug\"] }",
    is_fixed: |name| reads_as_any(name, &[Rule::HopByHop, Rule::FixedInRequests]),
    is_single: |name| reads_as_any(name, &[Rule::Single]) && reads_as_any(name, &[Rule::OwnInRequests]),
    message: "request",
};

pub(super) const OF_RESPONSES: Changeable = Changeable {
    key: &route::response_headers,
    example: "write response_headers = { set = { \"x-frame-options\" = \"DENY\" }, remove = [\"server\"] }",
    is_fixed: |name| is_any(name, &[Rule::HopByHop, Rule::FixedInResponses]),
    is_single: |name| is_any(name, &[Rule::Single]) && is_any(name, &[Rule::OwnInResponses]),
    message: "response",
};

const PLACEHOLDERS: Placeholders =
    Placeholders { built_in: &["client_ip", "host", "request_id", "rest"], braces: "{{ or }}" };

impl Changeable {
    /// `path` is that of the route, if it has no error.
    pub(super) fn read(&self, field: &Field<'_>, path: Option<&PathPattern>) -> Option<HeaderChanges<HeaderText>> {
        let section = field.section_like(format!("`{}`", self.key.name), &keys::TABLE, self.example)?;
        let listed = |key: &Setting<()>| {
            section.field(key).map_or(Some(Vec::new()), |field| self.written(&field, key.name, path))
        };
        let (set, add) = (listed(&keys::set), listed(&keys::add));
        let remove =
            section.field(&keys::remove).map_or(Some(Vec::new()), |field| self.removed(&field, set.as_deref()));
        Some(HeaderChanges { set: set?, add: add?, remove: remove? })
    }

    fn written(
        &self,
        field: &Field<'_>,
        key: &str,
        path: Option<&PathPattern>,
    ) -> Option<Vec<(HeaderName, HeaderText)>> {
        table(field, &format!("`{key}`"), |name, place, field| {
            if (self.is_fixed)(name) {
                field.source.report(place, format!("the header `{name}` cannot be changed"), BY_THE_GATEWAY);
            } else if (self.is_single)(name) && key == keys::add.name {
                let message = format!("a {} has one `{name}` header, so none can be added", self.message);
                field.source.report(place, message, "write it in `set`, which replaces the one that is sent");
            }
            match name {
                name if *name == header::STRICT_TRANSPORT_SECURITY => {
                    field.parse(transport_security).map(HeaderText::Fixed)
                }
                name if self.is_host(name) => field.parse(|text| host(text, path)),
                _ if secret::is_named(field) => secret::header_value(field).map(HeaderText::Fixed),
                _ => parse(name, field, |text| template(text, path)),
            }
        })
    }

    fn removed(&self, field: &Field<'_>, set: Option<&[(HeaderName, HeaderText)]>) -> Option<Vec<HeaderName>> {
        let header = |field: &Field<'_>| {
            let name = field.parse(values::header)?;
            if (self.is_fixed)(&name) {
                field.report(format!("the header `{name}` cannot be removed"), BY_THE_GATEWAY);
            } else if self.is_host(&name) {
                let help = "write another one in `set`; without that it is the host in the upstream's URL";
                field.report("the header `host` cannot be removed: every request has one", help);
            }
            if set.is_some_and(|set| set.iter().any(|(other, _)| *other == name)) {
                let help = "`set` replaces every other value, so it need not be removed";
                field.report(format!("the header `{name}` is in `set` and in `remove`"), help);
            }
            Some(name)
        };
        field.distinct(&keys::remove, "this header", header)
    }

    fn is_host(&self, name: &HeaderName) -> bool {
        *name == header::HOST && self.key.name == OF_REQUESTS.key.name
    }
}

const BY_THE_GATEWAY: &str = "remove it: the gateway writes this header, or it belongs to the connection";

fn template(text: &str, path: Option<&PathPattern>) -> Result<HeaderText, Wrong> {
    let fixed = value(text)?;
    if !text.contains(['{', '}']) {
        return Ok(HeaderText::Fixed(fixed));
    }
    // The path has an error, so the route is never used.
    let Some(path) = path else { return Ok(HeaderText::Fixed(fixed)) };
    let parts: Vec<_> = PLACEHOLDERS.split(text, path)?.into_iter().map(|(part, _)| part).collect();
    match &parts[..] {
        [TemplatePart::Text(only)] => value(only).map(HeaderText::Fixed),
        _ => Ok(HeaderText::Template(Template { text: text.to_owned(), parts })),
    }
}

/// The value of Host. Clients must not be able to choose it by what they write in their path.
fn host(text: &str, path: Option<&PathPattern>) -> Result<HeaderText, Wrong> {
    let read = template(text, path)?;
    let placed = path.map(|path| PLACEHOLDERS.split(text, path)).transpose()?.unwrap_or_default();
    check_host(text, &placed, &(0..text.len()))?;
    values::authority(&text.replace("{host}", "host"), 80)?;
    Ok(read)
}

/// The value of Strict-Transport-Security (RFC 6797, section 6.1). Browsers silently ignore an invalid value.
fn transport_security(text: &str) -> Result<HeaderValue, Wrong> {
    let ages = text.split(';').filter_map(|directive| {
        let (name, age) = directive.split_once('=')?;
        name.trim().eq_ignore_ascii_case("max-age").then(|| age.trim().trim_matches('"'))
    });
    match ages.collect::<Vec<_>>()[..] {
        [age] if !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit()) => value(text),
        _ => Err(Wrong::new(
            format!("{} has no valid `max-age`", quoted(text)),
            "it needs a number of seconds, once: \"max-age=31536000; includeSubDomains\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_removed_then_set_then_added() {
        let named = |pairs: &[(&'static str, &'static str)]| {
            pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
        };
        let changes = HeaderChanges {
            set: named(&[("x-a", "new"), ("strict-transport-security", "max-age=1")]),
            add: named(&[("set-cookie", "c=3")]),
            remove: vec![header::SERVER],
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-a", "1"), ("x-a", "2"), ("server", "s"), ("set-cookie", "a=1"), ("set-cookie", "b=2")]
        {
            headers.append(name, HeaderValue::from_static(value));
        }
        let lines = |over_tls| {
            let mut headers = headers.clone();
            changes.apply(&mut headers, over_tls);
            let mut lines: Vec<_> =
                headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            lines.sort();
            lines
        };
        let mut hidden = headers.clone();
        changes.hide(&mut hidden);
        assert_eq!(hidden.keys().collect::<Vec<_>>(), [header::SET_COOKIE]);
        let plain = ["set-cookie: a=1", "set-cookie: b=2", "set-cookie: c=3", "x-a: new"];
        assert_eq!(lines(false), plain);
        assert_eq!(lines(true), [&plain[..3], &["strict-transport-security: max-age=1", "x-a: new"]].concat());
    }

    #[test]
    fn a_header_without_a_value_is_not_sent() {
        let texts = |names: &[&'static str]| {
            let fixed =
                |name: &&'static str| (HeaderName::from_static(name), HeaderText::Fixed(HeaderValue::from_static("1")));
            names.iter().map(fixed).collect()
        };
        let changes = HeaderChanges { set: texts(&["a", "b"]), add: texts(&["c"]), remove: vec![header::SERVER] };
        let mut calls = 0;
        let filled = changes.filled(|_| {
            calls += 1;
            (calls == 1).then_some(HeaderValue::from_static("2"))
        });
        let b = HeaderName::from_static("b");
        assert_eq!(filled.set, [(HeaderName::from_static("a"), HeaderValue::from_static("2"))]);
        assert_eq!((filled.add, filled.remove), (vec![], vec![header::SERVER, b]));
    }

    #[test]
    fn strict_transport_security_needs_an_age() {
        for text in ["max-age=0", "max-age=31536000; includeSubDomains; preload", "includeSubDomains;Max-Age=\"1\" "] {
            assert!(transport_security(text.trim()).is_ok(), "{text}");
        }
        for text in ["", "31536000", "max-age", "max-age=", "max-age=1y", "max-age=-1", "max-age=1; max-age=2"] {
            assert!(transport_security(text).is_err(), "{text}");
        }
    }
}
