//! URLs of servers that the gateway itself asks. A URL may have secrets, which are never shown.

use std::fmt;

use rustls::pki_types::ServerName;

/// A URL of `http` or `https`, without a user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// A name or an address; an IPv6 address has no brackets.
    pub host: String,
    pub port: u16,
    /// For the `Host` header.
    pub authority: String,
    pub target: RequestTarget,
    /// With `https`, the name that the certificate of the server must have.
    pub server_name: Option<ServerName<'static>>,
}

impl Url {
    pub fn scheme(&self) -> &'static str {
        if self.server_name.is_some() { "https" } else { "http" }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority, self.target)
    }
}

/// The path and query of a URL. A query may be secret, so it is shown as `?***`.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestTarget {
    sent: String,
    is_path_secret: bool,
}

impl RequestTarget {
    /// The path is as secret as the query, and is shown as `/***`.
    #[must_use]
    pub fn with_secret_path(self) -> Self {
        Self { is_path_secret: true, ..self }
    }

    /// With its secrets, for requests only.
    pub fn as_sent(&self) -> &str {
        &self.sent
    }
}

impl From<String> for RequestTarget {
    fn from(sent: String) -> Self {
        Self { sent, is_path_secret: false }
    }
}

impl fmt::Display for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, query) = self.sent.split_once('?').map_or((&*self.sent, ""), |(path, _)| (path, "?***"));
        // What is before an @ may be the end of a password with a slash.
        if self.is_path_secret || path.contains('@') {
            return f.write_str("/***");
        }
        write!(f, "{path}{query}")
    }
}

impl fmt::Debug for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let url = |target: RequestTarget| Url {
            host: "a.test".to_owned(),
            port: 80,
            authority: "a.test".to_owned(),
            target,
            server_name: None,
        };
        for (sent, shown) in [
            ("/", "http://a.test/"),
            ("/a/b", "http://a.test/a/b"),
            ("/a?hidden", "http://a.test/a?***"),
            ("/hidden@b/c?hidden", "http://a.test/***"),
        ] {
            let target = RequestTarget::from(sent.to_owned());
            assert_eq!(target.as_sent(), sent);
            let (plain, secret) = (url(target.clone()), url(target.with_secret_path()));
            assert_eq!((plain.to_string().as_str(), secret.to_string().as_str()), (shown, "http://a.test/***"));
            assert!(!format!("{plain:?} {secret:?}").contains("hidden"));
        }
    }
}
