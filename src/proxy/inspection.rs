//! Reads the body of a request before the decision, on routes whose limits need it.
//!
//! A client whose body has not come is charged before the gateway waits for it: see [`decide::charge_first`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, CONNECTION, EXPECT, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Body;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::WorkerSnapshot;
use super::body_memory::{BodyMemory, BodyShare};
use crate::base::clock;
use crate::base::http::header_list;
use crate::base::reason::Reason;
use crate::request::decide::{self, Decision, DecisionInput, DecisionState, PlacedLimits};
use crate::request::identify::RequestAttributes;
use crate::request::identify::body::{BodyInspector, BodyProblem, InspectedBody};
use crate::request::resolve::Rejection;
use crate::server::ClientBody;
use crate::tokens::request::{Inspection as Reading, Patch, pieces};

/// Headers that describe the bytes of a body, and are wrong for a changed one.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
];

pub(super) struct Inspection<'a> {
    pub(super) body: InspectedBody<'a>,
    /// The limits to ask instead of those of the route, if the body is an array.
    pub(super) limits: Option<PlacedLimits>,
    /// Whether the request was changed so that its response states its use of tokens.
    pub(super) asks_for_usage: bool,
}

pub(super) enum Unread {
    /// The limits that need no body refuse the request.
    Refused(Decision),
    /// The body cannot be used. The decision is that of the limits that need no body, which charge the request.
    Unusable(Decision, Rejection),
}

pub(super) struct BodyReader<'a, 'm> {
    pub(super) inspector: &'a BodyInspector,
    pub(super) memory: &'m BodyMemory,
    pub(super) gateway: &'a WorkerSnapshot,
    /// How long a client may send nothing of its body; `None` if that is not limited.
    pub(super) limit: Option<Duration>,
}

impl<'a> BodyReader<'a, '_> {
    /// Reads the body of a request, about which the limits that need no body decide by this `input`.
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
        // A client that expects 100 (Continue) gets it when the body is first polled.
        let waits_for_leave = attributes.headers.contains_key(EXPECT);
        let mut inspected = pin!(self.inspect(input, body));
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
            Err(why) => match decide::decide_first(&DecisionInput { now: clock::now(), ..*input }, state).await {
                decision if input.passes(decision) => Err(Unread::Unusable(decision, why)),
                refused => Err(Unread::Refused(refused)),
            },
        }
    }

    /// Inspects a request without a body, without waiting.
    pub(super) fn read_nothing(&self, attributes: &RequestAttributes<'_>) -> Option<Inspection<'a>> {
        let body = read(self.inspector, attributes, &[]).ok()?;
        Some(Inspection { body, limits: None, asks_for_usage: false })
    }

    /// Reads all of a body, and replaces it by the body for the upstream.
    async fn inspect(
        &self,
        input: &DecisionInput<'_, '_>,
        body: &mut Option<ClientBody>,
    ) -> Result<Inspection<'a>, Rejection> {
        let (inspector, head) = (self.inspector, input.attributes);
        let a_few = usize::try_from(inspector.most).unwrap_or(usize::MAX).saturating_mul(4);
        let share = self.memory.share(head.client, self.gateway.inspect_memory.max(a_few));
        let (mut bytes, trailers) = match body {
            Some(body) => collect(body, inspector.most, inspector.bound, self.limit, Some(share)).await?,
            None => (Bytes::new(), None),
        };
        let read = read_in_turns(begin(inspector, head, &bytes)?, &bytes).await;
        let (inspected, patches) = inspector.finish(head, &bytes, read)?;
        let attributes = RequestAttributes { body: Some(&inspected), ..*head };
        let limits = decide::of_elements(input.limits, &attributes, &mut input.key_cache.borrow_mut())?;
        let asks_for_usage = !patches.is_empty();
        if asks_for_usage {
            bytes = patched(&bytes, &patches);
        }
        *body = body.is_some().then(|| ClientBody::whole(bytes, trailers));
        Ok(Inspection { body: inspected, limits, asks_for_usage })
    }
}

/// Reads a body. The worker serves its other requests between the pieces.
async fn read_in_turns<'a>(mut reading: Reading<'a>, body: &[u8]) -> Reading<'a> {
    for (index, piece) in pieces(body).enumerate() {
        if index > 0 {
            yield_now().await;
        }
        reading.read(piece);
    }
    reading
}

/// Reads a body that has arrived completely.
pub fn read<'a>(
    inspector: &'a BodyInspector,
    head: &RequestAttributes<'_>,
    body: &[u8],
) -> Result<InspectedBody<'a>, Rejection> {
    let mut read = begin(inspector, head, body)?;
    pieces(body).for_each(|piece| read.read(piece));
    Ok(inspector.finish(head, body, read)?.0)
}

