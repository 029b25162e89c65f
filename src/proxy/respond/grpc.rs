//! The gateway's own responses in gRPC.
//!
//! A gRPC client expects the HTTP status 200 and the outcome of the call in `grpc-status`; a response without messages has it
//! among its headers ("Trailers-Only" in <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::Full;
use integer_encoding::VarInt;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use serde::Deserialize;

use super::PROBLEM;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// The headers that contain the outcome of a call in a response without messages.
pub const OUTCOME: [HeaderName; 3] = [STATUS, MESSAGE, DETAILS];

/// What is percent-encoded in `grpc-message`: the percent sign, and everything but visible ASCII and the space.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
/// The most bytes of a text that become a message, because headers have to stay small.
const MOST_TEXT: usize = 1024;
const RETRY_INFO: &[u8] = b"type.googleapis.com/google.rpc.RetryInfo";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    /// The code for a response with this status that no limit has caused.
    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::InvalidArgument,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 405 | 501 => Self::Unimplemented,
            408 | 504 => Self::DeadlineExceeded,
            413 | 429 | 431 => Self::ResourceExhausted,
            500 => Self::Internal,
            502 | 503 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }
}

/// The content type of a gRPC call; `None` for any other request. A gRPC call is always a POST.
pub fn content_type<'a>(method: &Method, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
    if *method != Method::POST {
        return None;
    }
    let kind = headers.get(header::CONTENT_TYPE)?;
    let rest = kind.as_bytes().strip_prefix(b"application/grpc")?;
    matches!(rest.first(), None | Some(b'+' | b';' | b'-')).then_some(kind)
}

/// Whether this is a gRPC call with messages in Protocol Buffers and the framing of gRPC itself.
pub fn is_message(method: &Method, headers: &HeaderMap) -> bool {
    let kind = content_type(method, headers).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next()).map(<[u8]>::trim_ascii);
    matches!(kind, Some(b"application/grpc" | b"application/grpc+proto"))
}

/// Translates a response for a gRPC call with this content type. `limited` says whether a limit has caused it.
pub fn translate(response: Response<Bytes>, kind: &HeaderValue, limited: bool) -> Response<Full<Bytes>> {
    let (mut head, body) = response.into_parts();
    let code = if limited { Code::ResourceExhausted } else { Code::of(head.status) };
    let message = message(&head.headers, &body);
    let retry_after = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let details = retry_after.map(|seconds: u64| STANDARD_NO_PAD.encode(status(code, &message, seconds)));
    head.status = StatusCode::OK;
    head.headers.insert(header::CONTENT_TYPE, kind.clone());
    head.headers.insert(STATUS, HeaderValue::from(code as u16));
    let encoded = HeaderValue::try_from(percent_encode(message.as_bytes(), ENCODED).to_string());
    head.headers.extend(encoded.map(|message| (MESSAGE, message)));
    head.headers.extend(details.and_then(|details| Some((DETAILS, HeaderValue::try_from(details).ok()?))));
    Response::from_parts(head, Full::default())
}

pub fn failed(code: Code, message: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, GRPC);
    headers.insert(STATUS, HeaderValue::from(code as u16));
    headers.insert(MESSAGE, HeaderValue::from_static(message));
    response
}

/// The message in the body of a request to a procedure that takes one: a flag, the length, and that many bytes. The error says
/// what is wrong with the body, with the status that says so in HTTP.
pub fn message_of(mut body: Bytes) -> Result<Bytes, (StatusCode, &'static str)> {
    let Some((&[flag, length @ ..], rest)) = body.split_first_chunk::<5>() else {
        return Err((StatusCode::BAD_REQUEST, "There is no message in the body."));
    };
    match (flag, usize::try_from(u32::from_be_bytes(length)) == Ok(rest.len())) {
        (0, true) => Ok(body.split_off(5)),
        (1, _) => {
            Err((StatusCode::NOT_IMPLEMENTED, "The message is compressed, which this service does not understand."))
        }
        _ => Err((StatusCode::BAD_REQUEST, "The body is not one message.")),
    }
}

/// The body of a successful response with one message.
pub struct MessageBody {
    message: Option<Bytes>,
    has_trailers: bool,
}

impl MessageBody {
    pub fn response(message: &impl prost::Message) -> Response<Self> {
        let length = message.encoded_len();
        let mut bytes = Vec::with_capacity(5 + length);
        bytes.push(0);
        // A message of this service has a few kilobytes at most.
        bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        message.encode_raw(&mut bytes);
        let mut response = Response::new(Self { message: Some(bytes.into()), has_trailers: true });
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
        response
    }

    pub fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        if let Some(message) = self.message.take() {
            return Some(Frame::data(message));
        }
        let has_trailers = std::mem::take(&mut self.has_trailers);
        has_trailers.then(|| Frame::trailers(HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))])))
    }

    pub fn is_over(&self) -> bool {
        !self.has_trailers
    }
}

