//! One connection to an upstream server: it sends and receives bytes. The task of the request drives it.
//!
//! With hyper's client, which has a task for each connection, a request took 38 500 instructions, and takes 24 100 without
//! it (counted by callgrind, with the headers of the limit). A message that can be read in two ways is refused, in both
//! directions.
//!
//! A connection has buffers only while they are not empty: it takes those of its worker, and gives them back. So idle
//! connections take no memory for buffers, and used buffers stay in the processor's cache.

use std::cell::{RefCell, RefMut};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use std::{io, mem};

use bytes::BytesMut;
use http::Version;
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::endpoint::DestinationAddress;
use super::in_flight::InFlight;
use super::stall::StallTimer;
use super::stream::UpstreamStream;
use crate::net::{Duplex, Rewound};

/// How many bytes a read may return if a body is large. Smaller reads use a buffer of the worker.
const LARGE_READ: usize = 64 * 1024;
/// The same for a client that may have hundreds of requests on one connection, and may read none of the responses.
const MULTIPLEXED_READ: usize = 16 * 1024;
/// Enough for a head and a small body, in bytes.
const SMALL: usize = 8 * 1024;

/// A connection. It has buffers only while they are not empty.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    pub(super) stream: UpstreamStream,
    pub(super) peer: DestinationAddress,
    pub(super) received: BytesMut,
    pub(super) sending: Vec<u8>,
    sent: usize,
    spare: Rc<SpareBuffers>,
    large_read: usize,
    pub(super) stall: StallTimer,
    /// The server was told of this client, so the connection is for no other.
    pub(super) announced: Option<SocketAddr>,
    /// Whether it belongs to one connection of a client, see `bound.rs`.
    pub(super) is_bound: bool,
    /// Whether it has carried no request yet.
    pub(super) is_new: bool,
    /// By the clock of its pool.
    pub(super) connected_at: Instant,
    /// How long its server keeps it without a request, if the last response has said so, and when that is over.
    pub(super) kept_for: Option<Duration>,
    pub(super) closes_at: Option<Instant>,
    /// When it was last put into its pool, by the clock of the pool.
    pub(super) idle_since: Instant,
}

/// The upstream's side of a tunnel. Dropping it closes the connection.
pub struct UpstreamTunnel {
    pub peer: DestinationAddress,
    /// What the server sends after its response, and what it is sent.
    pub stream: Box<dyn Duplex>,
    pub(super) _in_flight: Option<InFlight>,
}

impl UpstreamConnection {
    pub(super) fn into_tunnel(self) -> UpstreamTunnel {
        let stream = Rewound::new(self.received.freeze(), self.stream);
        UpstreamTunnel { peer: self.peer, stream: Box::new(stream), _in_flight: None }
    }

    /// Takes its buffers from `spare`. Its age counts from `now`. Fails when the stream is already closed.
    pub(super) fn new(stream: UpstreamStream, spare: &Rc<SpareBuffers>, now: Instant) -> io::Result<Box<Self>> {
        let peer = stream.peer()?;
        let (received, sending, stall) = (BytesMut::new(), Vec::new(), StallTimer::new());
        Ok(Box::new(Self {
            stream,
            peer,
            received,
            sending,
            sent: 0,
            spare: spare.clone(),
            large_read: LARGE_READ,
            stall,
            announced: None,
            is_bound: false,
            is_new: true,
            connected_at: now,
            kept_for: None,
            closes_at: None,
            idle_since: now,
        }))
    }

    /// Prepares for a request of a client that speaks this version.
    pub(super) fn serves(&mut self, version: Version) {
        self.sending = self.spare.sending.take();
        self.large_read = if version == Version::HTTP_2 { MULTIPLEXED_READ } else { LARGE_READ };
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.sending.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.sending[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        if !self.sending.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        }
        self.sending.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Gives the buffer back, because nothing more of the request is to be sent.
    pub(super) fn end_sending(&mut self) {
        self.sent = 0;
        self.spare.put_sending(mem::take(&mut self.sending));
    }

    pub(super) fn end_receiving(&mut self) {
        if self.received.is_empty() {
            self.spare.put_received(mem::take(&mut self.received));
        }
    }

    /// How many bytes wait to be sent. All encrypted bytes together count as one.
    pub(super) fn unsent(&self) -> usize {
        self.sending.len() - self.sent + usize::from(self.stream.is_unsent())
    }

    /// Receives more; 0 if the other side has closed.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, large: bool) -> Poll<io::Result<usize>> {
        if self.received.capacity() == 0 && !large {
            let mut buffer = self.spare.received();
            let length = ready!(pin!(self.stream.read_buf(&mut *buffer)).poll(cx))?;
            self.received = mem::take(&mut buffer);
            return Poll::Ready(Ok(length));
        }
        if self.received.is_empty() {
            // The next bytes are written to the beginning of the buffer.
            self.received.clear();
        }
        // Memory of the buffer that was passed on as a body is used again once the body is dropped.
        self.received.reserve(if large { self.large_read } else { SMALL });
        pin!(self.stream.read_buf(&mut self.received)).poll(cx)
    }

    /// Whether an idle connection is still open and has received nothing: anything else would be a response without a request.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.received.is_empty() && self.sending.is_empty() && self.stream.is_quiet()
    }
}

/// The unused buffers of one worker: one of each kind, since most requests give theirs back before the next one needs them.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    received: RefCell<BytesMut>,
    sending: RefCell<Vec<u8>>,
}

impl SpareBuffers {
    /// An empty buffer with room for received bytes. A caller that has received some takes it.
    pub(super) fn received(&self) -> RefMut<'_, BytesMut> {
        let mut buffer = self.received.borrow_mut();
        buffer.reserve(SMALL);
        buffer
    }

    /// `buffer` must be empty.
    fn put_received(&self, mut buffer: BytesMut) {
        // If parts of it were passed on and are still in use, others would keep its memory, too.
        if buffer.capacity() <= SMALL && buffer.try_reclaim(SMALL) {
            self.received.replace(buffer);
        }
    }

    /// Takes back a buffer, from which all was sent or nothing more will be.
    fn put_sending(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.sending.replace(buffer);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn receive(spare: &SpareBuffers) -> (BytesMut, Bytes) {
        let mut buffer = mem::take(&mut *spare.received());
        buffer.extend_from_slice(b"head");
        let head = buffer.split().freeze();
        (buffer, head)
    }

    #[test]
    fn a_buffer_is_used_again_unless_a_part_of_it_is_still_in_use() {
        let spare = SpareBuffers::default();
        let kept = || spare.received.borrow().capacity();
        let (buffer, head) = receive(&spare);
        spare.put_received(buffer);
        assert_eq!((&head[..], kept()), (&b"head"[..], 0));
        let (buffer, head) = receive(&spare);
        drop(head);
        spare.put_received(buffer);
        assert_eq!(kept(), SMALL);
    }

    #[test]
    fn a_large_buffer_is_not_kept() {
        let spare = SpareBuffers::default();
        spare.put_received(BytesMut::with_capacity(8 * SMALL));
        assert_eq!(spare.received.borrow().capacity(), 0);
    }

    #[test]
    fn nothing_stays_in_a_buffer_for_sending() {
        let spare = SpareBuffers::default();
        spare.put_sending(b"of another request".to_vec());
        let buffer = spare.sending.take();
        assert!(buffer.is_empty() && buffer.capacity() > 0);
    }
}
