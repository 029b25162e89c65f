//! The streams of a connection of HTTP/2: what the task of each shares with its request, and with the checks of the time
//! limits. A client may grant a stream no window for as long as it likes; after `body_timeout` the stream is reset, and the
//! other streams go on. h2 gets no more of a response than the window; the rest waits in the stream's task. Interim responses
//! are queued without a limit of h2, so their size is bounded for each request.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, Response, StatusCode};

use super::kept_memory::Unsent;
use super::received_bodies::ReceivedBodies;
use crate::base::http::header_rules::remove_hop_by_hop;
use crate::server::connection_state::{RequestStream, TimedStreams};
use crate::server::time_limits::{TimeLimits, is_over};
use crate::server::worker_state::{Coarse, WorkerState};

/// The most bytes of fields in all interim responses to one request. They are queued even if the client does not read.
/// Early hints are a few links.
const MAX_INTERIM_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Streams {
    worker: Rc<WorkerState>,
    /// Streams that have waited for the client at least once, and may have ended.
    waiting: RefCell<Vec<Weak<Stream>>>,
    /// Interim responses that the library has got and may not have sent.
    unsent_interim: Cell<u32>,
    /// Bytes of responses that the library has got and not sent.
    unsent: RefCell<Unsent>,
    /// Bodies of requests that are not passed on completely, and the clients' sides of tunnels.
    pub(super) bodies: Rc<ReceivedBodies>,
}

/// Lasts from a request to the end of its response.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Rc<Streams>,
    responder: RefCell<SendResponse<Bytes>>,
    /// Once the response has begun, there are no interim responses.
    is_answered: Cell<bool>,
    /// Whether the client waits for `100 Continue` before it sends the body of its request.
    pub(super) expects_continue: Cell<bool>,
    /// How many bytes further interim responses may have.
    interim_left: Cell<usize>,
    /// Since when a part of the response waits for window.
    waits_since: Cell<Option<Coarse>>,
    /// The longest such wait, if the request has a limit of its own.
    reads_within: Cell<Option<Coarse>>,
    is_listed: Cell<bool>,
    is_reset: Cell<bool>,
}

impl Streams {
    pub(super) fn new(worker: Rc<WorkerState>) -> Self {
        let (waiting, unsent_interim, unsent, bodies) = Default::default();
        Self { worker, waiting, unsent_interim, unsent, bodies }
    }

    /// A stream begins, whose response is sent through `responder`.
    pub(super) fn begin(self: &Rc<Self>, responder: SendResponse<Bytes>) -> Rc<Stream> {
        Rc::new(Stream {
            streams: self.clone(),
            responder: RefCell::new(responder),
            is_answered: Cell::new(false),
            expects_continue: Cell::new(false),
            interim_left: Cell::new(MAX_INTERIM_BYTES),
            waits_since: Cell::new(None),
            reads_within: Cell::new(None),
            is_listed: Cell::new(false),
            is_reset: Cell::new(false),
        })
    }

    pub(super) fn sent(&self, stream: u32, bytes: u32) {
        self.unsent.borrow_mut().remove(stream, bytes as usize);
    }

    /// By either side, so that nothing more of it is sent.
    pub(super) fn is_reset(&self, stream: u32) {
        self.unsent.borrow_mut().remove(stream, usize::MAX);
    }

    /// Whether a head that is being sent counts as that of an interim response. The bytes do not tell which head it is, so each
    /// interim response makes one head count.
    pub(super) fn sends_interim(&self) -> bool {
        let unsent = self.unsent_interim.get();
        self.unsent_interim.set(unsent.saturating_sub(1));
        unsent > 0
    }
}

impl TimedStreams for Streams {
    fn reset_stalled(&self, now: Coarse, limits: &TimeLimits) {
        self.waiting.borrow_mut().retain(|stream| {
            let Some(stream) = stream.upgrade() else { return false };
            let limit = limits.reading(stream.reads_within.get());
            if is_over(stream.waits_since.get(), limit, now) {
                stream.is_reset.set(true);
                // This wakes the stream's task, which ends then.
                stream.responder.borrow_mut().send_reset(Reason::CANCEL);
            }
            true
        });
    }
}

