//! A request that a command line or a log describes.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderValue, Version, header};

use crate::request::resolve::ArrivedRequest;

/// Adds the Host header, as clients do, unless it is there. Only HTTP/1.0 needs no host.
pub(super) fn add_host(head: &mut Parts, host: Option<&str>) {
    let is_named = head.headers.contains_key(header::HOST);
    head.version = if is_named || host.is_some() { Version::HTTP_11 } else { Version::HTTP_10 };
    if let (false, Some(Ok(host))) = (is_named, host.map(HeaderValue::from_str)) {
        head.headers.insert(header::HOST, host);
    }
}

pub(super) fn arrived(head: &Parts, peer: IpAddr, uses_tls: bool) -> ArrivedRequest<'_> {
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let body = Some(length.unwrap_or(0));
    let (client_cert, ambiguity, is_asked) = (None, None, false);
    ArrivedRequest { head, peer: peer.to_canonical(), uses_tls, client_cert, body, ambiguity, is_asked }
}
