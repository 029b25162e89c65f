//! The target and the host of a request for the upstream.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Method, Uri, header};

use crate::config::{PathRules, SentPath};
use crate::request::route::path::BadPath;
use crate::request::route::rewrite;

/// The target for the upstream, in origin form: the path that it gets, and the query of the request.
pub(super) fn onward<'a>(uri: &'a Uri, sent: &SentPath, paths: PathRules) -> Result<Cow<'a, str>, BadPath> {
    let path = rewrite::sent(sent, uri.path(), paths)?;
    Ok(match (uri.path_and_query(), uri.query()) {
        // Nearly all paths are forwarded as they came.
        (Some(whole), _) if path.len() == uri.path().len() && whole.as_str().starts_with(&*path) => {
            Cow::Borrowed(whole.as_str())
        }
        (_, Some(query)) => Cow::Owned(format!("{path}?{query}")),
        (_, None) => path,
    })
}

/// Sets the Host header to the host of a target in absolute form (RFC 9112, section 3.2.2), since the header may be empty.
pub(super) fn name_host(uri: &Uri, headers: &mut HeaderMap) {
    let named = uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = named {
        headers.insert(header::HOST, host);
    }
}

/// Whether the client asks this gateway itself (RFC 9110, section 7.6.2). Otherwise decrements Max-Forwards.
pub(super) fn is_last_hop(method: &Method, headers: &mut HeaderMap) -> bool {
    if !matches!(*method, Method::OPTIONS | Method::TRACE) {
        return false;
    }
    let left = headers.get(header::MAX_FORWARDS).and_then(|left| left.to_str().ok()?.trim().parse::<u32>().ok());
    if let Some(left) = left.and_then(|left| left.checked_sub(1)) {
        headers.insert(header::MAX_FORWARDS, left.into());
    }
    left == Some(0)
}
