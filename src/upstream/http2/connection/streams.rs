//! The streams of a connection of HTTP/2, each from its request to the end of its response, and what is recorded when it
//! ends. Of those that are cancelled at once, some are reset later than others.
//!
//! Clients share connections until it is known which of them cancel many requests (`clients.rs`). Several of them may cancel
//! at once, and servers end a connection on which too many streams are reset at once, with the requests of all others.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::Request;

use super::{Http2Connection, SPARE_TIMERS, State};
use crate::server::ReceivedBody;
use crate::upstream::endpoint::{Endpoint, KeptPlace};
use crate::upstream::http2::clients::ClientRequest;
use crate::upstream::stall::StallTimer;

/// The streams that are reset between two checks of a connection. Servers of the library h2 end a connection with more than
/// 20 resets that they have not read.
const AT_ONCE: usize = 10;

pub(in crate::upstream) struct OpenStream {
    pub(in crate::upstream::http2) connection: Rc<Http2Connection>,
    pub(super) client: ClientRequest,
    pub(in crate::upstream::http2) is_new: bool,
    /// Whether the server has the request and neither side has ended the stream.
    pub(super) is_sent: Cell<bool>,
    /// Sends the request, and keeps the stream open even if nobody waits for its response any more.
    pub(in crate::upstream::http2) sender: Option<SendStream<Bytes>>,
    pub(super) stall: Option<StallTimer>,
}

impl OpenStream {
    pub(in crate::upstream::http2) fn stall(&mut self) -> &mut StallTimer {
        self.stall.get_or_insert_with(StallTimer::new)
    }

    /// Sends the head of the request, which may end it. Fails when the connection has ended, or the server has announced its
    /// end. Nothing was sent then.
    pub(in crate::upstream::http2) fn send(
        &self,
        head: Request<()>,
        is_end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let sent = self.connection.requests.clone().send_request(head, is_end)?;
        self.is_sent.set(true);
        Ok(sent)
    }

    /// The body of the response that has begun.
    pub(in crate::upstream::http2) fn receives(&self, body: RecvStream) -> ReceivedBody {
        self.connection.state.bodies.add(body)
    }

    /// The stream has ended, so it will not be reset.
    pub(in crate::upstream::http2) fn has_ended(&self) {
        self.is_sent.set(false);
    }

    /// The response is complete, but the stream has not ended. So it is reset, which no client has caused.
    pub(in crate::upstream::http2) fn is_left(&self) {
        self.is_sent.set(false);
        self.connection.state.count_reset();
    }

    /// Counts the body of the request as one that is being sent, until the result is dropped.
    pub(in crate::upstream::http2) fn upload(&self) -> Upload {
        let state = self.connection.state.clone();
        state.uploads.set(state.uploads.get() + 1);
        Upload(state)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let Http2Connection { state, timers, cancelled, endpoint, .. } = &*self.connection;
        let State { streams, of_server, .. } = &**state;
        streams.set(streams.get() - 1);
        of_server.set(of_server.get() - 1);
        if self.is_sent.get() {
            state.count_reset();
            self.client.is_cancelled();
            if self.connection.is_shared.get() && streams.get() > 0 {
                cancelled.add(self.sender.take(), endpoint);
            }
        }
        let mut timers = timers.borrow_mut();
        if timers.len() < SPARE_TIMERS {
            timers.extend(self.stall.take());
        }
    }
}

pub(in crate::upstream::http2) struct Upload(Rc<State>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.uploads.set(self.0.uploads.get() - 1);
    }
}

/// The streams of cancelled requests on one connection.
#[derive(Debug)]
pub(in crate::upstream::http2) struct Cancelled {
    /// How many may be reset until the next check.
    left: Cell<usize>,
    /// Keeps the streams open that are reset later, and then frees their places at the server.
    later: RefCell<Vec<(SendStream<Bytes>, KeptPlace)>>,
    /// Whether the connection has ended, so that nothing is reset.
    is_over: Cell<bool>,
}

impl Default for Cancelled {
    fn default() -> Self {
        Self { left: Cell::new(AT_ONCE), later: RefCell::default(), is_over: Cell::default() }
    }
}

impl Cancelled {
    pub(in crate::upstream::http2) fn count(&self) -> usize {
        self.later.borrow().len()
    }

    /// Resets a stream to `endpoint` that `sender` keeps open, now or later. Without a sender it is reset already.
    fn add(&self, sender: Option<SendStream<Bytes>>, endpoint: &Arc<Endpoint>) {
        match sender {
            Some(sender) if self.left.get() == 0 && !self.is_over.get() => {
                self.later.borrow_mut().push((sender, KeptPlace::new(endpoint)));
            }
            _ => self.left.set(self.left.get().saturating_sub(1)),
        }
    }

    /// Resets some of the streams that have waited. Called at intervals.
    pub(super) fn check(&self) {
        let mut later = self.later.borrow_mut();
        let now = AT_ONCE.min(later.len());
        later.drain(..now);
        self.left.set(AT_ONCE - now);
    }
}

/// Says when it is dropped that the connection has ended, to whatever waits for it.
pub(super) struct EndOfCancelled(pub(super) Weak<Cancelled>);

impl Drop for EndOfCancelled {
    fn drop(&mut self) {
        if let Some(cancelled) = self.0.upgrade() {
            cancelled.is_over.set(true);
            cancelled.later.borrow_mut().clear();
        }
    }
}
