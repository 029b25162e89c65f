//! HTTP/1.1 with a client. It drives the HTTP library, and ends it where it would wait for ever.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::client_body::ClientBody;
use super::client_io::ClientIo;
use super::connection_limits::ConnectionLimits;
use super::connection_state::ConnectionState;
use super::end::{CloseReason, End, Step, Work, step};
use super::request_guard::RequestGuard;
use super::tunnel::{Tunnel, TunnelStream, asks_for_websocket};
use super::unread_body;
use super::{Handler, HeadError, IncomingRequest};
use crate::base::reason::Reason;
use crate::net::{ClientStream, Rewound};

/// What the client is told about a request that can be read in two ways.
const TWO_READINGS: &str = "The request can be read in two ways: lines end in CR LF, and a body has one framing.";

/// What becomes of a connection.
pub(super) enum Next {
    /// It rests.
    Rest,
    /// It ends. The client may take so long to read what was sent to it, and sends something meanwhile.
    Close(Duration),
    /// It is a tunnel.
    Tunnel(Tunnel, TunnelStream),
}

/// Serves requests until the connection rests, ends or becomes a tunnel.
pub(super) async fn serve<H: Handler>(
    builder: &http1::Builder,
    limits: &ConnectionLimits,
    (handler, peer): (Rc<H>, SocketAddr),
    stream: &ClientStream,
    state: &Rc<ConnectionState>,
) -> Next {
    let (asked, requests) = (handler.clone(), state.clone());
    let (messages, accepted) = (Cell::new(0), Rc::new(Cell::new(None)));
    let tunnel = accepted.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let message = messages.replace(messages.get() + 1);
        let ambiguity = requests.is_ambiguous(message).then_some(TWO_READINGS);
        let guard = RequestGuard::new(requests.clone(), None);
        let (handler, state, accepted) = (handler.clone(), requests.clone(), accepted.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = (!body.is_end_stream()).then(|| ClientBody::http1(body, state.clone()));
            // The library sets it if there is an Upgrade header, which few requests have.
            let may_upgrade = head.extensions.get::<OnUpgrade>().is_some();
            let asks_for_websocket = may_upgrade && asks_for_websocket(&head, body.is_some());
            if asks_for_websocket {
                state.set_upgrading(true);
            }
            let has_body = body.is_some();
            let mut incoming =
                IncomingRequest { head, body, ambiguity, asks_for_websocket, interim: None, tunnel: None };
            let mut response = Response::default();
            handler.handle(&mut incoming, &mut response, guard).await;
            if has_body {
                unread_body::end(incoming.body.take(), &incoming.head, &mut response, &state).await;
            }
            if asks_for_websocket {
                state.set_upgrading(incoming.tunnel.is_some());
                accepted.set(incoming.tunnel.take());
            }
            state.answers();
            Ok::<_, Infallible>(response)
        }
    });
    let io = ClientIo::new(stream.clone(), state.clone());
    let mut connection = builder.serve_connection(io, service);
    // The library drops the requests that it holds only after this.
    match until_ended(Pin::new(&mut connection), stream, state).await {
        ConnectionEnd::Rests => return Next::Rest,
        ConnectionEnd::Closed => {
            if let Some(begin) = tunnel.take() {
                let early = connection.into_parts().read_buf;
                return Next::Tunnel(begin, Box::new(Rewound::new(early, stream.clone())));
            }
        }
        ConnectionEnd::Cut(CloseReason::Idle | CloseReason::Gone) => {}
        ConnectionEnd::Cut(CloseReason::SlowHead) => {
            let why = (StatusCode::REQUEST_TIMEOUT, Reason::HeaderTimeout);
            refuse(&*asked, stream, state, why, false);
        }
        ConnectionEnd::Cut(CloseReason::NotReading) => limits.stalled(peer),
        ConnectionEnd::Failed(error) => match refusal(&error) {
            Some(why) => refuse(&*asked, stream, state, why, state.is_answered()),
            None => tracing::debug!(%error, %peer, "connection failed"),
        },
    }
    // A client that reads a response sends nothing for that.
    Next::Close(Duration::ZERO)
}

/// How the work on a connection ended.
enum ConnectionEnd {
    /// The HTTP library has closed it.
    Closed,
    /// The HTTP library has returned an error.
    Failed(hyper::Error),
    /// The gateway ends it.
    Cut(CloseReason),
    /// The connection stays open and rests: no request is in flight, and none has come for a while.
    Rests,
}

/// Drives a connection until it ends, its client has gone, or its state says that it has to end or to rest.
async fn until_ended<S, B>(
    mut connection: Pin<&mut http1::Connection<TokioIo<ClientIo>, S>>,
    stream: &ClientStream,
    state: &ConnectionState,
) -> ConnectionEnd
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut told = false;
    let mut broken = pin!(gone(stream, state));
    poll_fn(|cx| {
        loop {
            // Once the library has been told to end, it does that by itself.
            let end = state.poll_end(cx).filter(|end| !told || *end != End::AfterRequest);
            let is_upgrading = || state.is_upgrading();
            let work = || {
                let is_busy = state.is_busy() || is_upgrading();
                Work { is_busy, is_unread: !is_busy && stream.has_more(), is_expected: false }
            };
            match step(end, work) {
                Step::Close(reason) => return Poll::Ready(ConnectionEnd::Cut(reason)),
                // The response to it ends HTTP on this connection, or else the connection ends after it.
                Step::Finish if is_upgrading() => {}
                Step::Finish => {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
                Step::GoOn if state.is_to_rest() => return Poll::Ready(ConnectionEnd::Rests),
                Step::GoOn => {}
            }
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() && state.is_in_flight() && broken.as_mut().poll(cx).is_ready() {
                return Poll::Ready(ConnectionEnd::Cut(CloseReason::Gone));
            }
            // The last request may have begun just now, or may have ended already.
            let waits = || state.is_upgrading() || !state.is_busy() && stream.has_more();
            if polled.is_ready() || end.is_none() || told || waits() {
                return polled.map(|ended| ended.map_or_else(ConnectionEnd::Failed, |()| ConnectionEnd::Closed));
            }
        }
    })
    .await
}

/// Returns when the connection has broken. If the client closes only its side before that, the state records it.
async fn gone(stream: &ClientStream, state: &ConnectionState) {
    if !stream.closed().await {
        state.half_closed();
        stream.broken().await;
    }
}

/// The status and the reason if the error says that the client has sent something that is not a request.
fn refusal(error: &hyper::Error) -> Option<(StatusCode, Reason)> {
    if error.is_parse_too_large() {
        // Only the text of the error says whether the target or the fields are too large.
        let target = error.to_string().starts_with("URI");
        let status = if target { StatusCode::URI_TOO_LONG } else { StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE };
        Some((status, Reason::MaxHeaderSize))
    } else {
        error.is_parse().then_some((StatusCode::BAD_REQUEST, Reason::BadHead))
    }
}

/// Records that the client has sent something that is not a request, and responds unless a response was sent.
pub(super) fn refuse<H: Handler>(
    handler: &H,
    stream: &ClientStream,
    state: &ConnectionState,
    (status, reason): (StatusCode, Reason),
    is_answered: bool,
) {
    let answer = handler.refused(&HeadError { status, reason, took: state.age() });
    if !is_answered && !state.is_unsent() {
        // The response is short. If the system does not take all of it at once, the client does not read.
        let _ = stream.try_write(&answer);
    }
}
