//! A connection of HTTP/2 with a client (RFC 9113): many requests on one connection, each limited, counted and timed by itself.
//!
//! The library is h2 without hyper's server around it, which can send no interim response in HTTP/2, and hides whether a
//! response waits for window. [`streams`] and [`frame_check`] end what h2 would go on with. Each request has its own task, so a
//! stream that waits holds up no other. The frames of all streams that have something to send leave in one write.

mod frame_check;
mod frames;
mod kept_memory;
mod multiplexed_io;
mod received_bodies;
mod request_stream;
mod stream_io;
mod streams;
mod windows;

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
pub(super) use frames::PREFACE;
pub use frames::{Frames, Piece, flag, kind};
pub use received_bodies::{ReceivedBodies, ReceivedBody};
pub(super) use stream_io::StreamBody;
pub use streams::InterimResponses;
pub use windows::{Windows, poll_granted};

use frame_check::Violation;
use kept_memory::{Allowance, Pool};
use multiplexed_io::MultiplexedIo;
use streams::Streams;

use super::connection_state::{ConnectionState, Ended, RequestGuard, drive};
use super::lifecycle::{CloseReason, Event};
use super::{ConnectedClient, Handler};
use crate::config::Http2;
use crate::net::{ClientStream, Traffic};

/// How much of a response may wait in the library for the client, for each stream, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// How much a client may send ahead of upstreams on the streams of a connection: 100 Mbit/s at 20 ms on each of a few.
const WINDOWS: Windows = Windows { largest: 256 << 10, smallest: 16 << 10, budget: 4 << 20 };
/// What a client may always send ahead on a connection, and the most if many bodies wait for upstreams.
const CONNECTION_WINDOW: u32 = 1 << 20;
const MOST_OF_CONNECTION: u32 = 16 << 20;
/// What all connections of the process may send ahead beyond [`CONNECTION_WINDOW`].
static SENT_AHEAD: Pool = Pool::new(128 << 20);
/// A proxy speaks for many clients, and resets what its clients have left or what has taken too long. So it may send this
/// many times as many frames that carry nothing.
const CLIENTS_OF_PROXY: u64 = 100;
/// The least number of streams that a proxy may have at once on a connection. A proxy that opens one during a burst begins
/// streams before it can know a bound. If some were refused, it would fail requests of its clients, or let those pass about
/// which it asks. Memory has bounds for connections, whatever the number of streams.
const STREAMS_OF_PROXY: u32 = 10_000;
/// The most requests that a client may reset before they are read: the library's default.
const MOST_UNREAD_RESETS: usize = 20;
/// On how many streams that the gateway has reset within a second a client may still send frames: the library's default.
const RECENT_RESETS: usize = 50;
/// The most frames for which the gateway may reset a stream, such as those that come after other resets: the library's default.
const MOST_INVALID: usize = 1024;

pub(super) async fn serve<H: Handler>(
    handler: Rc<H>,
    client: &ConnectedClient,
    stream: &ClientStream,
    state: &Rc<ConnectionState>,
) {
    state.record(Event::TellsItsEnd);
    let (peer, limits) = (client.address, &state.worker.limits);
    let streams = Rc::new(Streams::new(state.worker.clone()));
    *state.streams.borrow_mut() = Some(streams.clone());
    let is_proxy = client.traffic == Traffic::Decisions || limits.server().trusts(peer.ip());
    let speaks_for = if is_proxy { CLIENTS_OF_PROXY } else { 1 };
    let io = MultiplexedIo::new(stream.clone(), state.clone(), streams.clone(), speaks_for);
    let mut config = limits.server().http2;
    if is_proxy {
        config.max_streams = config.max_streams.max(STREAMS_OF_PROXY);
    }
    let mut requests = Requests::new(io.clone(), config, speaks_for);
    let mut served = 0;
    // The library reads all that has come, and the client learns whether that was served.
    let ended = drive(
        state,
        || false,
        |cx, finishes| {
            if finishes {
                requests.finish();
            }
            loop {
                let Poll::Ready(next) = requests.poll_next(cx) else {
                    if streams.bodies.take() || requests.grant(streams.bodies.count()) {
                        continue;
                    }
                    return Poll::Pending;
                };
                let Some((request, responder)) = next.transpose()? else { return Poll::Ready(Ok::<_, h2::Error>(())) };
                served += 1;
                let (head, received) = request.into_parts();
                let body = (!received.is_end_stream()).then(|| streams.bodies.add(received));
                let request = Request::from_parts(head, body);
                let stream = streams.begin(responder);
                let guard = RequestGuard::new(state.clone(), Some(stream.clone()));
                spawn_local(request_stream::serve(handler.clone(), request, stream, guard, state.clone()));
            }
        },
    );
    let ended = ended.await;
    let refused = io.opened().saturating_sub(served);
    if refused > 0 {
        limits.http2_errors.refused_requests.add(refused);
        tracing::debug!(refused, %peer, "requests were not valid, too large, too many at once, or came after the end");
    }
    match ended {
        Ended::Closed | Ended::Rests | Ended::Cut(CloseReason::Gone | CloseReason::Unanswered) => {}
        Ended::Failed(error) => {
            tracing::debug!(%error, %peer, "connection failed");
            match io.violation() {
                Some(Violation::Flood) => io.go_away(Reason::ENHANCE_YOUR_CALM),
                Some(Violation::NoSettings | Violation::PseudoTrailer) => io.go_away(Reason::PROTOCOL_ERROR),
                None => {}
            }
        }
        Ended::Cut(CloseReason::Idle) => io.go_away(Reason::NO_ERROR),
        Ended::Cut(CloseReason::SlowHead) => io.go_away(Reason::ENHANCE_YOUR_CALM),
        Ended::Cut(CloseReason::NotReading) => limits.stalled(peer),
    }
}

