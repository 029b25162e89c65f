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
use crate::upstream::stall::Position;
use crate::upstream::trailers::RequestTrailers;

#[derive(Debug)]
pub(super) struct RequestBody {
    /// `None` when all of it has come.
    body: Option<OutgoingBody>,
    /// What has come and waits for the server to grant window.
    waiting: Bytes,
    trailers: RequestTrailers,
    /// How many bytes came from the client, and the most that may come.
    taken: u64,
    most: u64,
    /// `None` if there is nothing more to do: everything is sent, or the server accepts no more.
    upload: Option<Upload>,
}

impl RequestBody {
    pub(super) fn new(
        body: OutgoingBody,
        stream: &OpenStream,
        head: &RequestHead<'_>,
        rules: BodyRules<'_>,
        named: &[&[u8]],
    ) -> Self {
        let (waiting, trailers) = (Bytes::new(), RequestTrailers::new(head, rules, named));
        let (most, upload) = (rules.max_size, Some(stream.upload()));
        Self { body: Some(body), waiting, trailers, taken: 0, most, upload }
    }

    pub(super) fn is_over(&self) -> bool {
        self.upload.is_none()
    }

    /// The body, if nothing of it has come yet.
    pub(super) fn unused(self) -> Option<OutgoingBody> {
        self.body.filter(|_| self.taken == 0)
    }

    pub(super) fn position(&self) -> Position {
        let unsent = self.waiting.len();
        Position { for_client: !self.is_over() && unsent == 0, taken: self.taken, unsent }
    }

    /// Forwards what the client sends, as fast as the server grants window for it, until it is complete.
    pub(super) fn poll(&mut self, stream: &mut OpenStream, cx: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        let Some(sender) = stream.sender.as_mut().filter(|_| !self.is_over()) else { return Poll::Ready(Ok(())) };
        let polled = ready!(self.poll_all(sender, cx));
        self.upload = None;
        Poll::Ready(polled)
    }

    fn poll_all(&mut self, sender: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<Result<(), RequestBodyError>> {
        loop {
            ready!(self.poll_waiting(sender, cx))?;
            let Some(body) = &mut self.body else { return Poll::Ready(Ok(())) };
            let Some(frame) = ready!(Pin::new(body).poll_frame(cx)) else { return Poll::Ready(self.end(sender, None)) };
            match frame.map_err(RequestBodyError::Client)?.into_data() {
                Ok(data) => {
                    self.taken += data.len() as u64;
                    if self.taken > self.most {
                        return Poll::Ready(Err(RequestBodyError::TooLarge));
                    }
                    self.waiting = data;
                }
                Err(frame) => return Poll::Ready(self.end(sender, frame.into_trailers().ok())),
            }
        }
    }

    fn poll_waiting(
        &mut self,
        sender: &mut SendStream<Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RequestBodyError>> {
        while !self.waiting.is_empty() {
            let Some(Ok(granted)) = ready!(poll_granted(sender, self.waiting.len(), cx)) else {
                return Poll::Ready(Err(RequestBodyError::Upstream));
            };
            let part = self.waiting.split_to(granted);
            sender.send_data(part, false).map_err(|_| RequestBodyError::Upstream)?;
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self, sender: &mut SendStream<Bytes>, trailers: Option<HeaderMap>) -> Result<(), RequestBodyError> {
        self.body = None;
        let ended = match trailers.and_then(|trailers| self.trailers.passing(trailers)) {
            None => sender.send_data(Bytes::new(), true),
            Some(passing) => sender.send_trailers(passing),
        };
        ended.map_err(|_| RequestBodyError::Upstream)
    }
}
