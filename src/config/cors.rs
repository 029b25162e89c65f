//! `cors` of a route: which pages of other origins may use it, and how. The protocol is that of the Fetch standard,
//! section 3.3, <https://fetch.spec.whatwg.org/#http-cors-protocol>.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, Method};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    pub origins: Vec<OriginPattern>,
    /// The methods in answers to preflights, at least one.
    pub methods: Vec<Method>,
    /// The headers in answers to preflights; `None` allows all that a preflight asks for.
    pub headers: Option<Vec<HeaderName>>,
    /// Headers of responses that pages may read, besides those of the gateway.
    pub expose: Vec<HeaderName>,
    /// Whether pages may send credentials such as cookies. Never with [`OriginPattern::Any`].
    pub credentials: bool,
    /// How long browsers may keep the answer to a preflight, in whole seconds, at least 1.
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
}
