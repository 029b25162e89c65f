//! What one attempt to send a request gives to one endpoint, in any protocol: the request with its limits, and its body. A
//! small body of an idempotent request is kept, up to `retry.max_body`, so that it can be sent again to another endpoint.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use super::bound::BoundConnections;
use super::in_flight::InFlight;
use super::request::UpstreamRequest;
use crate::server::{ClientBody, ClientBodyError};

pub(super) struct BodySource {
    /// `None` if there is no body, or it was taken.
    pub(super) next: Option<OutgoingBody>,
    /// `None` if there is no body, or it is not kept.
    kept: Option<Rc<RefCell<Passing>>>,
    is_body: bool,
}

impl BodySource {
    /// The body is kept to be sent again if it has at most `keep` bytes.
    pub(super) fn new(body: Option<ClientBody>, keep: Option<usize>) -> Self {
        let is_body = body.is_some();
        let body = body.map(|rest| {
            let room = keep.filter(|most| rest.size_hint().lower() <= *most as u64);
            Rc::new(RefCell::new(Passing { rest, pieces: Vec::new(), room, is_over: false }))
        });
        let next = body.clone().map(|body| OutgoingBody { body, sent: 0 });
        Self { next, kept: body.filter(|body| body.borrow().room.is_some()), is_body }
    }

    /// Whether all of the body can be sent, even if it was sent before.
    pub(super) fn is_whole(&self) -> bool {
        let is_kept = || self.kept.as_ref().is_some_and(|kept| kept.borrow().room.is_some());
        self.next.is_some() == self.is_body || is_kept()
    }

    pub(super) fn rewind(&mut self) {
        if let Some(kept) = &self.kept {
            self.next = Some(OutgoingBody { body: kept.clone(), sent: 0 });
        }
    }
}

struct Passing {
    rest: ClientBody,
    /// What has come, if it is kept to be sent again.
    pieces: Vec<Piece>,
    /// How many more bytes may be kept; `None` if nothing is kept, or there were too many.
    room: Option<usize>,
    is_over: bool,
}

#[derive(Clone, Debug)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Passing {
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let polled = ready!(Pin::new(&mut self.rest).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) => {
                let size = frame.data_ref().map_or(0, Bytes::len);
                self.room = self.room.and_then(|room| room.checked_sub(size));
                match (self.room, frame.data_ref(), frame.trailers_ref()) {
                    (None, ..) => self.pieces = Vec::new(),
                    (Some(_), Some(data), _) => self.pieces.push(Piece::Data(data.clone())),
                    (Some(_), None, Some(trailers)) => self.pieces.push(Piece::Trailers(trailers.clone())),
                    (Some(_), None, None) => {}
                }
            }
            Some(Err(_)) | None => self.is_over = true,
        }
        Poll::Ready(polled)
    }
}

/// The body in one attempt.
pub(super) struct OutgoingBody {
    body: Rc<RefCell<Passing>>,
    /// In pieces.
    sent: usize,
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let Self { body, sent } = &mut *self;
        let mut body = body.borrow_mut();
        if let Some(piece) = body.pieces.get(*sent) {
            *sent += 1;
            return Poll::Ready(Some(Ok(match piece.clone() {
                Piece::Data(data) => Frame::data(data),
                Piece::Trailers(trailers) => Frame::trailers(trailers),
            })));
        }
        if body.is_over {
            return Poll::Ready(None);
        }
        let polled = ready!(body.poll_rest(cx));
        *sent = body.pieces.len();
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        let body = self.body.borrow();
        self.sent >= body.pieces.len() && (body.is_over || body.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.borrow();
        let unsent = body.pieces.iter().skip(self.sent).map(|piece| match piece {
            Piece::Data(data) => data.len() as u64,
            Piece::Trailers(_) => 0,
        });
        let unsent: u64 = unsent.sum();
        match body.rest.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + unsent),
            None => SizeHint::default(),
        }
    }
}

/// One attempt to send a request to one endpoint. The request may be sent more than once.
pub(super) struct Exchange<'a> {
    pub(super) request: &'a UpstreamRequest<'a>,
    /// `None` if the request is a check.
    pub(super) in_flight: Option<&'a InFlight>,
    /// Those of its headers that Connection names.
    pub(super) named: &'a [&'a [u8]],
    /// The `Host` header, if it is not the client's.
    pub(super) authority: Option<&'a HeaderValue>,
    /// Connections that belong to the client's connection.
    pub(super) bound: &'a Rc<BoundConnections>,
    /// The longest time for the head of the response. It begins when the upstream has accepted the last bytes of the
    /// request, because a long body takes time.
    pub(super) timeout: Duration,
    /// The longest time for which the upstream may send nothing of an incomplete body.
    pub(super) read_timeout: Option<Duration>,
}