/// The requests of a connection. Polling for the next one also lets the library send and receive.
struct Requests {
    stage: Stage,
    is_finishing: bool,
    /// The windows of a stream and of the connection that the library knows, and the connection's share of [`SENT_AHEAD`].
    stream_window: u32,
    connection_window: u32,
    sent_ahead: Allowance,
}

enum Stage {
    Handshake(Handshake<MultiplexedIo, Bytes>),
    Open(Connection<MultiplexedIo, Bytes>),
}

type NextRequest = (Request<RecvStream>, SendResponse<Bytes>);

impl Requests {
    /// A client that speaks for at most `speaks_for` others.
    fn new(io: MultiplexedIo, config: Http2, speaks_for: u64) -> Self {
        let clients = usize::try_from(speaks_for).unwrap_or(usize::MAX);
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(config.max_streams)
            .max_header_list_size(config.max_header_list)
            .enable_connect_protocol()
            .max_send_buffer_size(SEND_BUFFER)
            .max_pending_accept_reset_streams(MOST_UNREAD_RESETS.saturating_mul(clients))
            .max_concurrent_reset_streams(RECENT_RESETS.saturating_mul(clients))
            .max_local_error_reset_streams(Some(MOST_INVALID.saturating_mul(clients)))
            // The library keeps few small frames, because they are taken out of it, but it also counts those that it drops.
            .data_frame_budget(usize::MAX)
            .initial_window_size(WINDOWS.largest)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Self {
            stage: Stage::Handshake(builder.handshake(io)),
            is_finishing: false,
            stream_window: WINDOWS.largest,
            connection_window: CONNECTION_WINDOW,
            sent_ahead: Allowance::new(&SENT_AHEAD),
        }
    }

    fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_finishing, true)
            && let Stage::Open(connection) = &mut self.stage
        {
            connection.graceful_shutdown();
        }
    }

    /// Grants windows for so many bodies, so that bodies that wait for their upstreams do not block others. Returns whether the
    /// library has something to send.
    fn grant(&mut self, bodies: usize) -> bool {
        let Stage::Open(connection) = &mut self.stage else { return false };
        let stream_window = WINDOWS.of_stream(bodies);
        // While the client has not confirmed one change, there can be no other. Its confirmation polls this again.
        let changes = stream_window != self.stream_window && connection.set_initial_window_size(stream_window).is_ok();
        if changes {
            self.stream_window = stream_window;
        }
        let wanted = WINDOWS.of_connection(bodies).clamp(CONNECTION_WINDOW, MOST_OF_CONNECTION);
        if wanted == self.connection_window {
            return changes;
        }
        let more = self.sent_ahead.set((wanted - CONNECTION_WINDOW) as usize);
        let window = CONNECTION_WINDOW + u32::try_from(more).unwrap_or(0);
        let grows = window > self.connection_window;
        if window != self.connection_window {
            connection.set_target_window_size(window);
            self.connection_window = window;
        }
        changes || grows
    }

    /// `None` when the connection has ended.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<NextRequest, h2::Error>>> {
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
