//! Reads the host and the path of a request in their normal forms, or refuses the request.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};

use super::{ArrivedRequest, Rejection};
use crate::base::http::{host, is_method_in_other_case, path};
use crate::base::reason::Reason;
use crate::config::PathRules;

#[derive(Default)]
pub struct Target<'a> {
    /// In lower case and without the port. Empty if a request in HTTP/1.0 has no host.
    pub host: Cow<'a, str>,
    /// In the normal form in which routes match it.
    pub path: Cow<'a, str>,
    key: PathKey,
}

/// The path as limits count by it.
#[derive(Default)]
enum PathKey {
    #[default]
    Whole,
    /// The prefix of the path with this many bytes.
    Prefix(usize),
    /// A spelling that the request does not have.
    Folded(String),
}

/// The most header fields of a request. The library of HTTP/1.1 itself refuses more.
const MOST_FIELDS: usize = 100;

const NO_HOST: &str = "The Host header is not valid.";

/// The request is invalid, or can be read in two ways. The next bytes on the connection may belong to it.
fn bad(detail: &'static str) -> Rejection {
    Rejection { status: StatusCode::BAD_REQUEST, reason: None, detail: Cow::Borrowed(detail), ends_connection: true }
}

/// Replaces the Host header by the host of a target in absolute form (RFC 9112, section 3.2.2), which each target of HTTP/2 has
/// (RFC 9113, section 8.3.1): keys and conditions read the header. HTTP/1.1 must have one, none may have two, and none may
/// name another host.
pub fn name_host(head: &mut Parts) {
    let Some(authority) = head.uri.authority() else { return };
    let mut lines = head.headers.get_all(header::HOST).iter();
    let is_due = match (lines.next(), lines.next()) {
        (Some(host), None) => host.is_empty() || host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()),
        (None, _) => head.version != Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    if is_due && let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        head.headers.insert(header::HOST, host);
    }
}

impl<'a> Target<'a> {
    pub(super) fn read(request: &ArrivedRequest<'a>, paths: PathRules) -> Result<Self, Rejection> {
        let ArrivedRequest { head, body, ambiguity, is_asked, .. } = *request;
        // The field for the host of HTTP/2 is the gateway's.
        let fields = head.headers.len().saturating_sub(usize::from(head.version == Version::HTTP_2));
        if fields > MOST_FIELDS {
            let reason = Some(Reason::MaxHeaderSize);
            let detail = "The request has more than 100 header fields.";
            return Err(Rejection { status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, reason, ..bad(detail) });
        }
        if head.method == Method::CONNECT {
            let detail = "This is a reverse proxy: CONNECT is served only for a WebSocket in HTTP/2.";
            return Err(Rejection { status: StatusCode::NOT_IMPLEMENTED, ..bad(detail) });
        }
        if head.method != Method::GET && is_method_in_other_case(head.method.as_str()) {
            return Err(bad("The method is a standard method in the wrong case."));
        }
        let named = match host_line(&head.headers) {
            Some(_) if is_repeated(&head.headers, &header::HOST) => {
                return Err(bad("The request has more than one Host header."));
            }
            // Whether it is a host is checked below.
            Some(host) => host.to_str().map_err(|_| bad(NO_HOST))?,
            // HTTP/2 names the host in the target (RFC 9113, section 8.3.1).
            None if head.version >= Version::HTTP_2 && head.uri.authority().is_some() => "",
            None if head.version > Version::HTTP_10 => return Err(bad("The request has no Host header.")),
            None => "",
        };
        if let Some(detail) = ambiguity {
            return Err(Rejection { reason: is_asked.then_some(Reason::AskedRequest), ..bad(detail) });
        }
        // The HTTP library gives every request with a transfer coding a body.
        if body.is_some() && !is_plain(&head.headers) {
            return Err(bad("The request has a transfer coding other than chunked."));
        }
        // A target in absolute form contains the host too (RFC 9112, section 3.2.2).
        let authority = match head.uri.authority() {
            Some(authority) if !named.is_empty() && !named.eq_ignore_ascii_case(authority.as_str()) => {
                return Err(bad("The target and the Host header name different hosts."));
            }
            Some(authority) => authority.as_str(),
            None => named,
        };
        let host = host::normal(authority).ok_or_else(|| bad(NO_HOST))?;
        let path = path::normal(head.uri.path(), paths).map_err(|why| bad(why.detail()))?;
        Ok(Self { host, path, key: PathKey::Whole })
    }

    pub(super) fn key(&self) -> &str {
        match &self.key {
            PathKey::Whole => &self.path,
            PathKey::Prefix(length) => self.path.get(..*length).unwrap_or_default(),
            PathKey::Folded(key) => key,
        }
    }

    /// Makes limits count by the path as a route compares it.
    pub(super) fn fold(&mut self, paths: PathRules, ignore_case: bool) {
        self.key = match path::key(&self.path, paths, ignore_case) {
            Cow::Borrowed(key) => PathKey::Prefix(key.len()),
            Cow::Owned(key) => PathKey::Folded(key),
        };
    }
}

/// The first Host header. Clients should send it before all others (RFC 9110, section 7.2). Then no lookup is needed.
fn host_line(headers: &HeaderMap) -> Option<&HeaderValue> {
    match headers.iter().next() {
        Some((name, value)) if *name == header::HOST => Some(value),
        _ => headers.get(header::HOST),
    }
}

/// Whether the body has no transfer coding but chunked. The gateway writes its own chunks, so others would be lost.
fn is_plain(headers: &HeaderMap) -> bool {
    let Some(coding) = headers.get(header::TRANSFER_ENCODING) else { return true };
    coding.as_bytes().eq_ignore_ascii_case(b"chunked") && !is_repeated(headers, &header::TRANSFER_ENCODING)
}

fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some()
}
