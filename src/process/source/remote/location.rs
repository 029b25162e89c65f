//! The URL of a configuration, which may have secrets.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use percent_encoding::percent_decode_str;

use crate::config::document_url;
use crate::net::fetch::Url;

/// A URL and its credentials. Displayed without secrets.
#[derive(Clone)]
pub(super) struct Location {
    pub(super) url: Url,
    pub(super) authorization: Option<HeaderValue>,
    has_user: bool,
}

impl Location {
    /// Reads a URL of `https`, or of `http` for a server on this machine. It may have `user:password@`; otherwise `token` is
    /// sent as a bearer token. The error says what is wrong, without a part of the URL that may be secret.
    pub(super) fn new(text: &str, token: Option<&str>) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            // What looks like a host and a port may be a user and the beginning of a password.
            None if target.contains('@') && authority.contains(':') => {
                return Err("a user name or password has a character that must be written as % and two hexadecimal \
                            digits: one of / ? # [ ] @"
                    .to_owned());
            }
            None => (None, authority),
        };
        let url = document_url(&format!("{scheme}://{host}{target}"))?;
        let authorization = match (user, token) {
            (Some(_), Some(_)) => return Err("there is both a user name and a token: remove one of them".to_owned()),
            (Some(user), None) => Some(basic(user)?),
            (None, Some(token)) => Some(bearer(token)?),
            (None, None) => None,
        };
        Ok(Self { url, authorization, has_user: user.is_some() })
    }

    /// Identifies the document. A changed password does not change the identity.
    pub(super) fn identity(&self) -> blake3::Hash {
        blake3::hash(self.url.whole().as_bytes())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Url { authority, target, .. } = &self.url;
        let user = if self.has_user { "***@" } else { "" };
        write!(f, "{}://{user}{authority}{target}", self.url.scheme())
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Credentials of RFC 7617, from the part of a URL before `@`.
fn basic(user: &str) -> Result<HeaderValue, String> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = percent_decode_str(name).chain([b':']).chain(percent_decode_str(password));
    sensitive(format!("Basic {}", STANDARD.encode(decoded.collect::<Vec<u8>>())))
}

/// Credentials of RFC 6750.
fn bearer(token: &str) -> Result<HeaderValue, String> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token is empty or has characters that cannot be sent".to_owned());
    }
    sensitive(format!("Bearer {token}"))
}

fn sensitive(text: String) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(text).map_err(|_| "the credentials cannot be sent".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorization(text: &str, token: Option<&str>) -> String {
        Location::new(text, token)
            .unwrap()
            .authorization
            .map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn credentials_are_sent_and_not_shown() {
        let location = Location::new("https://a%20b:p%40ss%2f@conf.test:8443/g.toml?key=secret", None).unwrap();
        assert_eq!(location.to_string(), "https://***@conf.test:8443/g.toml?***");
        assert_eq!(
            authorization("https://a%20b:p%40ss%2f@conf.test/", None),
            format!("Basic {}", STANDARD.encode("a b:p@ss/"))
        );
        assert_eq!(authorization("https://name@conf.test/", None), format!("Basic {}", STANDARD.encode("name:")));
        assert_eq!(authorization("https://conf.test/", Some("t")), "Bearer t");
        assert_eq!(authorization("http://127.0.0.1:9000/%", None), "");
        let location = Location::new("https://u:hidden@conf.test/?hidden", None).unwrap();
        let shown = format!("{location:?} {:?}", location.authorization);
        assert!(!shown.contains("hidden") && !shown.contains(&STANDARD.encode("u:hidden")), "{shown}");
    }

    #[test]
    fn messages_have_no_secrets() {
        for (text, token) in [
            ("https://u:hid/den@conf.test/", None),
            ("https://u:hid?den@conf.test/", None),
            ("https://u:hid#den@conf.test/", None),
            ("https://u:hidden@conf.test/#a", None),
            ("https://u:hidden@", None),
            ("https://u:hidden@a b/", None),
            ("https://u:hidden@conf.test/", Some("hidden")),
            ("http://u:hidden@conf.test/", None),
            ("ftp://u:hidden@conf.test/", None),
            ("https://conf.test/?hidden=ü ü", None),
            ("https://conf.test/", Some("hidden hidden")),
            ("https://conf.test/", Some("")),
        ] {
            let why = Location::new(text, token).unwrap_err();
            assert!(!why.contains("hid") && !why.contains("den") && !why.is_empty(), "{text}: {why}");
        }
    }

    #[test]
    fn another_url_is_another_document_and_another_password_is_not() {
        let identity = |text| Location::new(text, None).unwrap().identity();
        assert_eq!(identity("https://u:1@conf.test/a"), identity("https://u:2@conf.test/a"));
        assert_ne!(identity("https://conf.test/a"), identity("https://conf.test/b"));
        assert_ne!(identity("http://localhost/a"), identity("https://localhost/a"));
    }
}