/// The text for people: the detail of a problem document, or a body that the configuration defines.
fn message(headers: &HeaderMap, body: &Bytes) -> String {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    let is_problem = headers.get(header::CONTENT_TYPE).is_some_and(|kind| *kind == PROBLEM);
    let problem = if is_problem { serde_json::from_slice(body).ok() } else { None };
    problem.map_or_else(
        || String::from_utf8_lossy(&body[..body.len().min(MOST_TEXT)]).trim_end().to_owned(),
        |Problem { detail }| detail,
    )
}

/// A google.rpc.Status with a google.rpc.RetryInfo, in the encoding of Protocol Buffers:
///
/// ```text
/// message Status { int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3; }
/// message Any { string type_url = 1; bytes value = 2; }
/// message RetryInfo { Duration retry_delay = 1; }
/// message Duration { int64 seconds = 1; }
/// ```
fn status(code: Code, message: &str, retry_after: u64) -> Vec<u8> {
    let duration = if retry_after == 0 { Vec::new() } else { number(1, retry_after) };
    let retry_info = bytes(1, &duration);
    let any = [bytes(1, RETRY_INFO), bytes(2, &retry_info)].concat();
    [number(1, code as u64), bytes(2, message.as_bytes()), bytes(3, &any)].concat()
}

fn number(field: u8, value: u64) -> Vec<u8> {
    [&[field << 3][..], &value.encode_var_vec()].concat()
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2][..], &value.len().encode_var_vec(), value].concat()
}

/// The timeout of a call; `None` without a valid one, which has at most eight digits and a unit.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let digits = value.get(..value.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount = digits.parse().ok()?;
    match value.as_bytes().last()? {
        b'H' => Some(Duration::from_secs(3600 * amount)),
        b'M' => Some(Duration::from_secs(60 * amount)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::respond::{LocalBody, LocalResponse, problem, with_body};

    fn translated(response: LocalResponse, limited: bool) -> (HeaderMap, u16) {
        let response = response.map(LocalBody::into_bytes);
        let response = translate(response, &HeaderValue::from_static("application/grpc+proto"), limited);
        (response.headers().clone(), response.status().as_u16())
    }

    #[test]
    fn only_grpc_has_its_content_type() {
        for (kind, is_grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web+proto", true),
            ("application/grpcx", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(content_type(&Method::POST, &headers).is_some(), is_grpc, "{kind}");
            assert_eq!(content_type(&Method::GET, &headers), None, "{kind}");
            let is_message = is_grpc && !kind.contains("web");
            assert_eq!(super::is_message(&Method::POST, &headers), is_message, "{kind}");
        }
    }

    #[test]
    fn a_refusal_says_when_to_try_again() {
        let mut refused = problem(StatusCode::TOO_MANY_REQUESTS, "10/s is used up, 100 % of it: é");
        refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("300"));
        let (headers, status) = translated(refused, true);
        assert_eq!(
            (status, &headers[STATUS], &headers[header::CONTENT_TYPE]),
            (200, &"8".parse().unwrap(), &"application/grpc+proto".parse().unwrap())
        );
        assert_eq!(headers[MESSAGE], "10/s is used up, 100 %25 of it: %C3%A9");
        let details = STANDARD_NO_PAD.decode(&headers[DETAILS]).unwrap();
        let text = "10/s is used up, 100 % of it: é";
        let expected = [
            &[0x08, 8, 0x12, 32][..],
            text.as_bytes(),
            &[0x1a, 49, 0x0a, 40],
            b"type.googleapis.com/google.rpc.RetryInfo",
            &[0x12, 5, 0x0a, 3, 0x08, 0xac, 0x02],
        ];
        assert_eq!(details, expected.concat());
    }

    #[test]
    fn other_failures_have_the_code_that_fits() {
        for (status, limited, code) in [
            (503, true, "8"),
            (400, false, "3"),
            (403, false, "7"),
            (404, false, "12"),
            (413, false, "8"),
            (502, false, "14"),
            (503, false, "14"),
            (504, false, "4"),
            (418, false, "2"),
        ] {
            let (headers, _) = translated(problem(StatusCode::from_u16(status).unwrap(), "why"), limited);
            assert_eq!((&headers[STATUS], &headers[MESSAGE]), (&code.parse().unwrap(), &"why".parse().unwrap()));
            assert!(!headers.contains_key(DETAILS), "nobody knows when to try again");
        }
        let own =
            with_body(StatusCode::TOO_MANY_REQUESTS, HeaderValue::from_static("text/plain"), "slow\ndown\n".into());
        assert_eq!(translated(own, true).0[MESSAGE], "slow%0Adown");
    }

    #[test]
    fn timeouts_have_a_unit() {
        let read = |value: &'static str| {
            timeout(&HeaderMap::from_iter([(HeaderName::from_static("grpc-timeout"), HeaderValue::from_static(value))]))
        };
        for (value, millis) in
            [("1H", 3_600_000), ("2M", 120_000), ("3S", 3_000), ("400m", 400), ("5000u", 5), ("99999999n", 99)]
        {
            assert_eq!(read(value).map(|limit| limit.as_millis()), Some(millis), "{value}");
        }
        for value in ["", "S", "1", "1s", "1 S", "-1S", "+1S", "1.5S", "123456789S", "1SS"] {
            assert_eq!(read(value), None, "{value}");
        }
    }
}
