//! Reads the host and the path that a request is for, in their normal forms, or refuses the request.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};

use crate::config::{PathRules, SentPath};
use crate::request::route::{host, path, rewrite};
use crate::server::IncomingRequest;

/// The host and the path that a request is for.
pub(super) struct Target<'a> {
    /// In lower case and without the port. Empty if a request in HTTP/1.0 has no host.
    pub(super) host: Cow<'a, str>,
    /// In the normal form in which routes match it.
    pub(super) path: Cow<'a, str>,
}

/// Why a request is refused.
pub(super) struct Unserved {
    pub(super) status: StatusCode,
    pub(super) detail: &'static str,
}

/// The request is not valid, or can be read in two ways.
fn bad(detail: &'static str) -> Unserved {
    Unserved { status: StatusCode::BAD_REQUEST, detail }
}

/// Whether a method would be a standard one in capitals. Methods differ by case (RFC 9110, section 9.1), but some servers
/// read `post` as POST (WSGI, Rack). For the gateway such a request would take the route of another method.
pub fn is_method_in_other_case(method: &str) -> bool {
    const STANDARD: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
    method.bytes().any(|byte| byte.is_ascii_lowercase())
        && STANDARD.iter().any(|standard| standard.eq_ignore_ascii_case(method))
}

/// What a client is told about such a method.
pub const METHOD_IN_OTHER_CASE: &str = "The method is a standard method in the wrong case.";

/// Reads the target.
pub(super) fn read(request: &IncomingRequest, paths: PathRules) -> Result<Target<'_>, Unserved> {
    let IncomingRequest { head, body, ambiguity, .. } = request;
    if head.method == Method::CONNECT {
        let detail = "This is a reverse proxy: CONNECT is served only for a WebSocket in HTTP/2.";
        return Err(Unserved { status: StatusCode::NOT_IMPLEMENTED, detail });
    }
    if is_method_in_other_case(head.method.as_str()) {
        return Err(bad(METHOD_IN_OTHER_CASE));
    }
    let named = match head.headers.get(header::HOST) {
        Some(_) if is_repeated(&head.headers, &header::HOST) => {
            return Err(bad("The request has more than one Host header."));
        }
        Some(host) => host.to_str().map_err(|_| bad("The Host header is not valid."))?,
        // HTTP/2 names the host in the target (RFC 9113, section 8.3.1).
        None if head.version >= Version::HTTP_2 && head.uri.authority().is_some() => "",
        None if head.version > Version::HTTP_10 => return Err(bad("The request has no Host header.")),
        None => "",
    };
    if let Some(detail) = *ambiguity {
        return Err(bad(detail));
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
    let host = host::normal(authority).ok_or(bad("The Host header is not valid."))?;
    let path = path::normal(head.uri.path(), paths).map_err(|why| bad(why.detail()))?;
    Ok(Target { host, path })
}

/// Whether the body has no other transfer coding than chunks. The gateway writes its own chunks, so any other coding would
/// be lost.
fn is_plain(headers: &HeaderMap) -> bool {
    let Some(coding) = headers.get(header::TRANSFER_ENCODING) else { return true };
    coding.as_bytes().eq_ignore_ascii_case(b"chunked") && !is_repeated(headers, &header::TRANSFER_ENCODING)
}

/// Whether the request has a header more than once.
fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some()
}

/// The target for the upstream, in origin form: the path that it gets, and the query of the request.
pub(super) fn onward<'a>(uri: &'a Uri, sent: &SentPath, paths: PathRules) -> Result<Cow<'a, str>, Unserved> {
    let path = rewrite::sent(sent, uri.path(), paths).map_err(|why| bad(why.detail()))?;
    Ok(match (uri.path_and_query(), uri.query()) {
        // Nearly always it is forwarded as it came.
        (Some(whole), _) if path.len() == uri.path().len() && whole.as_str().starts_with(&*path) => {
            Cow::Borrowed(whole.as_str())
        }
        (_, Some(query)) => Cow::Owned(format!("{path}?{query}")),
        (_, None) => path,
    })
}

/// Sets the Host header to the host of a target in absolute form (RFC 9112, section 3.2.2), since it may have been empty.
pub(super) fn name_host(uri: &Uri, headers: &mut HeaderMap) {
    let named = uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = named {
        headers.insert(header::HOST, host);
    }
}
