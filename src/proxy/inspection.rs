//! Reads the body of a request before the decision, on routes whose limits need it.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Body;
use tokio::time::timeout;

use crate::base::reason::Reason;
use crate::limit::tokens::request::Patch;
use crate::request::identify::body::{BodyInspector, BodyProblem, InspectedBody};
use crate::request::resolve::Refusal;
use crate::server::ClientBody;

/// Headers about the bytes of a body, which are not true of another one.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
];

/// What is known of a request when its body was read.
pub(super) struct Inspection<'a> {
    pub(super) body: InspectedBody<'a>,
    /// Whether the request was changed so that its response says how many tokens it has used.
    pub(super) asks_for_usage: bool,
}

/// Reads all of a body, and puts what is sent on in its place. The client may send nothing of it for `limit` at most, if there is one.
pub(super) async fn inspect<'a>(
    inspector: &'a BodyInspector,
    head: (&HeaderMap, &str),
    body: &mut Option<ClientBody>,
    limit: Option<Duration>,
) -> Result<Inspection<'a>, Refusal> {
    let (mut bytes, trailers) = match body {
        Some(body) => collect(body, (inspector.most, inspector.bound), limit).await?,
        None => (Bytes::new(), None),
    };
    let (inspected, patch) = read(inspector, head, &bytes)?;
    let asks_for_usage = patch.is_some();
    if let Some(patch) = patch {
        let end = bytes.get(patch.at.end..).unwrap_or_default();
        bytes = [bytes.get(..patch.at.start).unwrap_or_default(), patch.with.as_bytes(), end].concat().into();
    }
    *body = body.is_some().then(|| ClientBody::whole(bytes, trailers));
    Ok(Inspection { body: inspected, asks_for_usage })
}

/// What a body says that is there, and what makes it ask for what the gateway has to know. The head is headers and the path.
pub fn read<'a>(
    inspector: &'a BodyInspector,
    head: (&HeaderMap, &str),
    body: &[u8],
) -> Result<(InspectedBody<'a>, Option<Patch>), Refusal> {
    if body.len() as u64 > inspector.most {
        return Err(too_large(inspector.bound));
    }
    inspector.inspect(head, body).map_err(|problem| refusal(&problem))
}

/// Makes the head of a request one whose response the gateway can read, and which is true of the body that is sent.
pub(super) fn adapt(head: &mut Parts, asks_for_usage: bool) {
    head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if asks_for_usage {
        DIGESTS.iter().for_each(|name| drop(head.headers.remove(name)));
    }
}

/// All of a body, of at most `most` bytes: a larger one is refused for the reason `bound`.
pub(super) async fn collect(
    body: &mut ClientBody,
    (most, bound): (u64, Reason),
    limit: Option<Duration>,
) -> Result<(Bytes, Option<HeaderMap>), Refusal> {
    if body.size_hint().lower() > most {
        return Err(too_large(bound));
    }
    let (mut bytes, mut trailers) = (BytesMut::new(), None);
    loop {
        let next = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let next = match limit {
            Some(limit) => timeout(limit, next).await,
            None => Ok(next.await),
        };
        let frame = match next {
            Ok(None) => return Ok((bytes.freeze(), trailers)),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => return Err(broken(StatusCode::BAD_REQUEST, Reason::BadBody, "is not valid")),
            Err(_) => {
                return Err(broken(StatusCode::REQUEST_TIMEOUT, Reason::BodyTimeout, "did not arrive in time"));
            }
        };
        match frame.into_data() {
            Ok(data) if (bytes.len() + data.len()) as u64 > most => return Err(too_large(bound)),
            // Most bodies are one piece.
            Ok(data) if bytes.is_empty() && body.is_end_stream() => return Ok((data, None)),
            // It grows with what comes, so that a length that is only stated takes no memory.
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
}

fn too_large(bound: Reason) -> Refusal {
    broken(StatusCode::PAYLOAD_TOO_LARGE, bound, "is too large")
}

/// What follows on the connection belongs to the body.
fn broken(status: StatusCode, reason: Reason, what: &str) -> Refusal {
    let detail = format!("The body of the request {what}.").into();
    Refusal { status, reason: Some(reason), detail, ends_connection: true }
}

fn refusal(problem: &BodyProblem) -> Refusal {
    let (status, reason) = match problem {
        BodyProblem::Encoded | BodyProblem::NotUtf8 => (StatusCode::UNSUPPORTED_MEDIA_TYPE, Reason::BadBody),
        BodyProblem::Ambiguous(_) => (StatusCode::BAD_REQUEST, Reason::AmbiguousKey),
    };
    Refusal { status, reason: Some(reason), detail: problem.to_string().into(), ends_connection: false }
}
