//! The responses that the gateway generates itself, and the only place that chooses their statuses. Errors are problem
//! documents (RFC 9457) that say what happened.

pub mod providers;
mod policy;
pub mod grpc;
pub mod rate_limit_headers;
pub mod redirect;
pub mod cors;

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::base::clock::Time;
use crate::base::http::header_rules::{Rule, is_any};
use crate::base::http::request_id::{REQUEST_ID, RequestId};
use crate::base::http::spare_headers;
use crate::base::reason::Reason;
use crate::request::identify::tokens::TokenProblem;
use crate::request::resolve::Rejection;

/// [`finish`] turns it into a response that can be sent.
pub type LocalResponse = Response<LocalBody>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalBody {
    Fixed(Bytes),
    /// A problem document, to which [`finish`] adds the identifier of the request.
    Problem(Bytes),
}

impl LocalBody {
    pub fn into_bytes(self) -> Bytes {
        let (Self::Fixed(bytes) | Self::Problem(bytes)) = self;
        bytes
    }

    #[expect(clippy::inline_always, reason = "every refusal does this")]
    #[inline(always)]
    fn finish(&self, id: &RequestId) -> Bytes {
        match self {
            Self::Fixed(bytes) => bytes.clone(),
            Self::Problem(document) => {
                // The text of an identifier needs no escapes.
                let fields = document.strip_suffix(b"}").unwrap_or(document);
                let parts = [fields, b",\"request_id\":\"", id.as_bytes(), b"\"}"];
                // Exact, so the body takes no other allocation.
                let mut whole = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
                parts.iter().for_each(|part| whole.extend_from_slice(part));
                whole.into()
            }
        }
    }
}

pub fn finish(response: LocalResponse, id: &RequestId) -> Response<Full<Bytes>> {
    let (mut head, body) = response.into_parts();
    let body = identify(&mut head.headers, &body, id);
    Response::from_parts(head, body)
}

/// Adds the identifier of a request to the headers of its answer, and to the body, which it returns.
#[expect(clippy::inline_always, reason = "every refusal does this")]
#[inline(always)]
pub fn identify(headers: &mut HeaderMap, body: &LocalBody, id: &RequestId) -> Full<Bytes> {
    // A refusal already begins with a place for the identifier.
    match headers.iter_mut().next() {
        Some((name, place)) if *name == REQUEST_ID => *place = id.to_header(),
        _ => _ = headers.insert(REQUEST_ID, id.to_header()),
    }
    Full::new(body.finish(id))
}

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

#[derive(Serialize)]
struct Problem<'a, P = ()> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[_]>::is_empty")]
    violated: &'a [&'a str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    problems: &'a [P],
}

impl<'a, P: Serialize> Problem<'a, P> {
    fn new(status: StatusCode, kind: &'a str, detail: &'a str) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self { kind, title, status: status.as_u16(), detail, violated: &[], problems: &[] }
    }

    fn write(&self) -> Bytes {
        // Strings, numbers and values always serialize.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// A problem document without a special type. `detail` is a sentence for people.
pub fn problem(status: StatusCode, detail: &str) -> LocalResponse {
    problem_with::<()>(status, detail, &[])
}

/// An empty list of problems is left out.
pub fn problem_with<P: Serialize>(status: StatusCode, detail: &str, problems: &[P]) -> LocalResponse {
    let document = Problem { problems, ..Problem::new(status, "about:blank", detail) }.write();
    with_all(status, HeaderMap::from_iter([(header::CONTENT_TYPE, PROBLEM)]), LocalBody::Problem(document))
}

/// The response to a request that no route takes: 404, or 405 if only the method is wrong (RFC 9110, section 15.5.6).
/// `allowed` are the methods of the routes for its host, path and headers.
pub fn unrouted(allowed: &BTreeSet<&str>) -> LocalResponse {
    if allowed.is_empty() {
        return problem(StatusCode::NOT_FOUND, "No route matches this host, path and method.");
    }
    let list = allowed.iter().copied().collect::<Vec<_>>().join(", ");
    let why = format!("The routes for this host and path take {list}.");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, &why);
    // Methods are tokens, so their list is a valid header value.
    response.headers_mut().extend(HeaderValue::try_from(list).map(|list| (header::ALLOW, list)));
    response
}

