//! One exchange of HTTP/2 with an upstream (RFC 9113): a request is sent on a stream of a shared connection, and the head of
//! its response is awaited. The task of the request drives its stream; only the connection has a task of its own. hyper's
//! client around h2 would send each body in a further task, which goes on when the request has ended, and does not show whether
//! it waits for the client or for the server.

mod clients;
mod connection;
mod followed_stream;
mod keep_alive;
mod pool;
mod request;
mod response;

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use h2::client::ResponseFuture;
use http::{HeaderMap, Response, StatusCode, Version};

pub(super) use connection::OpenStream;
pub(super) use pool::Http2Pool;
pub(super) use response::ResponseBody;

use super::bound::{has_challenge, has_credentials};
use super::error::{Failed, RequestBodyError, UpstreamError};
use super::exchange::{Exchange, OutgoingBody};
use super::header_policy::ResponseTrailers;
use super::in_flight::InFlight;
use super::resend::Ending;
use super::response_rules::{Interim, interim_head};
use super::stall::Stalled;
use connection::failure;
use request::RequestBody;

impl Failed {
    /// For an error before the head of a response. `nothing_came` is false after an interim response, too.
    fn of_stream(error: h2::Error, stream: &OpenStream, nothing_came: bool) -> Self {
        stream.has_ended();
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        if is_refused {
            stream.connection.refuses();
        }
        // The library reports a GOAWAY only to streams above the last one that the server may have processed.
        let ending = if error.is_remote() && (is_refused || error.is_go_away()) {
            Ending::NotProcessed
        } else if error.is_io() && nothing_came && !stream.is_new {
            Ending::Stale
        } else {
            Ending::Unknown
        };
        let error = stream.connection.why_closed().map_or_else(|| failure(error), UpstreamError::Closed);
        Self { error, ending }
    }
}

/// Sends the request on `stream` and waits for the head of the response, which may come before all of the request is sent. Its
/// headers go to `headers`. If nothing of `body` was used, it stays there. The error is [`Failed`] if no head comes.
pub(super) async fn send<B: From<ResponseBody>>(
    exchange: &Exchange<'_>,
    mut stream: OpenStream,
    body: &mut Option<OutgoingBody>,
    headers: &mut HeaderMap,
) -> Result<(StatusCode, B), Failed> {
    let Exchange { request, in_flight, named, timeout, read_timeout, .. } = *exchange;
    let head = request::head(exchange, &stream.connection.scheme, body.as_ref())?;
    if has_credentials(request.head.headers) {
        // They authenticate the whole connection.
        stream.connection.retire();
    }
    let (mut response, sender) = match stream.send(head, body.is_none()) {
        Ok(sent) => sent,
        // The connection has ended, or the server has announced its end.
        Err(error) => return Err(Failed { error: failure(error), ending: Ending::NotProcessed }),
    };
    request.progress.is_begun.set(true);
    let rules = body.take().zip(request.body);
    let mut request_body = rules.map(|(body, rules)| RequestBody::new(body, &stream, &request.head, rules, named));
    stream.sender = Some(sender);
    stream.stall().begin(request.body_timeout(), Some(timeout));
    let mut interim = Interim::new(request.client.and_then(|client| client.interim));
    let head = poll_fn(|cx| {
        let advanced = advance(cx, &mut stream, &mut response, request_body.as_mut(), &mut interim);
        if request_body.as_ref().is_none_or(RequestBody::is_over) {
            in_flight.into_iter().for_each(InFlight::is_sent);
        }
        if advanced.is_ready() {
            return advanced;
        }
        let position = request_body.as_ref().map(RequestBody::position).unwrap_or_default();
        Poll::Ready(Err(Failed::from(match ready!(stream.stall().poll(cx, position)) {
            Stalled::Client(limit) => UpstreamError::BodyTimeout(limit),
            Stalled::Upstream(limit) => UpstreamError::Timeout(limit),
        })))
    });
    let checked = head.await.and_then(|mut response| {
        let rest = response::check(&mut response, request.head.method).map_err(UpstreamError::from)?;
        Ok((response.into_parts(), rest))
    });
    match checked {
        Ok(((head, received), rest)) => {
            let received = stream.receives(received);
            if has_challenge(head.status, &head.headers) {
                // What the client answers authenticates the whole connection.
                stream.connection.retire();
            }
            stream.stall().has_begun(read_timeout);
            let request_body = request_body.filter(|request_body| !request_body.is_over());
            let ends_at_length = request.head.forwarded.version < Version::HTTP_2;
            let trailers = ResponseTrailers::new(request, Box::default());
            let body = ResponseBody { received, rest, request_body, ends_at_length, trailers, stream };
            *headers = head.headers;
            Ok((head.status, B::from(body)))
        }
        Err(failed) => {
            *body = request_body.and_then(RequestBody::unused);
            Err(failed)
        }
    }
}

/// Sends and receives as much as is possible now. Passes interim responses on.
fn advance(
    cx: &mut Context<'_>,
    stream: &mut OpenStream,
    response: &mut ResponseFuture,
    request_body: Option<&mut RequestBody>,
    interim: &mut Interim<'_>,
) -> Poll<Result<Response<RecvStream>, Failed>> {
    if let Some(request_body) = request_body {
        match request_body.poll(stream, cx) {
            Poll::Ready(Err(RequestBodyError::Client(error))) => {
                return Poll::Ready(Err(UpstreamError::Client(error).into()));
            }
            Poll::Ready(Err(RequestBodyError::TooLarge)) => return Poll::Ready(Err(UpstreamError::TooLarge.into())),
            // A server that accepts no more may have sent a response already. If it has not, there is an error.
            Poll::Pending | Poll::Ready(Ok(()) | Err(RequestBodyError::Upstream)) => {}
        }
    }
    while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
        if let Some(pass) = interim.count(head.status()).map_err(UpstreamError::from)? {
            let (head, ()) = head.into_parts();
            pass(interim_head(head.status, head.headers));
        }
    }
    let response = ready!(Future::poll(std::pin::Pin::new(response), cx));
    Poll::Ready(response.map_err(|error| Failed::of_stream(error, stream, interim.is_none())))
}
