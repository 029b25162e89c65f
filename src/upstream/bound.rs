//! Connections of HTTP/1.1 to servers that belong to one connection of a client. NTLM and Negotiate authenticate a connection
//! and not a request (RFC 4559, section 6), so the server takes the sender of the next request for the same user.
//!
//! After such a challenge or such credentials, the connection to the server serves only the client's connection, and ends
//! with it. If that may carry requests of several clients, the connection to the server is closed after the response.

use std::cell::RefCell;

use http::header::{AUTHORIZATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::connection::UpstreamConnection;
use crate::base::http::header_list;

const SCHEMES: [&str; 4] = ["NTLM", "Negotiate", "Nego2", "Kerberos"];

/// The ids are those of the servers.
#[derive(Debug, Default)]
pub struct BoundConnections(RefCell<Vec<(usize, Box<UpstreamConnection>)>>);

impl BoundConnections {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn take(&self, server: usize) -> Option<Box<UpstreamConnection>> {
        let mut connections = self.0.borrow_mut();
        let index = connections.iter().rposition(|(id, _)| *id == server)?;
        let (_, mut connection) = connections.swap_remove(index);
        connection.is_quiet().then_some(connection)
    }

    pub(super) fn put(&self, server: usize, mut connection: Box<UpstreamConnection>) {
        connection.end_receiving();
        connection.is_new = false;
        self.0.borrow_mut().push((server, connection));
    }
}

pub(super) fn has_credentials(headers: &HeaderMap) -> bool {
    headers.iter().any(|(name, value)| is_credentials(name, value))
}

/// Whether this header of a request may authenticate its connection.
#[inline]
pub(super) fn is_credentials(name: &HeaderName, value: &HeaderValue) -> bool {
    (*name == AUTHORIZATION || *name == PROXY_AUTHORIZATION)
        && value.as_bytes().split(|byte| *byte == b',').any(is_scheme)
}

/// Whether the response asks for credentials that authenticate its connection.
pub(super) fn has_challenge(status: StatusCode, headers: &HeaderMap) -> bool {
    let names_scheme = |name| header_list::members(headers, name).any(is_scheme);
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED)
        && [WWW_AUTHENTICATE, PROXY_AUTHENTICATE].iter().any(names_scheme)
}

fn is_scheme(member: &[u8]) -> bool {
    let word = member.trim_ascii_start().split(u8::is_ascii_whitespace).next().unwrap_or_default();
    SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_of_connections_are_found_wherever_they_stand() {
        for (name, value, is_bound) in [
            ("www-authenticate", "NTLM", true),
            ("www-authenticate", "ntlm TlRMTVNTUAACAAAA", true),
            ("www-authenticate", "Basic realm=\"a\", negotiate", true),
            ("proxy-authenticate", "Negotiate", true),
            ("www-authenticate", "Basic realm=\"NTLM\"", false),
            ("www-authenticate", "Digest realm=\"a\", qop=\"auth\"", false),
            ("www-authenticate", "NTLMv9", false),
            ("authorization", "Negotiate YII", true),
            ("proxy-authorization", "NTLM TlRMTVNTUAAB", true),
            ("authorization", "Bearer negotiate", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append("www-authenticate", HeaderValue::from_static("Bearer"));
            headers.append(name, HeaderValue::from_static(value));
            let found = [StatusCode::UNAUTHORIZED, StatusCode::OK].map(|status| has_challenge(status, &headers));
            let is_challenge = name.ends_with("authenticate") && is_bound;
            assert_eq!(
                (found, has_credentials(&headers)),
                ([is_challenge, false], is_bound && !is_challenge),
                "{value}"
            );
        }
    }
}
