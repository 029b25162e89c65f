//! HTTP/2 with a client (RFC 9113): many requests on one connection, each of which is limited, counted and bounded in time
//! by itself.
//!
//! The HTTP library bounds what a client can make it keep. It does not end a stream whose client grants no more window, and
//! goes on with some floods; [`streams`](super::streams) and [`frame_check`](super::frame_check) do that.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::connection_limits::ConnectionLimits;
use super::connection_state::{CloseReason, ConnectionState, End};
use super::frame_check::Violation;
use super::http2_errors::ErrorCode;
use super::http2_head::ambiguity;
use super::multiplexed_io::MultiplexedIo;
use super::request_guard::RequestGuard;
use super::streams::{Progress, StreamBody, Streams};
use super::tunnel::{Tunnel, take_extended_connect};
use super::{Handler, IncomingRequest};
use crate::config::Http2;
use crate::net::ClientStream;

/// How many bytes of a response wait in the library for the client, for each stream.
const SEND_BUFFER: usize = 64 << 10;
/// How many bytes a client may send ahead, on a stream and on the connection: enough for a gigabit at 5 ms.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How long a client has to close a connection that is idle once it has been asked to.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);

/// Serves requests until the connection ends.
pub(super) async fn serve<H: Handler>(
    limits: &ConnectionLimits,
    (handler, peer): (Rc<H>, SocketAddr),
    stream: &ClientStream,
    state: &Rc<ConnectionState>,
) {
    let streams = Streams::default();
    state.set_streams(streams.clone());
    let begun = streams.clone();
    let requests = state.clone();
    let served = Rc::new(Cell::new(0));
    let count = served.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        count.set(count.get() + 1);
        let (mut head, body) = request.into_parts();
        join_cookies(&mut head.headers);
        let body = (!body.is_end_stream()).then_some(body);
        let upgrade = take_extended_connect(&mut head);
        let (ambiguity, asks_for_websocket) = (ambiguity(&head), upgrade.is_some());
        let mut incoming = IncomingRequest { head, body, ambiguity, asks_for_websocket, tunnel: None };
        let progress = begun.begin(requests.worker());
        let (handler, guard) = (handler.clone(), RequestGuard::new(requests.clone(), Some(progress.clone())));
        let streams = upgrade.is_some().then(|| begun.clone());
        async move {
            let mut response = Response::default();
            handler.handle(&mut incoming, &mut response, guard).await;
            if let Some((upgrade, streams)) = upgrade.zip(streams) {
                if let Some(tunnel) = incoming.tunnel.take() {
                    streams.begin_tunnel(&progress);
                    spawn_local(run(tunnel, upgrade, progress.clone()));
                } else if response.status().is_success() {
                    // The client would take it for a tunnel (RFC 8441, section 5).
                    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
                }
            }
            Ok::<_, Infallible>(response.map(|body| StreamBody::new(body, progress)))
        }
    });
    let Http2 { max_streams, max_header_list } = limits.server().http2;
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .max_header_list_size(max_header_list)
        .enable_connect_protocol()
        .max_send_buf_size(SEND_BUFFER)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let io = MultiplexedIo::new(stream.clone(), state.clone());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io.clone()), service));
    let mut is_told = false;
    let mut closing = pin!(sleep(CLOSES_WITHIN));
    let ended = poll_fn(|cx| {
        match state.poll_end(cx) {
            Some(End::Now(reason)) => return Poll::Ready(Err(reason)),
            Some(End::AfterRequest) => {
                if !is_told {
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                }
                if state.is_in_flight() {
                    closing.as_mut().reset(tokio::time::Instant::now() + CLOSES_WITHIN);
                } else if closing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(CloseReason::Idle));
                }
            }
            None => {}
        }
        connection.as_mut().poll(cx).map(Ok)
    });
    let ended = ended.await;
    let refused = io.opened().saturating_sub(served.get());
    if refused > 0 {
        limits.http2_errors().refused(refused);
        tracing::debug!(refused, %peer, "requests were not valid or too large, or there were too many at once");
    }
    match ended {
        Ok(Ok(())) | Err(CloseReason::Gone) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, %peer, "connection failed");
            match io.violation() {
                Some(Violation::Flood) => io.go_away(ErrorCode::ENHANCE_YOUR_CALM),
                Some(Violation::NoSettings | Violation::PseudoTrailer) => io.go_away(ErrorCode::PROTOCOL_ERROR),
                None => {}
            }
        }
        Err(CloseReason::Idle) => io.go_away(ErrorCode::NO_ERROR),
        Err(CloseReason::SlowHead) => io.go_away(ErrorCode::ENHANCE_YOUR_CALM),
        Err(CloseReason::NotReading) => limits.stalled(peer),
    }
}

/// Runs a tunnel through a stream, as soon as the response that accepts it is on its way.
async fn run(tunnel: Tunnel, upgrade: OnUpgrade, progress: Rc<Progress>) {
    if let Ok(stream) = upgrade.await {
        progress.goes_on();
        tunnel(Box::new(TokioIo::new(stream))).await;
        // The library may still have to send the last bytes.
        progress.waits();
    }
}

/// Makes one line of the cookies of a request, which a client may send in several (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let mut joined = BytesMut::from(first.as_bytes());
    for line in [second].into_iter().chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    // Each of them is a value, and so are all of them.
    if let Ok(joined) = HeaderValue::from_maybe_shared(joined.freeze()) {
        headers.insert(header::COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_become_one_line() {
        for (lines, expected) in
            [(&[][..], None), (&["a=1"], Some("a=1")), (&["a=1", "b=2; c=3", ""], Some("a=1; b=2; c=3; "))]
        {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| {
                headers.append(header::COOKIE, HeaderValue::from_static(line));
            });
            join_cookies(&mut headers);
            let joined: Vec<_> = headers.get_all(header::COOKIE).iter().map(|line| line.to_str().unwrap()).collect();
            assert_eq!(joined, Vec::from_iter(expected));
        }
    }
}
