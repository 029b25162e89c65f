//! One connection to an upstream server: bytes out, bytes in.
//!
//! Whoever uses it drives it from its own task. HTTP/1 towards upstreams is spoken here rather than by a general
//! client, whose connection is a task of its own and costs two wake-ups and some copies per request.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use super::stall::StallTimer;
use crate::net::keep_alive;

/// Room for a read: a head and a small body at first, more once a body proves large.
const SMALL_READ: usize = 8 * 1024;
const LARGE_READ: usize = 64 * 1024;

/// A connection with its buffers.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    stream: TcpStream,
    /// The address of the server.
    pub(super) peer: SocketAddr,
    /// Received and not taken yet.
    pub(super) received: BytesMut,
    /// To be sent.
    pub(super) sending: Vec<u8>,
    sent: usize,
    /// How long either side may take.
    pub(super) stall: StallTimer,
    /// When it was made, as its pool knows.
    pub(super) connected_at: Instant,
    /// When it was last given back, as its pool knows.
    pub(super) rested_at: Instant,
}

impl UpstreamConnection {
    /// Connects to the first of these addresses that takes the connection. Its age counts from `now`.
    pub(super) async fn connect(addresses: &[SocketAddr], now: Instant) -> io::Result<Box<Self>> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let peer = stream.peer_addr()?;
        let (received, sending, stall) = (BytesMut::new(), Vec::new(), StallTimer::new());
        Ok(Box::new(Self { stream, peer, received, sending, sent: 0, stall, connected_at: now, rested_at: now }))
    }

    /// Sends all that waits to be sent.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.sending.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.sending[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.sending.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// How much waits to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.sending.len() - self.sent
    }

    /// Receives more; 0 if the other side has closed.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, large: bool) -> Poll<io::Result<usize>> {
        if self.received.is_empty() {
            // Back to the beginning of the buffer.
            self.received.clear();
        }
        // Room that was handed on as a body is free again once that is gone.
        self.received.reserve(if large { LARGE_READ } else { SMALL_READ });
        pin!(self.stream.read_buf(&mut self.received)).poll(cx)
    }

    /// Whether a resting connection is still open, with nothing on it. Asks what the last poll of the system
    /// found and makes no system call while nothing has happened. Not by polling: a task that has polled much is
    /// put off, and would take all the rest for quiet.
    pub(super) fn is_quiet(&self) -> bool {
        // Otherwise closed, or an answer that nobody asked for; or nothing after all.
        let quiet = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.received.is_empty() && self.sending.is_empty() && self.stream.try_read(&mut [0; 1]).is_err_and(quiet)
    }
}
