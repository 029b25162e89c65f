//! The head of a request in HTTP/2.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version, header};
use http_body::Body;

use crate::upstream::error::UpstreamError;
use crate::upstream::exchange::Exchange;
use crate::upstream::outgoing_body::OutgoingBody;
use crate::upstream::request_headers::{self, HeaderSink};

/// # Errors
/// [`UpstreamError::NoHttp2`] if HTTP/2 has no form for it.
pub(super) fn head(
    exchange: &Exchange<'_>,
    scheme: &Scheme,
    body: Option<&OutgoingBody>,
) -> Result<Request<()>, UpstreamError> {
    let request = &exchange.request.head;
    let host = request.host(exchange.authority);
    let authority = host.and_then(|host| Authority::from_maybe_shared(Bytes::copy_from_slice(host.as_bytes())).ok());
    let target = PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(request.target.as_bytes()));
    let uri = Uri::builder().scheme(scheme.clone());
    let uri = uri.authority(authority.ok_or(UpstreamError::NoHttp2)?);
    let uri = uri.path_and_query(target.map_err(|_| UpstreamError::NoHttp2)?).build();

    let mut headers = Headers { map: HeaderMap::with_capacity(request.headers.len() + 10), is_valid: true };
    request_headers::each(request, exchange.named, &mut headers);
    // Without a length, the end of the stream shows where the body ends.
    if let Some(length) = body.and_then(|body| body.size_hint().exact()) {
        headers.map.insert(header::CONTENT_LENGTH, length.into());
    } else if body.is_none() && request.headers.contains_key(header::CONTENT_LENGTH) {
        headers.map.insert(header::CONTENT_LENGTH, 0.into());
    }
    if !headers.is_valid {
        return Err(UpstreamError::NoHttp2);
    }
    let mut head = Request::new(());
    *head.method_mut() = request.method.clone();
    *head.uri_mut() = uri.map_err(|_| UpstreamError::NoHttp2)?;
    *head.version_mut() = Version::HTTP_2;
    *head.headers_mut() = headers.map;
    Ok(head)
}

struct Headers {
    map: HeaderMap,
    is_valid: bool,
}

impl HeaderSink for Headers {
    fn pass(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.map.append(name.clone(), value.clone());
    }

    fn add(&mut self, name: &'static str, value: &[u8]) {
        match HeaderValue::from_bytes(value) {
            Ok(value) => _ = self.map.append(HeaderName::from_static(name), value),
            Err(_) => self.is_valid = false,
        }
    }

    fn add_written(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        let mut value = Vec::new();
        write(&mut value);
        self.add(name, &value);
    }
}