impl Stream {
    pub(super) fn worker(&self) -> &WorkerState {
        &self.streams.worker
    }

    /// Ready when the client has reset the stream, or the connection has ended, before the response has begun.
    pub(super) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.responder.borrow_mut().poll_reset(cx).map(|_| ())
    }

    /// Begins the response, and ends the stream if it `is_end`. Returns the sender of the body. Fails when the stream has
    /// ended.
    pub(super) fn respond(&self, head: Response<()>, is_end: bool) -> Result<SendStream<Bytes>, h2::Error> {
        self.is_answered.set(true);
        self.responder.borrow_mut().send_response(head, is_end)
    }

    /// Resets the stream instead of a response. The code says that the client asks for too much (RFC 9113, section 7). After
    /// REFUSED_STREAM the client might repeat the request at once (section 8.7), and CANCEL gives no reason.
    pub(super) fn refuse(&self) {
        self.responder.borrow_mut().send_reset(Reason::ENHANCE_YOUR_CALM);
    }

    /// Sends an interim response without its hop-by-hop fields, unless the response has begun or the interim responses become
    /// too large.
    pub(super) fn inform(&self, mut head: Response<()>) {
        remove_hop_by_hop(head.headers_mut());
        let Some(left) = self.interim_left.get().checked_sub(size(head.headers())) else { return };
        if self.is_answered.get() {
            return;
        }
        self.interim_left.set(left);
        match self.responder.borrow_mut().send_informational(head) {
            Ok(()) => self.streams.unsent_interim.set(self.streams.unsent_interim.get() + 1),
            Err(error) => tracing::debug!(%error, "an interim response is not sent"),
        }
    }

    /// The body of the request is asked for, and none of it has come: tells the client to send the body, if it waits for that
    /// (RFC 9110, section 10.1.1). So a client that is refused sends no body.
    pub(super) fn asks_for_body(&self) {
        if self.expects_continue.take() {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::CONTINUE;
            self.inform(head);
        }
    }

    pub(super) fn waits(self: &Rc<Self>) {
        if self.waits_since.get().is_some() {
            return;
        }
        self.waits_since.set(Some(self.worker().now()));
        if !self.is_listed.replace(true) {
            let mut waiting = self.streams.waiting.borrow_mut();
            if waiting.len() == waiting.capacity() {
                waiting.retain(|stream| stream.strong_count() > 0);
            }
            waiting.push(Rc::downgrade(self));
        }
    }

    /// Ready when the library may get more of responses, as far as the client reads what is sent to it.
    pub(super) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        self.streams.unsent.borrow_mut().poll_room(cx)
    }

    /// Gives the library a part of the response, for which it has window. Fails when the stream has ended.
    pub(super) fn send(&self, sender: &mut SendStream<Bytes>, data: Bytes, is_end: bool) -> Result<(), h2::Error> {
        let (stream, length) = (sender.stream_id().as_u32(), data.len());
        sender.send_data(data, is_end)?;
        self.streams.unsent.borrow_mut().add(stream, length);
        Ok(())
    }

    pub(super) fn goes_on(&self) {
        self.waits_since.set(None);
    }
}

impl RequestStream for Stream {
    fn is_reset(&self) -> bool {
        self.is_reset.get()
    }

    fn limit_reading(&self, limit: Coarse) {
        self.reads_within.set(Some(limit));
    }

    fn is_waiting(&self) -> bool {
        self.waits_since.get().is_some()
    }
}

/// Where the interim responses to a request go (RFC 9110, section 15.2), such as Early Hints. The HTTP library can send none
/// to a client of HTTP/1.1.
pub struct InterimResponses(pub(super) Rc<Stream>);

impl InterimResponses {
    /// Sends one at once, without hop-by-hop headers. Drops it if all of them together become too large.
    pub fn send(&self, response: Response<()>) {
        self.0.inform(response);
    }
}

/// The bytes of these fields, and at least one for each response, so that the number of responses is bounded, too.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() + 1
}
