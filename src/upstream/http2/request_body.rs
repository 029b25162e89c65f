//! The body of a request on its way from the client to a stream of HTTP/2.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use http_body::Body;

use super::connection::{OpenStream, Upload};
use crate::server::poll_granted;
use crate::upstream::error::RequestBodyError;
use crate::upstream::outgoing_body::OutgoingBody;
use crate::upstream::request::{BodyRules, RequestHead};
use crate::upstream::request_trailers::TrailerFilter;
use crate::upstream::stall::Position;

/// A body that is being sent.
#[derive(Debug)]
pub(super) struct RequestBody {
    /// `None` when all of it has come.
    body: Option<OutgoingBody>,
    sender: SendStream<Bytes>,
    /// What has come and is not passed to the library, because the server has not granted window for it.
    waiting: Bytes,
    trailers: TrailerFilter,
    /// Bytes of it that came from the client, and the most that may come.
    taken: u64,
    most: u64,
    /// `None` if there is nothing more to do: everything is sent, or the server accepts no more.
    upload: Option<Upload>,
}

impl RequestBody {
    pub(super) fn new(
        body: OutgoingBody,
        sender: SendStream<Bytes>,
        stream: &OpenStream,
        (head, rules): (&RequestHead<'_>, BodyRules<'_>),
        named: &[&[u8]],
    ) -> Self {
        let (waiting, trailers) = (Bytes::new(), TrailerFilter::new(head, rules, named));
        let (most, upload) = (rules.max_size, Some(stream.upload()));
        Self { body: Some(body), sender, waiting, trailers, taken: 0, most, upload }
    }

    /// Whether nothing more is to be sent.
    pub(super) fn is_over(&self) -> bool {
        self.upload.is_none()
    }

    /// The body, if nothing of it has come yet.
    pub(super) fn unused(self) -> Option<OutgoingBody> {
        self.body.filter(|_| self.taken == 0)
    }

    /// The position of the exchange while it waits.
    pub(super) fn position(&self) -> Position {
        let unsent = self.waiting.len();
        Position { for_client: !self.is_over() && unsent == 0, taken: self.taken, unsent }
    }

    /// Forwards what the client sends, as fast as the server grants window for it, until it is complete.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        if self.is_over() {
            return Poll::Ready(Ok(()));
        }
        let polled = ready!(self.poll_all(cx));
        self.upload = None;
        Poll::Ready(polled)
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        loop {
            ready!(self.poll_waiting(cx))?;
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
            let Some(frame) = ready!(Pin::new(body).poll_frame(cx)) else { return Poll::Ready(self.end(None)) };
            match frame.map_err(RequestBodyError::Client)?.into_data() {
                Ok(data) => {
                    self.taken += data.len() as u64;
                    if self.taken > self.most {
                        return Poll::Ready(Err(RequestBodyError::TooLarge));
                    }
                    self.waiting = data;
                }
                Err(frame) => return Poll::Ready(self.end(frame.trailers_ref())),
            }
        }
    }

    /// Passes on what waits for window.
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        while !self.waiting.is_empty() {
            let Some(Ok(granted)) = ready!(poll_granted(&mut self.sender, self.waiting.len(), cx)) else {
                return Poll::Ready(Err(RequestBodyError::Upstream));
            };
            let part = self.waiting.split_to(granted);
            self.sender.send_data(part, false).map_err(|_| RequestBodyError::Upstream)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream with the trailers that the server may get.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), RequestBodyError> {
        self.body = None;
        let mut passing = HeaderMap::new();
        for (name, value) in trailers.into_iter().flatten().filter(|(name, _)| self.trailers.may_pass(name)) {
            passing.append(name.clone(), value.clone());
        }
        let ended = if passing.is_empty() {
            self.sender.send_data(Bytes::new(), true)
        } else {
            self.sender.send_trailers(passing)
        };
        ended.map_err(|_| RequestBodyError::Upstream)
    }
}
