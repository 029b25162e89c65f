//! The body of a response from the upstream. At its end it returns its connection to the pool.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::chunked::{Decoder, Piece};
use super::request::RequestBody;
use super::response_head::{BodyEnd, ResponseHead};
use crate::upstream::bound::BoundConnections;
use crate::upstream::connection::{UpstreamConnection, UpstreamTunnel};
use crate::upstream::endpoint::DestinationAddress;
use crate::upstream::error::{BodyError, RequestBodyError};
use crate::upstream::header_policy::ResponseTrailers;
use crate::upstream::pool::ConnectionPools;
use crate::upstream::stall::{Position, Stalled};

enum Rest {
    Length(u64),
    Chunked(Decoder),
    Close,
    /// A body without a length that has ended.
    Over,
}

pub(in crate::upstream) struct ResponseBody {
    /// `None` when it is returned to the pool.
    connection: Option<Box<UpstreamConnection>>,
    rest: Rest,
    /// The request's body, while it is still being sent.
    request_body: Option<Box<RequestBody>>,
    keep_alive: bool,
    trailers: ResponseTrailers,
    pools: Rc<ConnectionPools>,
    server: usize,
    /// The reason phrase, if it is not the standard one, which is rare.
    reason: Option<Box<Bytes>>,
    /// Keeps a bound connection; `None` if it cannot be kept.
    bound: Option<Rc<BoundConnections>>,
}

impl ResponseBody {
    pub(super) fn new(
        connection: Box<UpstreamConnection>,
        ResponseHead { reason, end, keep_alive, .. }: ResponseHead,
        trailers: ResponseTrailers,
        request_body: Option<Box<RequestBody>>,
        (pools, server): (&Rc<ConnectionPools>, usize),
        bound: Option<Rc<BoundConnections>>,
    ) -> Self {
        let rest = match end {
            BodyEnd::Length(length) => Rest::Length(length),
            BodyEnd::Chunked => Rest::Chunked(Decoder::default()),
            BodyEnd::Close | BodyEnd::Tunnel => Rest::Close,
        };
        let (connection, pools) = (Some(connection), pools.clone());
        Self { connection, rest, request_body, keep_alive, trailers, pools, server, reason, bound }
    }

    pub(in crate::upstream) fn server(&self) -> Option<&DestinationAddress> {
        self.connection.as_ref().map(|connection| &connection.peer)
    }

    /// Only once.
    pub(in crate::upstream) fn take_reason(&mut self) -> Option<Bytes> {
        self.reason.take().map(|reason| *reason)
    }

    /// Only after a response that accepts a tunnel, and only once.
    pub(in crate::upstream) fn take_tunnel(&mut self) -> Option<UpstreamTunnel> {
        self.connection.take().map(|connection| connection.into_tunnel())
    }

    /// The next piece of the received bytes; `More` if there is none.
    fn next(&mut self) -> Result<Piece, BodyError> {
        let Some(connection) = &mut self.connection else { return Ok(Piece::End) };
        let received = &mut connection.received;
        match &mut self.rest {
            Rest::Length(0) | Rest::Over => Ok(Piece::End),
            Rest::Length(_) | Rest::Close if received.is_empty() => Ok(Piece::More),
            Rest::Length(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(received.len());
                *left -= length as u64;
                Ok(Piece::Data(received.split_to(length).freeze()))
            }
            Rest::Close => Ok(Piece::Data(received.split().freeze())),
            Rest::Chunked(decoder) => decoder.decode(received).map_err(|_| BodyError::NotChunked),
        }
    }

    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        let (Some(request_body), Some(connection)) = (&mut self.request_body, &mut self.connection) else {
            return Ok(());
        };
        match request_body.poll(cx, connection) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Err(RequestBodyError::Client(error))) => return Err(BodyError::Client(error)),
            Poll::Ready(Err(RequestBodyError::TooLarge)) => return Err(BodyError::TooLarge),
            // The upstream has sent a response without waiting for the rest, which is allowed.
            Poll::Ready(Err(RequestBodyError::Upstream)) => self.keep_alive = false,
            Poll::Ready(Ok(())) => {}
        }
        self.request_body = None;
        Ok(())
    }

    /// The next piece, or an error if one side has exceeded its time limit.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, BodyError>> {
        self.poll_upload(cx)?;
        let polled = self.poll_piece(cx);
        let Some(connection) = &mut self.connection else { return polled };
        if polled.is_ready() {
            connection.stall.upstream_sent();
            return polled;
        }
        let position =
            self.request_body.as_ref().map_or(Position::default(), |request_body| request_body.position(connection));
        match ready!(connection.stall.poll(cx, position)) {
            Stalled::Client(limit) => Poll::Ready(Err(BodyError::BodyTimeout(limit))),
            Stalled::Upstream(limit) => Poll::Ready(Err(BodyError::ReadTimeout(limit))),
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, BodyError>> {
        loop {
            let piece = self.next()?;
            if piece != Piece::More {
                return Poll::Ready(Ok(piece));
            }
            let large = !matches!(self.rest, Rest::Length(left) if left < 8 * 1024);
            let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(Piece::End)) };
            if ready!(connection.poll_fill(cx, large)).map_err(BodyError::Io)? == 0 {
                if !matches!(self.rest, Rest::Close) {
                    return Poll::Ready(Err(BodyError::Truncated));
                }
                self.rest = Rest::Over;
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(match ready!(self.poll_next(cx)) {
            Ok(Piece::Data(data)) => Some(Ok(Frame::data(data))),
            Ok(Piece::Trailers(trailers)) => {
                self.trailers.passing(trailers).map(|passing| Ok(Frame::trailers(passing)))
            }
            Ok(Piece::End | Piece::More) => None,
            Err(error) => {
                self.keep_alive = false;
                Some(Err(error))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            Rest::Length(left) => *left == 0,
            Rest::Chunked(decoder) => decoder.is_done(),
            Rest::Close => false,
            Rest::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            Rest::Length(left) => SizeHint::with_exact(*left),
            _ => SizeHint::default(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // A connection with an incomplete request or response cannot be used again.
        if let Some(connection) = self.connection.take()
            && self.keep_alive
            && self.request_body.is_none()
            && self.is_end_stream()
        {
            match (connection.is_bound, &self.bound) {
                (false, _) => self.pools.put(self.server, connection),
                (true, Some(bound)) => bound.put(self.server, connection),
                (true, None) => {}
            }
        }
    }
}
