//! What a request asks for: a host and a path in one spelling, or why it is not served.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};

use crate::config::PathRules;
use crate::route::{host, path};
use crate::server::IncomingRequest;

/// What a request asks for.
pub(super) struct Target<'a> {
    /// Lower case, without the port; empty if HTTP/1.0 named none.
    pub(super) host: Cow<'a, str>,
    /// In the spelling of the routes.
    pub(super) path: Cow<'a, str>,
}

/// Why a request is not served.
pub(super) struct Unserved {
    pub(super) status: StatusCode,
    pub(super) detail: &'static str,
}

/// It cannot be read, or not in one way only.
fn bad(detail: &'static str) -> Unserved {
    Unserved { status: StatusCode::BAD_REQUEST, detail }
}

/// Whether a method would be a standard one in capitals. Methods differ by case (RFC 9110, section 9.1), but servers take
/// `post` for POST (WSGI, Rack): such a request would take another route than the one that it is for there.
fn is_method_in_other_case(method: &str) -> bool {
    const STANDARD: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
    method.bytes().any(|byte| byte.is_ascii_lowercase())
        && STANDARD.iter().any(|standard| standard.eq_ignore_ascii_case(method))
}

/// Reads the target.
pub(super) fn read(request: &IncomingRequest, paths: PathRules) -> Result<Target<'_>, Unserved> {
    let IncomingRequest { head, body, is_ambiguous, .. } = request;
    if head.method == Method::CONNECT {
        let detail = "This is a reverse proxy: it has no tunnels, so CONNECT is not served.";
        return Err(Unserved { status: StatusCode::NOT_IMPLEMENTED, detail });
    }
    if is_method_in_other_case(head.method.as_str()) {
        return Err(bad("The method is one of HTTP's, in the wrong case."));
    }
    let named = match head.headers.get(header::HOST) {
        Some(_) if is_repeated(&head.headers, &header::HOST) => {
            return Err(bad("The request has more than one Host header."));
        }
        Some(host) => std::str::from_utf8(host.as_bytes()).map_err(|_| bad("The Host header is not valid."))?,
        None if head.version > Version::HTTP_10 => return Err(bad("The request has no Host header.")),
        None => "",
    };
    if *is_ambiguous {
        return Err(bad("The request can be read in two ways: lines end in CR LF, and a body has one framing."));
    }
    // The HTTP library takes no coding for a request without a body.
    if body.is_some() && !is_plain(&head.headers) {
        return Err(bad("The request has a transfer coding other than chunked."));
    }
    // A target in absolute form names the host as well (RFC 9112, section 3.2.2).
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

/// Whether the body has no other coding than chunks: forwarded in chunks of our own, it would lose any other.
fn is_plain(headers: &HeaderMap) -> bool {
    let Some(coding) = headers.get(header::TRANSFER_ENCODING) else { return true };
    coding.as_bytes().eq_ignore_ascii_case(b"chunked") && !is_repeated(headers, &header::TRANSFER_ENCODING)
}

/// Whether a header is there more than once.
fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some()
}

/// The target that goes on, in origin form, without its first `strip` segments.
pub(super) fn onward(uri: &Uri, strip: usize, paths: PathRules) -> Cow<'_, str> {
    let path = path::onward(uri.path(), strip, paths);
    match (uri.path_and_query(), uri.query()) {
        // Nearly always it goes on as it came.
        (Some(whole), _) if path.len() == uri.path().len() && whole.as_str().starts_with(&*path) => {
            Cow::Borrowed(whole.as_str())
        }
        (_, Some(query)) => Cow::Owned(format!("{path}?{query}")),
        (_, None) => path,
    }
}

/// Makes the Host header what a target in absolute form says (RFC 9112, section 3.2.2): it may have been empty.
pub(super) fn name_host(uri: &Uri, headers: &mut HeaderMap) {
    let named = uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = named {
        headers.insert(header::HOST, host);
    }
}
