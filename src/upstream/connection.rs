//! One connection to an upstream server: it sends and receives bytes.
//!
//! The task of the request drives it. A general HTTP client would have a task of its own for each connection, which
//! costs two wake-ups and some copies per request.

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

/// How many bytes a read may return: enough for a head and a small body at first, and more if a body is large.
const SMALL_READ: usize = 8 * 1024;
const LARGE_READ: usize = 64 * 1024;

/// A connection with its buffers.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    stream: TcpStream,
    /// The address of the server.
    pub(super) peer: SocketAddr,
    /// Bytes that were received and not used yet.
    pub(super) received: BytesMut,
    /// Bytes to be sent.
    pub(super) sending: Vec<u8>,
    sent: usize,
    /// Limits how long either side may take.
    pub(super) stall: StallTimer,
    /// When it was made, by the clock of its pool.
    pub(super) connected_at: Instant,
    /// When it was last put into its pool, by the clock of the pool.
    pub(super) idle_since: Instant,
}

impl UpstreamConnection {
    /// Connects to the first of these addresses that accepts the connection. Its age counts from `now`.
    pub(super) async fn connect(addresses: &[SocketAddr], now: Instant) -> io::Result<Box<Self>> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let peer = stream.peer_addr()?;
        let (received, sending, stall) = (BytesMut::new(), Vec::new(), StallTimer::new());
        Ok(Box::new(Self { stream, peer, received, sending, sent: 0, stall, connected_at: now, idle_since: now }))
    }

    /// Sends all bytes that wait to be sent.
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

    /// How many bytes wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.sending.len() - self.sent
    }

    /// Receives more; 0 if the other side has closed.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, large: bool) -> Poll<io::Result<usize>> {
        if self.received.is_empty() {
            // The next bytes are written to the beginning of the buffer.
            self.received.clear();
        }
        // If the parts of the buffer that were passed on as a body are dropped, their memory is used again.
        self.received.reserve(if large { LARGE_READ } else { SMALL_READ });
        pin!(self.stream.read_buf(&mut self.received)).poll(cx)
    }

    /// Whether an idle connection is still open and has received nothing. This uses what the runtime knows and makes no
    /// system call if nothing has happened. It does not poll, because the runtime lets no task poll too often, and would
    /// then report every connection as quiet.
    pub(super) fn is_quiet(&self) -> bool {
        // Any other result means that the connection is closed, or has received a response without a request.
        let quiet = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.received.is_empty() && self.sending.is_empty() && self.stream.try_read(&mut [0; 1]).is_err_and(quiet)
    }
}
