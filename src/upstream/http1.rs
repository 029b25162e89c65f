//! One exchange of HTTP/1.1 with an upstream: a request is sent, and the head of its response is awaited. The task of the
//! request drives the connection, see [`UpstreamConnection`].

mod chunked;
mod request;
mod response_body;
mod response_head;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, StatusCode};

pub(super) use response_body::ResponseBody;

use super::bound::has_challenge;
use super::connection::UpstreamConnection;
use super::error::{Failed, RequestBodyError, UpstreamError};
use super::exchange::{Exchange, OutgoingBody};
use super::header_policy::ResponseTrailers;
use super::in_flight::InFlight;
use super::pool::ConnectionPools;
use super::request::UpstreamRequest;
use super::response_rules::{BadHead, Interim};
use super::stall::Stalled;
use request::RequestBody;
use response_head::{BodyEnd, ResponseHead};

/// Sends the request on `connection` and waits for the head of the response, which may come before all of the request is sent.
/// Its headers go to `headers`. After the body, the connection returns to its pool, with the id of its server. The error is
/// [`Failed`] if no head comes.
pub(super) async fn send<B: From<ResponseBody>>(
    exchange: &Exchange<'_>,
    mut connection: Box<UpstreamConnection>,
    body: Option<OutgoingBody>,
    pool: (&Rc<ConnectionPools>, usize),
    headers: &mut HeaderMap,
) -> Result<(StatusCode, B), Failed> {
    let Exchange { request, in_flight, named, authority, bound, timeout, read_timeout } = *exchange;
    request.progress.is_begun.set(true);
    let mut body = RequestBody::new(body, request, named);
    connection.serves(request.head.forwarded.version);
    let has_credentials = request::encode(&mut connection.sending, &request.head, named, authority, body.framing);
    connection.stall.begin(request.body_timeout(), Some(timeout));
    let mut interim = Interim::new(request.client.and_then(|client| client.interim));
    let head = poll_fn(|cx| {
        let advanced = advance(request, cx, &mut connection, &mut body, (&mut interim, headers));
        if body.over {
            in_flight.into_iter().for_each(InFlight::is_sent);
        }
        if advanced.is_ready() {
            return advanced;
        }
        let position = body.position(&connection);
        Poll::Ready(Err(match ready!(connection.stall.poll(cx, position)) {
            Stalled::Client(limit) => UpstreamError::BodyTimeout(limit),
            Stalled::Upstream(limit) => UpstreamError::Timeout(limit),
        }))
    });
    let mut head = head.await.map_err(|error| Failed::over_http1(error, connection.is_new))?;
    let status = head.status;
    connection.kept_for = head.kept_for;
    // Only chunks can have trailers.
    let trailers =
        (head.end == BodyEnd::Chunked).then(|| ResponseTrailers::new(request, std::mem::take(&mut head.named)));
    connection.is_bound |= has_credentials || has_challenge(status, headers);
    let bound = (connection.is_bound && request.is_of_one_client()).then(|| bound.clone());
    connection.stall.has_begun(read_timeout);
    let upload = (!body.over).then(|| Box::new(body));
    Ok((status, ResponseBody::new(connection, head, trailers.unwrap_or_default(), upload, pool, bound).into()))
}

/// Sends and receives as much as is possible now. Passes interim responses on.
fn advance(
    request: &UpstreamRequest<'_>,
    cx: &mut Context<'_>,
    connection: &mut UpstreamConnection,
    request_body: &mut RequestBody,
    (interim, headers): (&mut Interim<'_>, &mut HeaderMap),
) -> Poll<Result<ResponseHead, UpstreamError>> {
    match request_body.poll(cx, connection) {
        Poll::Ready(Err(RequestBodyError::Client(error))) => return Poll::Ready(Err(UpstreamError::Client(error))),
        Poll::Ready(Err(RequestBodyError::TooLarge)) => return Poll::Ready(Err(UpstreamError::TooLarge)),
        // An upstream that accepts no more may have sent a response already. If it has not, the read finds an error.
        Poll::Pending | Poll::Ready(Ok(()) | Err(RequestBodyError::Upstream)) => {}
    }
    loop {
        if !connection.received.is_empty() {
            let (received, asked) = (&mut connection.received, request.head.asks_for_websocket);
            if let Some(head) = response_head::parse(received, request.head.method, asked, interim, headers)? {
                return Poll::Ready(Ok(head));
            }
        }
        let nothing_came = connection.received.is_empty() && interim.is_none();
        match ready!(connection.poll_fill(cx, false)) {
            Ok(0) if nothing_came => {
                return Poll::Ready(Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into())));
            }
            Err(error) if nothing_came => return Poll::Ready(Err(UpstreamError::Closed(error))),
            Ok(0) | Err(_) => return Poll::Ready(Err(BadHead::CUT_OFF.into())),
            Ok(_) => {}
        }
    }
}
