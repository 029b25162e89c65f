//! How a route changes the headers of requests or responses.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::template::Template;
use crate::base::http::header_rules::{Rule, is_any};

/// `V` is the value of a header: a [`HeaderText`] in the configuration, a [`HeaderValue`] for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderChanges<V> {
    /// Headers whose values are replaced.
    pub set: Vec<(HeaderName, V)>,
    /// Lines that are added to existing ones.
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
}
