//! The request on a stream of HTTP/2: its head, and its body on the way from the client to the stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version, header};
use http_body::Body;

use super::connection::{OpenStream, Upload};
use crate::server::poll_granted;
use crate::upstream::error::{RequestBodyError, UpstreamError};
use crate::upstream::exchange::{Exchange, OutgoingBody};
use crate::upstream::header_policy::RequestTrailers;
use crate::upstream::request::{BodyRules, RequestHead};
use crate::upstream::request_headers::{self, HeaderSink};
use crate::upstream::stall::Position;

/// The error is [`UpstreamError::NoHttp2`] if HTTP/2 has no form for it.
pub(super) fn head(
    exchange: &Exchange<'_>,
    scheme: &Scheme,
    body: Option<&OutgoingBody>,
) -> Result<Request<()>, UpstreamError> {
    let request = &exchange.request.head;
    let host = request.host(exchange.authority);
    let authority = host.and_then(|host| Authority::from_maybe_shared(Bytes::copy_from_slice(host.as_bytes())).ok());
    let target = PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(request.target.as_bytes()));
    let uri = Uri::builder().scheme(scheme.clone());
    let uri = uri.authority(authority.ok_or(UpstreamError::NoHttp2)?);
    let uri = uri.path_and_query(target.map_err(|_| UpstreamError::NoHttp2)?).build();

    let mut headers = Headers { map: HeaderMap::with_capacity(request.headers.len() + 10), is_valid: true };
    request_headers::each(request, exchange.named, &mut headers);
    // Without a length, the end of the stream shows where the body ends.
    if let Some(length) = body.and_then(|body| body.size_hint().exact()) {
        headers.map.insert(header::CONTENT_LENGTH, length.into());
    } else if body.is_none() && request.headers.contains_key(header::CONTENT_LENGTH) {
        headers.map.insert(header::CONTENT_LENGTH, 0.into());
    }
    if !headers.is_valid {
        return Err(UpstreamError::NoHttp2);
    }
    let mut head = Request::new(());
    *head.method_mut() = request.method.clone();
    *head.uri_mut() = uri.map_err(|_| UpstreamError::NoHttp2)?;
    *head.version_mut() = Version::HTTP_2;
    *head.headers_mut() = headers.map;
    Ok(head)
}

struct Headers {
    map: HeaderMap,
    is_valid: bool,
}

impl HeaderSink for Headers {
    fn pass(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.map.append(name.clone(), value.clone());
    }

    fn add(&mut self, name: &'static str, value: &[u8]) {
        match HeaderValue::from_bytes(value) {
            Ok(value) => _ = self.map.append(HeaderName::from_static(name), value),
            Err(_) => self.is_valid = false,
        }
    }

    fn add_written(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        let mut value = Vec::new();
        write(&mut value);
        self.add(name, &value);
    }
}

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
