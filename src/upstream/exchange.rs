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

#[derive(Debug)]
pub(super) enum OutgoingBody {
    /// It is passed on and forgotten.
    Once(ClientBody),
    /// It is also kept to be sent again.
    Kept(Sending),
}

#[derive(Debug)]
pub(super) struct BodySource {
    /// `None` if there is no body, or it was taken.
    pub(super) next: Option<OutgoingBody>,
    kept: Option<KeptBody>,
    is_body: bool,
}

impl BodySource {
    /// The body is kept to be sent again if it has at most `keep` bytes.
    pub(super) fn new(body: Option<ClientBody>, keep: Option<usize>) -> Self {
        let is_body = body.is_some();
        let is_small = |body: &ClientBody, most: usize| body.size_hint().lower() <= most as u64;
        match (body, keep) {
            (Some(body), Some(most)) if is_small(&body, most) => {
                let kept = KeptBody::new(body, most);
                Self { next: Some(kept.send()), kept: Some(kept), is_body }
            }
            (body, _) => Self { next: body.map(OutgoingBody::Once), kept: None, is_body },
        }
    }

    /// Whether all of the body can be sent, even if it was sent before.
    pub(super) fn is_whole(&self) -> bool {
        self.next.is_some() == self.is_body || self.kept.as_ref().is_some_and(KeptBody::is_whole)
    }

    pub(super) fn rewind(&mut self) {
        if let Some(kept) = &self.kept {
            self.next = Some(kept.send());
        }
    }
}

#[derive(Clone, Debug)]
struct KeptBody(Rc<RefCell<Kept>>);

#[derive(Debug)]
struct Kept {
    rest: ClientBody,
    pieces: Vec<Piece>,
    /// How many more bytes may be kept; `None` if there were too many, and nothing is kept any more.
    room: Option<usize>,
    is_over: bool,
}

#[derive(Clone, Debug)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

#[derive(Debug)]
pub(super) struct Sending {
    body: KeptBody,
    /// In pieces.
    sent: usize,
}

impl KeptBody {
    /// Keeps a body of at most `most` bytes; a larger one is only passed on.
    fn new(body: ClientBody, most: usize) -> Self {
        Self(Rc::new(RefCell::new(Kept { rest: body, pieces: Vec::new(), room: Some(most), is_over: false })))
    }

    /// Whether everything that was sent can be sent again.
    fn is_whole(&self) -> bool {
        self.0.borrow().room.is_some()
    }

    fn send(&self) -> OutgoingBody {
        OutgoingBody::Kept(Sending { body: self.clone(), sent: 0 })
    }
}

impl Kept {
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

impl Sending {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let mut kept = self.body.0.borrow_mut();
        if let Some(piece) = kept.pieces.get(self.sent) {
            self.sent += 1;
            return Poll::Ready(Some(Ok(match piece.clone() {
                Piece::Data(data) => Frame::data(data),
                Piece::Trailers(trailers) => Frame::trailers(trailers),
            })));
        }
        if kept.is_over {
            return Poll::Ready(None);
        }
        let polled = ready!(kept.poll_rest(cx));
        self.sent = kept.pieces.len();
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        let kept = self.body.0.borrow();
        self.sent >= kept.pieces.len() && (kept.is_over || kept.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let kept = self.body.0.borrow();
        let unsent = kept.pieces.iter().skip(self.sent).map(|piece| match piece {
            Piece::Data(data) => data.len() as u64,
            Piece::Trailers(_) => 0,
        });
        let unsent: u64 = unsent.sum();
        match kept.rest.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + unsent),
            None => SizeHint::default(),
        }
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        match self.get_mut() {
            Self::Once(body) => Pin::new(body).poll_frame(cx),
            Self::Kept(sending) => sending.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Once(body) => body.is_end_stream(),
            Self::Kept(sending) => sending.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Once(body) => body.size_hint(),
            Self::Kept(sending) => sending.size_hint(),
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
