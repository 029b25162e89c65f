//! HTTP/1.1 with a client: the HTTP library reads requests, one after the other.
//!
//! hyper closes an idle connection at once when it is told to end, even if a part of the next head has come. So it is told
//! only while a request is in flight.

mod client_io;
mod framing_check;
mod message_body;
mod response_body;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use http_body::Body;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

#[cfg(any(test, fuzzing))]
pub(crate) use framing_check::check as check_framing;
pub(super) use message_body::MessageBody;

use client_io::ClientIo;
use message_body::Messages;
use response_body::ResponseBody;

use super::connection_limits::ConnectionLimits;
use super::connection_state::{ConnectionState, Ended, RequestGuard, drive};
use super::lifecycle::{CloseReason, Event};
use super::{Handler, HeadError, IncomingRequest, Tunnel, TunnelStream};
use crate::base::http::{header_list, spare_headers, written_target};
use crate::base::reason::Reason;
use crate::net::{ClientStream, Rewound};

const TWO_READINGS: &str =
    "The request can be read in two ways: lines end in CR LF, a target has no fragment, and a body has one framing.";

const BAD_TARGET: &str = "The target of the request is not valid.";

pub(super) enum AfterRequests {
    Rest,
    /// The client may be in the middle of a body.
    Close {
        is_in_body: bool,
    },
    Tunnel(Tunnel, TunnelStream),
}

pub(super) async fn serve<H: Handler>(
    builder: &http1::Builder,
    limits: &ConnectionLimits,
    handler: Rc<H>,
    peer: SocketAddr,
    stream: &ClientStream,
    state: &Rc<ConnectionState>,
) -> AfterRequests {
    let messages = Rc::new(Messages::default());
    let accepted = Rc::new(Cell::new(None));
    let (asked, requests, followed, tunnel) = (handler.clone(), state.clone(), messages.clone(), accepted.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let message = requests.lifecycle().taken;
        let mut framing = followed.framing.borrow_mut();
        let (mut ambiguity, written) =
            (framing.is_ambiguous_at(message).then_some(TWO_READINGS), framing.take_written(message));
        drop(framing);
        let guard = RequestGuard::new(requests.clone(), None);
        let (handler, state, accepted) = (handler.clone(), requests.clone(), accepted.clone());
        let messages = followed.clone();
        // What is computed here is moved into the future once, and the future has no second place for it.
        let (mut head, body) = request.into_parts();
        if let Some(written) = written {
            match written_target::read(&written) {
                Some(target) => head.uri = target.into(),
                None => ambiguity = Some(BAD_TARGET),
            }
        }
        let body = (!body.is_end_stream()).then(|| MessageBody::new(body, messages.clone()).into());
        let has_body = body.is_some();
        // The library sets this for an Upgrade header, which few requests have.
        let may_upgrade = head.extensions.get::<OnUpgrade>().is_some();
        let asks_for_websocket = may_upgrade && asks_for_websocket(&head, has_body);
        if asks_for_websocket {
            state.record(Event::Upgrades(true));
        }
        let (interim, tunnel, is_unanswered) = (None, None, false);
        let mut incoming =
            IncomingRequest { head, body, ambiguity, asks_for_websocket, interim, tunnel, is_unanswered };
        async move {
            let mut response = Response::default();
            // The future is large. Pinned in place, it is not copied before it is awaited.
            pin!(handler.handle(&mut incoming, &mut response, guard)).await;
            if incoming.is_unanswered {
                // After an error, the library would drop unsent bytes of earlier responses.
                drop((incoming, response));
                state.record(Event::LeftUnanswered);
                return pending().await;
            }
            if has_body {
                messages.end_body(incoming.body.take(), &incoming.head, &mut response).await;
            }
            if asks_for_websocket {
                state.record(Event::Upgrades(incoming.tunnel.is_some()));
                accepted.set(incoming.tunnel.take());
            }
            if response.status().canonical_reason().is_none() && response.extensions().get::<ReasonPhrase>().is_none() {
                // Otherwise the library would write a reason phrase of its own.
                response.extensions_mut().insert(ReasonPhrase::from_static(b""));
            }
            state.record(Event::Answers);
            spare_headers::give_back(incoming.head.headers);
            Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, messages, state)))
        }
    });
    let io = ClientIo { stream: stream.clone(), state: state.clone(), messages: messages.clone() };
    let mut connection = builder.serve_connection(TokioIo::new(io), service);
    let mut gone = pin!(gone(stream, state));
    let ended = drive(
        state,
        || stream.has_more(),
        |cx, finishes| {
            let mut connection = Pin::new(&mut connection);
            if finishes {
                connection.as_mut().graceful_shutdown();
            }
            let polled = connection.poll(cx);
            if polled.is_pending() && state.lifecycle().is_in_flight() && gone.as_mut().poll(cx).is_ready() {
                state.record(Event::Broken);
            }
            polled
        },
    );
    // The library drops the requests that it holds only after this.
    match ended.await {
        Ended::Rests => return AfterRequests::Rest,
        Ended::Closed => {
            if let Some(begin) = tunnel.take() {
                let early = connection.into_parts().read_buf;
                return AfterRequests::Tunnel(begin, Box::new(Rewound::new(early, stream.clone())));
            }
        }
        Ended::Cut(CloseReason::Idle | CloseReason::Gone | CloseReason::Unanswered) => {}
        Ended::Cut(CloseReason::SlowHead) => {
            refuse(&*asked, stream, state, StatusCode::REQUEST_TIMEOUT, Reason::HeaderTimeout, false);
        }
        Ended::Cut(CloseReason::NotReading) => limits.stalled(peer),
        Ended::Failed(error) => match refusal(&error, messages.framing.borrow().first_line(), limits) {
            Some((status, reason)) => {
                refuse(&*asked, stream, state, status, reason, state.lifecycle().is_answered);
            }
            None => tracing::debug!(%error, %peer, "connection failed"),
        },
    }
    AfterRequests::Close { is_in_body: messages.is_in_body() }
}