fn begin<'a>(
    inspector: &'a BodyInspector,
    head: &RequestAttributes<'_>,
    body: &[u8],
) -> Result<Reading<'a>, Rejection> {
    if body.len() as u64 > inspector.most {
        return Err(too_large(inspector.bound));
    }
    Ok(inspector.begin(head, body)?)
}

fn patched(body: &[u8], patches: &[Patch]) -> Bytes {
    let added: usize = patches.iter().map(|patch| patch.with.len()).sum();
    let (mut bytes, mut from) = (Vec::with_capacity(body.len() + added), 0);
    for Patch { at, with } in patches {
        bytes.extend_from_slice(body.get(from..at.start).unwrap_or_default());
        bytes.extend_from_slice(with.as_bytes());
        from = at.end;
    }
    bytes.extend_from_slice(body.get(from..).unwrap_or_default());
    bytes.into()
}

/// Adapts the head of a request to the body that is sent, and so that the gateway can read the response, even if the client's
/// Connection names the header by which the gateway asks for that.
pub(super) fn adapt(head: &mut Parts, asks_for_usage: bool) {
    header_list::remove_member(&mut head.headers, &CONNECTION, ACCEPT_ENCODING.as_str());
    head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if asks_for_usage {
        DIGESTS.iter().for_each(|name| drop(head.headers.remove(name)));
    }
}

struct GivenUp;

/// All of a body of at most `most` bytes; a larger one exceeds `bound`. The bytes so far count in `share`.
pub(super) async fn collect(
    body: &mut ClientBody,
    most: u64,
    bound: Reason,
    limit: Option<Duration>,
    mut share: Option<BodyShare<'_>>,
) -> Result<(Bytes, Option<HeaderMap>), Rejection> {
    if body.size_hint().lower() > most {
        return Err(too_large(bound));
    }
    let (mut bytes, mut trailers) = (BytesMut::new(), None);
    loop {
        let next = poll_fn(|cx| match &share {
            Some(share) if share.poll_given_up(cx) => Poll::Ready(Err(GivenUp)),
            _ => Pin::new(&mut *body).poll_frame(cx).map(Ok),
        });
        let next = match limit {
            Some(limit) => timeout(limit, next).await,
            None => Ok(next.await),
        };
        let Ok(next) = next else {
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
            // The buffer grows with the arriving bytes, so a length that is only stated takes no memory.
            Ok(data) => {
                bytes.extend_from_slice(&data);
                share.iter_mut().for_each(|share| share.set(bytes.capacity()));
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
}

fn too_large(bound: Reason) -> Rejection {
    broken(StatusCode::PAYLOAD_TOO_LARGE, bound, "is too large")
}

/// The next bytes on the connection belong to the body.
fn broken(status: StatusCode, reason: Reason, what: &str) -> Rejection {
    Rejection { ends_connection: true, ..Rejection::new(status, reason, format!("The body of the request {what}.")) }
}

impl From<BodyProblem> for Rejection {
    fn from(problem: BodyProblem) -> Self {
        let (status, reason) = match problem {
            BodyProblem::Encoded | BodyProblem::NotUtf8 => (StatusCode::UNSUPPORTED_MEDIA_TYPE, Reason::BadBody),
            BodyProblem::Ambiguous(_) => (StatusCode::BAD_REQUEST, Reason::AmbiguousKey),
            BodyProblem::NotJson
            | BodyProblem::TooDeep
            | BodyProblem::Trailing
            | BodyProblem::Background
            | BodyProblem::Fields => (StatusCode::BAD_REQUEST, Reason::BadBody),
            BodyProblem::TooManyElements => (StatusCode::PAYLOAD_TOO_LARGE, Reason::BadBody),
        };
        Self::new(status, reason, problem.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::tokens::request::{Api, BodyPointers};

    #[test]
    fn a_large_body_is_read_in_turns_with_others() {
        let pointers = BodyPointers::new(&["/model".parse().unwrap()]);
        for (kibibytes, turns) in [(0, 1), (1, 1), (64, 1), (65, 2), (1024, 16)] {
            let body = vec![b' '; kibibytes << 10];
            let mut reading = std::pin::pin!(read_in_turns(Reading::new(&pointers, Api::Other), &body));
            let mut taken = 1;
            while reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                taken += 1;
            }
            assert_eq!(taken, turns, "{kibibytes} KiB");
        }
    }

    #[test]
    fn all_changes_are_in_the_body_that_is_sent_on() {
        let patch = |at, with| Patch { at, with };
        let patches = [patch(0..0, "a"), patch(2..3, ""), patch(3..3, "bc"), patch(5..6, "d")];
        assert_eq!(patched(b"012345", &patches), "a01bc34d");
        assert_eq!(patched(b"012345", &[]), "012345");
    }
}
