//! One connection from its first byte to its last: PROXY protocol, TLS, HTTP, resting, and what is read after the end.
//!
//! After one second without a request, a connection drops the HTTP library's state, its buffers and its keys, and makes them
//! again when data arrives; a new connection begins so, too. With 4000 idle connections each takes 2.0 KiB instead of 16.7.
//!
//! If a connection were closed while its client still sends, the system would reset it and the response would be lost. So
//! input is discarded for a while; see [`Lifecycle::lingers_for`](super::lifecycle::Lifecycle::lingers_for).

use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::StatusCode;
use rustls::server::ServerConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection_limits::ConnectionPermit;
use super::connection_state::ConnectionState;
use super::connections::Connections;
use super::http1::AfterRequests;
use super::http2::PREFACE;
use super::lifecycle::{Event, Step};
use super::time_limits::{SILENCE, TimeLimits};
use super::{Acceptor, ConnectedClient, Handler, TlsPeer, http1, http2};
use crate::base::reason::Reason;
use crate::config::Challenge;
use crate::net::tls::ALPN_HTTP2;
use crate::net::{ClientStream, PreambleError, Traffic};

pub(super) async fn serve<H: Handler>(
    stream: TcpStream,
    client: ConnectedClient,
    acceptor: Rc<Acceptor<H>>,
    tls: Option<Arc<ServerConfig>>,
    mut registration: Registration,
    state: Rc<ConnectionState>,
) {
    let mut connection = Connection { stream: ClientStream::new(stream), client, state };
    if registration.place.expects_preamble && connection.read_preamble(&mut registration.place).await.is_break() {
        return;
    }
    // Boxed, what happens once takes memory only while it happens.
    if let Some(config) = tls
        && Box::pin(connection.start_tls(config, &acceptor)).await.is_break()
    {
        return;
    }
    let is_in_body = loop {
        if connection.rest().await.is_break() {
            break false;
        }
        // The HTTP library's state is large. Boxed, it takes no memory while the connection rests.
        match Box::pin(connection.serve_requests(&acceptor)).await {
            AfterRequests::Rest => {}
            AfterRequests::Close { is_in_body } => break is_in_body,
            AfterRequests::Tunnel(begin, stream) => {
                begin(stream).await;
                break false;
            }
        }
    };
    Box::pin(connection.end(is_in_body)).await;
    drop(connection);
    drop(registration);
}

struct Connection {
    stream: ClientStream,
    client: ConnectedClient,
    state: Rc<ConnectionState>,
}

impl Connection {
    /// Waits for the preamble of the PROXY protocol, and takes over the client's address from it. Ends the connection, without an
    /// answer, if there is no valid preamble or the address has too many connections.
    async fn read_preamble(&mut self, place: &mut ConnectionPermit) -> ControlFlow<()> {
        self.rest().await?;
        self.state.record(Event::HandshakeBegins);
        let Self { stream, client, state } = self;
        // Boxed, it takes no memory afterwards.
        let read = state.in_time(Box::pin(stream.socket.take_preamble())).await.unwrap_or(Err(PreambleError::TooLate));
        match read {
            Ok(preamble) => client.address = preamble.client.unwrap_or(client.address),
            // A health check that only connects is no error.
            Err(PreambleError::Nothing) => return ControlFlow::Break(()),
            Err(error) => {
                state.worker.limits.count_bad_preamble(client.address, &error);
                return ControlFlow::Break(());
            }
        }
        if !place.count_for(client.address.ip()) {
            return ControlFlow::Break(());
        }
        state.record(Event::HandshakeEnds);
        ControlFlow::Continue(())
    }