/// Returns when the connection has broken. Records if the client only ends its data before that.
async fn gone(stream: &ClientStream, state: &ConnectionState) {
    if !stream.socket.closed().await {
        state.record(Event::HalfClosed);
        stream.socket.broken().await;
    }
}

/// The status and the reason if the error says that the client has sent something that is not a request. `first_line` is the
/// length of the line with the target.
fn refusal(error: &hyper::Error, first_line: usize, limits: &ConnectionLimits) -> Option<(StatusCode, Reason)> {
    if error.is_parse_too_large() {
        // Only the error's text says that the target is too long for the library itself.
        let is_too_long = first_line >= limits.server().max_header_size;
        let target = is_too_long || error.to_string().starts_with("URI");
        let status = if target { StatusCode::URI_TOO_LONG } else { StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE };
        Some((status, Reason::MaxHeaderSize))
    } else {
        error.is_parse().then_some((StatusCode::BAD_REQUEST, Reason::BadHead))
    }
}

/// Records that the client has sent something that is not a request, and responds unless it `is_answered`.
pub(super) fn refuse<H: Handler>(
    handler: &H,
    stream: &ClientStream,
    state: &ConnectionState,
    status: StatusCode,
    reason: Reason,
    is_answered: bool,
) {
    let took = Duration::from_millis(state.worker.now() - state.lifecycle().since);
    let answer = handler.refused(&HeadError { status, reason, took });
    if !is_answered && !state.lifecycle().is_unsent() {
        // The response is short. If the system does not take all of it at once, the client does not read.
        let _ = stream.try_write(&answer);
    }
}

/// Whether a request asks for a WebSocket in HTTP/1.1 (RFC 6455, section 4.1; RFC 9110, section 7.8). A request with a body
/// or with `Connection: close` is an ordinary one.
fn asks_for_websocket(head: &Parts, has_body: bool) -> bool {
    head.method == Method::GET
        && !has_body
        && has_token(&head.headers, &header::UPGRADE, b"websocket")
        && has_token(&head.headers, &header::CONNECTION, b"upgrade")
        && !has_token(&head.headers, &header::CONNECTION, b"close")
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    header_list::members(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_a_whole_handshake_asks_for_a_websocket() {
        let asks = |method: Method, fields: &[(&str, &str)], has_body| {
            let mut request = Request::builder().method(method);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            asks_for_websocket(&request.body(()).unwrap().into_parts().0, has_body)
        };
        let asked = [("upgrade", "websocket"), ("connection", "upgrade")];
        assert!(asks(Method::GET, &asked, false));
        assert!(asks(Method::GET, &[("upgrade", "h2c, WebSocket"), ("connection", "keep-alive, Upgrade")], false));
        assert!(asks(Method::GET, &[("upgrade", "h2c"), asked[0], ("connection", "x"), asked[1]], false));
        for (method, fields, has_body) in [
            (Method::POST, &asked[..], false),
            (Method::GET, &asked, true),
            (Method::GET, &asked[..1], false),
            (Method::GET, &asked[1..], false),
            (Method::GET, &[("upgrade", "h2c"), asked[1]], false),
            (Method::GET, &[("upgrade", "websockets"), asked[1]], false),
            (Method::GET, &[asked[0], ("connection", "upgrade, close")], false),
        ] {
            assert!(!asks(method.clone(), fields, has_body), "{method} {fields:?} {has_body}");
        }
    }
}
