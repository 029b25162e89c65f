//! The head and the trailers of a response in the form of HTTP/2 (RFC 9113, section 8.3.2).

use http::response::Parts;
use http::{HeaderMap, HeaderName, header};

use super::worker_state::WorkerState;
use crate::base::clock;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The headers of a connection, which HTTP/2 does not have (RFC 9113, section 8.2.2).
static OF_CONNECTION: [HeaderName; 6] =
    [header::CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE];

/// The headers that have to be known before the content, so that they cannot be trailers (RFC 9110, section 6.5.1).
static BEFORE_CONTENT: [HeaderName; 10] = [
    header::TRAILER,
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::CACHE_CONTROL,
    header::AUTHORIZATION,
    header::MAX_FORWARDS,
    header::SET_COOKIE,
];

/// Completes the head of a response: it gets a Date, and the `length` of its content if that is known.
pub(super) fn complete(head: &mut Parts, length: Option<u64>, worker: &WorkerState) {
    remove_connection_headers(&mut head.headers);
    if let header::Entry::Vacant(vacant) = head.headers.entry(header::DATE) {
        vacant.insert(worker.date().at(clock::now()));
    }
    if let (Some(length), header::Entry::Vacant(vacant)) = (length, head.headers.entry(header::CONTENT_LENGTH)) {
        vacant.insert(length.into());
    }
}

/// Removes the headers of a connection. Most responses have none.
pub(super) fn remove_connection_headers(headers: &mut HeaderMap) {
    if headers.keys().any(|name| OF_CONNECTION.contains(name)) {
        OF_CONNECTION.iter().for_each(|name| _ = headers.remove(name));
    }
}

/// Removes what cannot be a trailer. For HTTP/1.1 the library does that.
pub(super) fn remove_misplaced(trailers: &mut HeaderMap) {
    OF_CONNECTION.iter().chain(&BEFORE_CONTENT).for_each(|name| _ = trailers.remove(name));
}
