//! Reads the body of a request before the decision, on routes whose limits need it.
//!
//! A client that has not sent all of its body is charged for that before it is waited for: see [`decide::charge_first`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, EXPECT, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Body;
use tokio::time::timeout;

use super::WorkerSnapshot;
use super::body_memory::{BodyMemory, BodyShare};
use crate::base::reason::Reason;
use crate::limit::tokens::request::Patch;
use crate::request::decide::{self, Decision, DecisionInput, DecisionState};
use crate::request::identify::RequestAttributes;
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

/// Why the body of a request is not known.
pub(super) enum Unread {
    /// The limits that need no body refuse the request.
    Refused(Decision),
    /// It cannot be used. This is what these limits say, which charge the request.
    Unusable(Decision, Refusal),
}

/// What reads bodies of a route's requests.
pub(super) struct BodyReader<'a, 'm> {
    pub(super) inspector: &'a BodyInspector,
    pub(super) memory: &'m BodyMemory,
    pub(super) gateway: &'a WorkerSnapshot,
}

impl<'a> BodyReader<'a, '_> {
    /// Reads the body of a request about which the limits that need no body decide by this `input`.
    pub(super) async fn read<'l>(
        &self,
        body: &mut Option<ClientBody>,
        input: &DecisionInput<'l, '_>,
        state: &mut DecisionState<'l>,
    ) -> Result<Inspection<'a>, Unread> {
        if let Some(refused) = decide::refuse_first(input, state).await {
            return Err(Unread::Refused(refused));
        }
        let attributes = input.attributes;
        // A client that waits for leave to send its body gets it when the body is asked for.
        let waits_for_leave = attributes.headers.contains_key(EXPECT);
        let mut inspected = pin!(self.inspect(attributes, body));
        let arrived = match waits_for_leave {
            true => Poll::Pending,
            false => poll_fn(|cx| Poll::Ready(inspected.as_mut().poll(cx))).await,
        };
        let inspected = match arrived {
            Poll::Ready(inspected) => inspected,
            Poll::Pending => match decide::charge_first(input, state).await {
                decision if input.passes(decision) => inspected.await,
                refused => return Err(Unread::Refused(refused)),
            },
        };
        match inspected {
            Ok(inspection) => Ok(inspection),
            Err(why) => match decide::decide_first(input, state).await {
                decision if input.passes(decision) => Err(Unread::Unusable(decision, why)),
                refused => Err(Unread::Refused(refused)),
            },
        }
    }

    /// The same of a request without a body, which nothing is waited for.
    pub(super) fn read_nothing(&self, attributes: &RequestAttributes<'_>) -> Option<Inspection<'a>> {
        let (body, _) = read(self.inspector, (attributes.headers, attributes.path), &[]).ok()?;
        Some(Inspection { body, asks_for_usage: false })
    }

    async fn inspect(
        &self,
        attributes: &RequestAttributes<'_>,
        body: &mut Option<ClientBody>,
    ) -> Result<Inspection<'a>, Refusal> {
        let a_few = usize::try_from(self.inspector.most).unwrap_or(usize::MAX).saturating_mul(4);
        let share = self.memory.share(attributes.client, self.gateway.inspect_memory.max(a_few));
        inspect(self.inspector, (attributes.headers, attributes.path), body, self.gateway.body_timeout, share).await
    }
}

/// Reads all of a body, and puts what is sent on in its place. The client may send nothing of it for `limit` at most.
async fn inspect<'a>(
    inspector: &'a BodyInspector,
    head: (&HeaderMap, &str),
    body: &mut Option<ClientBody>,
    limit: Duration,
    share: BodyShare<'_>,
) -> Result<Inspection<'a>, Refusal> {
    let (mut bytes, trailers) = match body {
        Some(body) => collect(body, (inspector.most, inspector.bound), limit, Some(share)).await?,
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

/// The memory of a body is needed for others.
struct GivenUp;

/// All of a body, of at most `most` bytes: a larger one is refused for the reason `bound`. What has come of it takes its `share` of
/// the memory, if that is bounded.
pub(super) async fn collect(
    body: &mut ClientBody,
    (most, bound): (u64, Reason),
    limit: Duration,
    mut share: Option<BodyShare<'_>>,
) -> Result<(Bytes, Option<HeaderMap>), Refusal> {
    if body.size_hint().lower() > most {
        return Err(too_large(bound));
    }
    let (mut bytes, mut trailers) = (BytesMut::new(), None);
    loop {
        let next = poll_fn(|cx| match &share {
            Some(share) if share.poll_given_up(cx) => Poll::Ready(Err(GivenUp)),
            _ => Pin::new(&mut *body).poll_frame(cx).map(Ok),
        });
        let Ok(next) = timeout(limit, next).await else {
            return Err(broken(StatusCode::REQUEST_TIMEOUT, Reason::BodyTimeout, "did not arrive in time"));
        };
        let frame = match next {
            Ok(None) => return Ok((bytes.freeze(), trailers)),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => return Err(broken(StatusCode::BAD_REQUEST, Reason::BadBody, "is not valid")),
            Err(GivenUp) => {
                let what = "was given up, because bodies that have not arrived take too much memory";
                return Err(broken(StatusCode::SERVICE_UNAVAILABLE, Reason::InspectMemory, what));
            }
        };
        match frame.into_data() {
            Ok(data) if (bytes.len() + data.len()) as u64 > most => return Err(too_large(bound)),
            // Most bodies are one piece.
            Ok(data) if bytes.is_empty() && body.is_end_stream() => return Ok((data, None)),
            // It grows with what comes, so that a length that is only stated takes no memory.
            Ok(data) => {
                bytes.extend_from_slice(&data);
                share.iter_mut().for_each(|share| share.set(bytes.capacity()));
            }
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