    /// Waits for the TLS handshake. Ends the connection if the handshake fails or takes too long.
    async fn start_tls<H: Handler>(&mut self, config: Arc<ServerConfig>, acceptor: &Acceptor<H>) -> ControlFlow<()> {
        self.rest().await?;
        self.state.record(Event::HandshakeBegins);
        let Self { stream, client, state } = self;
        let mut is_plain_http = false;
        let handshake = async {
            // A TLS record never begins with a letter, and the method of a request does.
            is_plain_http = stream.socket.first_byte().await.is_some_and(|byte| byte.is_ascii_alphabetic());
            if is_plain_http {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "HTTP without TLS"));
            }
            let challenges = &acceptor.challenges;
            let may_answer = client.traffic == Traffic::Requests && challenges.answer(Challenge::TlsAlpn01);
            let answer = async |name: &str| if may_answer { challenges.handshake(name).await } else { None };
            stream.start_tls(config, answer).await
        };
        let shaken = state.in_time(handshake).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()));
        acceptor.tls.count(&shaken);
        if let Ok(true) = shaken {
            self.end(false).await;
            return ControlFlow::Break(());
        }
        if let Err(error) = shaken {
            tracing::debug!(%error, peer = %client.address, "no TLS handshake");
            if is_plain_http {
                self.refuse_plain_http(acceptor).await;
            }
            return ControlFlow::Break(());
        }
        client.tls = stream.of_tls(TlsPeer::of).map(Rc::new);
        state.record(Event::HandshakeEnds);
        ControlFlow::Continue(())
    }

    async fn refuse_plain_http<H: Handler>(&self, acceptor: &Acceptor<H>) {
        let Self { stream, client, state } = self;
        let handler = (acceptor.connected)(client);
        http1::refuse(&handler, stream, state, StatusCode::BAD_REQUEST, Reason::PlainHttp, false);
        self.end(false).await;
    }

    /// Waits, with nothing but the socket, until the client sends something or the connection must end.
    async fn rest(&self) -> ControlFlow<()> {
        let Self { stream, state, .. } = self;
        state.record(Event::Rests);
        poll_fn(|cx| match state.step(cx, || stream.has_more()) {
            Step::Close(_) => Poll::Ready(ControlFlow::Break(())),
            // The next read reports an error, if there is one.
            _ => stream.poll_readable(cx).map(ControlFlow::Continue),
        })
        .await
    }

    async fn serve_requests<H: Handler>(&self, acceptor: &Acceptor<H>) -> AfterRequests {
        let Self { stream, client, state } = self;
        state.record(Event::Wakes);
        let handler = Rc::new((acceptor.connected)(client));
        if self.speaks_http2().await {
            // Boxed, it takes no memory in HTTP/1.1.
            Box::pin(http2::serve(handler, client, stream, state)).await;
            return AfterRequests::Close { is_in_body: false };
        }
        http1::serve(&acceptor.http1, &state.worker.limits, handler, client.address, stream, state).await
    }

    /// With TLS, ALPN decides; without, the client's preface (RFC 9113, section 3.3).
    async fn speaks_http2(&self) -> bool {
        let Self { stream, state, .. } = self;
        match stream.of_tls(|tls| tls.alpn_protocol() == Some(ALPN_HTTP2)) {
            Some(is_agreed_on) => is_agreed_on,
            None if state.lifecycle().is_fresh() => {
                state.in_time(stream.socket.begins_with(PREFACE)).await == Some(true)
            }
            None => false,
        }
    }

    /// Ends our side, and discards input until the client knows that.
    async fn end(&self, is_in_body: bool) {
        let Self { stream, state, .. } = self;
        let time_limits = TimeLimits::new(&state.worker.limits.server(), Duration::ZERO);
        let is_sending = is_in_body || stream.has_more();
        let lingers_for = state.lifecycle().lingers_for(is_sending, &time_limits, state.worker.now());
        let Some(longest) = lingers_for else { return };
        // Without TLS's close_notify, a client could not know that the last response is complete (RFC 8446, section 6.1).
        stream.finish();
        if !longest.is_zero() {
            let _ = timeout(longest, stream.socket.discard(Duration::from_millis(SILENCE))).await;
        }
    }
}

/// Unregisters a connection and frees its place, however its task ends.
pub(super) struct Registration {
    pub(super) connections: Rc<Connections>,
    pub(super) index: usize,
    pub(super) place: ConnectionPermit,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.leave(self.index);
    }
}
