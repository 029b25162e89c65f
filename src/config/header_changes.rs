//! What a route changes about the headers of its responses.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// `response_headers` of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Headers that get this value instead of any other.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Lines that are added to those that are there.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Headers that are removed.
    pub remove: Vec<HeaderName>,
}

impl HeaderChanges {
    /// Applies them. Strict-Transport-Security is left out unless the client has used TLS, because it must not be sent
    /// otherwise (RFC 6797, section 7.2).
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

    /// Removes the headers that it removes or replaces. Interim responses get none of a route, and show none that it hides.
    pub fn hide(&self, headers: &mut HeaderMap) {
        for name in self.remove.iter().chain(self.set.iter().map(|(name, _)| name)) {
            headers.remove(name);
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
}
