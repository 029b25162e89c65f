//! A connection of HTTP/2 with a client (RFC 9113): many requests on one connection, each of which is limited, counted and
//! bounded in time by itself.
//!
//! The HTTP library bounds what a client can make it keep. It does not end a stream whose client grants no more window, and
//! goes on with some floods; [`streams`] and [`frame_check`] do that.
//!
//! The library is h2 without hyper's server around it, which can send no interim response in HTTP/2, and hides whether
//! a response waits for window. Each request has a task of its own, so a stream that waits holds up no other. The
//! frames of all streams that had something to send leave in one write.

mod frame_check;
mod frames;
mod multiplexed_io;
mod request_head;
mod request_stream;
mod send_window;
mod stream_body;
mod stream_tunnel;
mod streams;
mod trailer_check;

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{Builder, Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::task::spawn_local;

#[cfg(any(test, fuzzing))]
pub(crate) use frame_check::check as check_frames;
pub use frames::{Frames, PREFACE, Piece, kind};
pub use send_window::poll_granted;
pub(super) use stream_body::StreamBody;
pub use streams::InterimResponses;

use frame_check::Violation;
use multiplexed_io::MultiplexedIo;
use streams::Streams;

use super::connection_limits::ConnectionLimits;
use super::connection_state::ConnectionState;
use super::drive::{Ended, drive};
use super::http2_errors::ErrorCode;
use super::lifecycle::{CloseReason, Event};
use super::request_guard::RequestGuard;
use super::{ConnectedClient, Handler};
use crate::config::Http2;
use crate::net::ClientStream;

/// How many bytes of a response wait in the library for the client, for each stream.
const SEND_BUFFER: usize = 64 << 10;
/// How many bytes a client may send ahead, on a stream and on the connection: enough for a gigabit at 5 ms.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Serves requests until the connection ends.
pub(super) async fn serve<H: Handler>(
    limits: &ConnectionLimits,
    (handler, client): (Rc<H>, &ConnectedClient),
    stream: &ClientStream,
    state: &Rc<ConnectionState>,
) {
    state.record(Event::TellsItsEnd);
    let peer = client.address;
    let streams = Rc::new(Streams::new(state.worker().clone()));
    state.set_streams(streams.clone());
    let io = MultiplexedIo::new(stream.clone(), state.clone(), streams.clone(), client.traffic);
    let mut requests = Requests::new(io.clone(), limits.server().http2);
    let mut served = 0;
    // The library reads all that has come, and the client is told whether that was served.
    let ended = drive(
        state,
        || false,
        |cx, finishes| {
            if finishes {
                requests.finish();
            }
            while let Some((request, mut responder)) = ready!(requests.poll_next(cx)).transpose()? {
                if state.lifecycle().serves_no_more() {
                    // The client may not know yet that the connection ends. Others who share it may send theirs again.
                    responder.send_reset(Reason::REFUSED_STREAM);
                    continue;
                }
                served += 1;
                let stream = streams.begin(responder);
                let guard = RequestGuard::new(state.clone(), Some(stream.clone()));
                spawn_local(request_stream::serve(handler.clone(), request, stream, guard, state.clone()));
            }
            Poll::Ready(Ok::<_, h2::Error>(()))
        },
    );
    let ended = ended.await;
    let refused = io.opened().saturating_sub(served);
    if refused > 0 {
        limits.http2_errors().refused(refused);
        tracing::debug!(refused, %peer, "requests were not valid, too large, too many at once, or came after the end");
    }
    match ended {
        Ended::Closed | Ended::Rests | Ended::Cut(CloseReason::Gone) => {}
        Ended::Failed(error) => {
            tracing::debug!(%error, %peer, "connection failed");
            match io.violation() {
                Some(Violation::Flood) => io.go_away(ErrorCode::ENHANCE_YOUR_CALM),
                Some(Violation::NoSettings | Violation::PseudoTrailer) => io.go_away(ErrorCode::PROTOCOL_ERROR),
                None => {}
            }
        }
        Ended::Cut(CloseReason::Idle) => io.go_away(ErrorCode::NO_ERROR),
        Ended::Cut(CloseReason::SlowHead | CloseReason::Unanswered) => io.go_away(ErrorCode::ENHANCE_YOUR_CALM),
        Ended::Cut(CloseReason::NotReading) => limits.stalled(peer),
    }
}

/// The requests of a connection. To ask for the next one also lets the library send and receive.
struct Requests {
    stage: Stage,
    is_finishing: bool,
}

enum Stage {
    Handshake(Handshake<MultiplexedIo, Bytes>),
    Open(Connection<MultiplexedIo, Bytes>),
}

/// A request, and where its response goes.
type Next = (Request<RecvStream>, SendResponse<Bytes>);

impl Requests {
    fn new(io: MultiplexedIo, config: Http2) -> Self {
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(config.max_streams)
            .max_header_list_size(config.max_header_list)
            .enable_connect_protocol()
            .max_send_buffer_size(SEND_BUFFER)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Self { stage: Stage::Handshake(builder.handshake(io)), is_finishing: false }
    }

    /// Tells the client to send no more requests.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_finishing, true)
            && let Stage::Open(connection) = &mut self.stage
        {
            connection.graceful_shutdown();
        }
    }

    /// The next request; `None` when the connection has ended.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Next, h2::Error>>> {
        loop {
            match &mut self.stage {
                Stage::Handshake(handshake) => {
                    let mut connection = ready!(Pin::new(handshake).poll(cx))?;
                    if self.is_finishing {
                        connection.graceful_shutdown();
                    }
                    self.stage = Stage::Open(connection);
                }
                Stage::Open(connection) => return connection.poll_accept(cx),
            }
        }
    }
}
