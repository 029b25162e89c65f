//! The answers that the gateway gives itself: the only place that writes our own statuses.
//!
//! Errors are problem documents (RFC 9457) that say what happened.

mod policy;
pub mod rate_limit_headers;

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::clock::Time;
use crate::reason::Reason;

/// A response whose body is at hand.
pub type Answer = Response<Full<Bytes>>;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[_]>::is_empty")]
    violated: &'a [&'a str],
}

/// An error with nothing more to it than its status and what happened.
pub fn problem(status: StatusCode, detail: &str) -> Answer {
    with_body(status, PROBLEM, document(status, "about:blank", detail, &[]))
}

/// The answer to a request that no route takes. `allowed` are the methods that routes for its host, path and headers
/// take; where there are some, only the method is wrong (RFC 9110, section 15.5.6).
pub fn unrouted(allowed: &BTreeSet<&str>) -> Answer {
    if allowed.is_empty() {
        return problem(StatusCode::NOT_FOUND, "No route is for this host, path and method.");
    }
    let list = allowed.iter().copied().collect::<Vec<_>>().join(", ");
    let why = format!("The routes for this host and path take {list}.");
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &why);
    // Methods are tokens, so their list is a header value.
    answer.headers_mut().extend(HeaderValue::try_from(list).map(|list| (header::ALLOW, list)));
    answer
}

/// The same answer as the last one on its connection.
pub fn last(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// The answer to what never became a request, as it goes out: no HTTP library sends it. The last on its connection.
pub fn refused(status: StatusCode, reason: Reason, now: Time) -> Vec<u8> {
    let detail = match reason {
        Reason::HeaderTimeout => "The head of the request did not come in time.",
        Reason::MaxHeaderSize => "The head of the request is too large.",
        _ => "This is not an HTTP/1.1 request.",
    };
    let body = document(status, "about:blank", detail, &[]);
    let (title, length) = (status.canonical_reason().unwrap_or_default(), body.len());
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now.seconds()));
    let head = format!(
        "HTTP/1.1 {} {title}\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
         content-length: {length}\r\ndate: {date}\r\n\r\n",
        status.as_u16()
    );
    [head.as_bytes(), &body].concat()
}

/// A short text.
pub fn text(status: StatusCode, body: Bytes) -> Answer {
    with_body(status, TEXT, body)
}

/// An answer whose body is of this kind.
pub fn with_body(status: StatusCode, kind: HeaderValue, body: Bytes) -> Answer {
    with_headers(status, HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]), body)
}

fn with_headers(status: StatusCode, headers: HeaderMap, body: Bytes) -> Answer {
    let (mut head, ()) = Response::new(()).into_parts();
    (head.status, head.headers) = (status, headers);
    Response::from_parts(head, Full::new(body))
}

fn document(status: StatusCode, kind: &str, detail: &str, violated: &[&str]) -> Bytes {
    let title = status.canonical_reason().unwrap_or("Error");
    let problem = Problem { kind, title, status: status.as_u16(), detail, violated };
    // Strings and a number always serialize.
    serde_json::to_vec(&problem).unwrap_or_default().into()
}
