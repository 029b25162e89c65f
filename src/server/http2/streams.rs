//! The streams of a connection of HTTP/2: what the task of each shares with its request, and with the checks of the time
//! limits. A client may stop to grant window to a stream for as long as it likes; after `body_timeout` the stream is reset,
//! and the other streams of the connection go on.
//!
//! The library is given no more of a response than the client has granted window for. The rest waits in the task of the
//! stream, which records since when.
//!
//! Interim responses are passed on without waiting: whoever reads a response from an upstream calls a function for each
//! as it comes, if the client can be sent any. Nothing bounds what the library queues for a client that does not read,
//! so their size is bounded for each request, and hints beyond that are dropped. `100 Continue` is sent when the side
//! of the upstream first asks for the body and none of it is there. So a client that is refused learns that before it
//! sends anything.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, Response, StatusCode};

use super::unsent::Unsent;
use crate::base::http::header_rules::remove_hop_by_hop;
use crate::server::connection_state::TimedStreams;
use crate::server::request_guard::RequestStream;
use crate::server::time_limits::{TimeLimits, is_over};
use crate::server::worker_state::{Coarse, WorkerState};

/// How many bytes the fields of all interim responses to one request may have. They are queued whether the client reads or
/// not. Early hints are a few links.
const MAX_INTERIM_BYTES: usize = 16 << 10;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Streams {
    worker: Rc<WorkerState>,
    /// Those that have waited for the client at least once, and may have ended.
    waiting: RefCell<Vec<Weak<Stream>>>,
    /// How many interim responses the library has got and may not have sent.
    unsent_interim: Cell<u32>,
    /// What the library has got of responses and has not sent.
    unsent: RefCell<Unsent>,
    /// How many bodies of requests are not passed on completely.
    uploads: Cell<usize>,
}

/// The body of a request that is not passed on completely, or what a client sends into a tunnel.
#[derive(Debug)]
pub(super) struct Upload(Rc<Streams>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.uploads.set(self.0.uploads.get() - 1);
    }
}

/// One stream, from its request to the end of its response.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Rc<Streams>,
    responder: RefCell<SendResponse<Bytes>>,
    /// Whether the response has begun, after which there are no interim responses.
    is_answered: Cell<bool>,
    /// Whether the client waits for a word before it sends the body of its request.
    expects_continue: Cell<bool>,
    /// How many bytes its further interim responses may have.
    interim_left: Cell<usize>,
    /// Since when a part of the response waits for window.
    waits_since: Cell<Option<Coarse>>,
    /// How long that may be, if the request has a limit of its own.
    reads_within: Cell<Option<Coarse>>,
    is_listed: Cell<bool>,
    is_reset: Cell<bool>,
}

impl Streams {
    /// For a new connection.
    pub(super) fn new(worker: Rc<WorkerState>) -> Self {
        Self {
            worker,
            waiting: RefCell::default(),
            unsent_interim: Cell::new(0),
            unsent: RefCell::default(),
            uploads: Cell::new(0),
        }
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

    /// The body of a request begins.
    pub(super) fn begin_upload(self: &Rc<Self>) -> Upload {
        self.uploads.set(self.uploads.get() + 1);
        Upload(self.clone())
    }

    /// How many bodies of requests are not passed on completely.
    pub(super) fn uploads(&self) -> usize {
        self.uploads.get()
    }

    /// So many bytes of a response are sent.
    pub(super) fn sent(&self, stream: u32, bytes: u32) {
        self.unsent.borrow_mut().remove(stream, bytes as usize);
    }

    /// A stream is reset by one of the sides, so that nothing more of it is sent.
    pub(super) fn is_reset(&self, stream: u32) {
        self.unsent.borrow_mut().remove(stream, usize::MAX);
    }

    /// Whether a head that is being sent counts as that of an interim response. Nobody knows which head it is, so each interim
    /// response counts for one.
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
                // This wakes its task, which ends then.
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

    /// Begins the response, and ends it if it `is_end`. Returns where its body is sent.
    ///
    /// # Errors
    /// When the stream has ended.
    pub(super) fn respond(&self, head: Response<()>, is_end: bool) -> Result<SendStream<Bytes>, h2::Error> {
        self.is_answered.set(true);
        self.responder.borrow_mut().send_response(head, is_end)
    }

    /// Resets the stream instead of a response. The code says that the client asks for too much (RFC 9113, section 7).
    /// REFUSED_STREAM would let it send the request again at once (section 8.7), and CANCEL says nothing about the reason.
    pub(super) fn refuse(&self) {
        self.responder.borrow_mut().send_reset(Reason::ENHANCE_YOUR_CALM);
    }

    /// Sends an interim response without the fields that belong to a connection, unless the response has begun or its interim
    /// responses become too large.
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

    /// Records that the client waits to be told to send the body of its request.
    pub(super) fn expect_continue(&self) {
        self.expects_continue.set(true);
    }

    /// The body of the request is asked for, and none of it has come: tells the client to send it, if it waits for that (RFC
    /// 9110, section 10.1.1).
    pub(super) fn asks_for_body(&self) {
        if self.expects_continue.take() {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::CONTINUE;
            self.inform(head);
        }
    }

    /// A part of the body of the request has come, so the client does not wait to be told to send it.
    pub(super) fn receives_body(&self) {
        self.expects_continue.set(false);
    }

    /// Records that a part of the response waits for window from now on.
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

    /// Gives the library a part of the response, for which it has window.
    ///
    /// # Errors
    /// When the stream has ended.
    pub(super) fn send(&self, sender: &mut SendStream<Bytes>, data: Bytes, is_end: bool) -> Result<(), h2::Error> {
        let (stream, length) = (sender.stream_id().as_u32(), data.len());
        sender.send_data(data, is_end)?;
        self.streams.unsent.borrow_mut().add(stream, length);
        Ok(())
    }

    /// Records that the client has granted window.
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

/// Where the interim responses to a request go (RFC 9110, section 15.2), such as Early Hints. The HTTP library can send none to
/// a client of HTTP/1.1.
#[derive(Debug)]
pub struct InterimResponses(pub(super) Rc<Stream>);

impl InterimResponses {
    /// Sends one at once, without the headers of a connection. It is dropped if all of them together become too large.
    pub fn send(&self, response: Response<()>) {
        self.0.inform(response);
    }
}

/// How many bytes these fields have, and at least one for each response, so that their number is bounded too.
fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() + 1
}