/// The response to a request without a valid token. Only an invalid token is called an error (RFC 6750, section 3.1).
pub fn unauthorized(problem_of_token: TokenProblem) -> LocalResponse {
    let challenge = match problem_of_token {
        TokenProblem::Missing => "Bearer",
        TokenProblem::Invalid(_) => "Bearer error=\"invalid_token\"",
    };
    let mut response = problem(StatusCode::UNAUTHORIZED, &problem_of_token.to_string());
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    response
}

pub fn refused(why: &Rejection) -> LocalResponse {
    let answer = problem(why.status, &why.detail);
    if why.ends_connection { closing(answer) } else { answer }
}

pub fn closing(mut response: LocalResponse) -> LocalResponse {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The bytes of the response to a head that is not a valid request. The HTTP library cannot send the response, since it has
/// no request to answer. The connection is closed afterwards.
pub fn bad_head(status: StatusCode, reason: Reason, id: &RequestId, now: Time) -> Vec<u8> {
    let detail = match reason {
        Reason::HeaderTimeout => "The head of the request did not arrive in time.",
        Reason::MaxHeaderSize => "The head of the request is too large.",
        Reason::PlainHttp => "This port speaks TLS: use https instead of http.",
        _ => "This is not a valid HTTP/1.1 request.",
    };
    let body = LocalBody::Problem(Problem::<()>::new(status, "about:blank", detail).write()).finish(id);
    let (title, length) = (status.canonical_reason().unwrap_or_default(), body.len());
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now.seconds()));
    let head = format!(
        "HTTP/1.1 {} {title}\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
         content-length: {length}\r\nx-request-id: {}\r\ndate: {date}\r\n\r\n",
        status.as_u16(),
        id.as_str()
    );
    [head.as_bytes(), &body].concat()
}

pub fn redirection(status: StatusCode, location: HeaderValue) -> LocalResponse {
    with_headers(status, HeaderMap::from_iter([(header::LOCATION, location)]))
}

/// Has neither a body nor a content type.
pub fn empty(status: StatusCode) -> LocalResponse {
    with_headers(status, HeaderMap::new())
}

pub fn with_headers(status: StatusCode, headers: HeaderMap) -> LocalResponse {
    with_all(status, headers, LocalBody::Fixed(Bytes::new()))
}

/// The response to a request that goes no further (RFC 9110, section 7.6.2): for TRACE the request itself (section 9.3.8),
/// without the client's credentials.
pub fn of_last_hop(head: &Parts) -> LocalResponse {
    if head.method != Method::TRACE {
        return empty(StatusCode::NO_CONTENT);
    }
    let mut request = format!("{} {} {:?}\r\n", head.method, head.uri, head.version).into_bytes();
    for (name, value) in head.headers.iter().filter(|(name, _)| !is_any(name, &[Rule::Secret])) {
        request.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    request.extend_from_slice(b"\r\n");
    with_body(StatusCode::OK, HeaderValue::from_static("message/http"), request.into())
}

pub fn text(status: StatusCode, body: Bytes) -> LocalResponse {
    with_body(status, TEXT, body)
}

pub fn with_body(status: StatusCode, kind: HeaderValue, body: Bytes) -> LocalResponse {
    // It gets more headers, for which a new map would grow several times.
    let mut headers = spare_headers::take();
    headers.insert(header::CONTENT_TYPE, kind);
    with_all(status, headers, LocalBody::Fixed(body))
}

fn with_all(status: StatusCode, headers: HeaderMap, body: LocalBody) -> LocalResponse {
    let (mut head, ()) = Response::new(()).into_parts();
    (head.status, head.headers) = (status, headers);
    Response::from_parts(head, body)
}
