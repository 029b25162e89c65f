//! The body of a request, independent of the protocol.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::http1::MessageBody;
use super::http2::StreamBody;
use crate::base::body_gate::{Exhausted, Gated};

pub struct ClientBody(Source);

enum Source {
    Http1(MessageBody),
    Http2(StreamBody),
    Whole { data: Bytes, trailers: Option<HeaderMap> },
    Gated(Box<(ClientBody, Gated)>),
}

/// The client has broken off its body, or has sent an invalid one.
#[derive(Debug, thiserror::Error)]
pub enum ClientBodyError {
    #[error("{0}")]
    Http1(hyper::Error),
    #[error("{0}")]
    Http2(h2::Error),
    #[error("a limit has no room for more bytes")]
    Exhausted,
}

impl From<Exhausted> for ClientBodyError {
    fn from(_: Exhausted) -> Self {
        Self::Exhausted
    }
}

impl From<MessageBody> for ClientBody {
    fn from(body: MessageBody) -> Self {
        Self(Source::Http1(body))
    }
}

impl From<StreamBody> for ClientBody {
    fn from(body: StreamBody) -> Self {
        Self(Source::Http2(body))
    }
}

impl ClientBody {
    pub fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self(Source::Whole { data, trailers })
    }

    /// The same body, each piece of which waits until the gate lets it pass.
    #[must_use]
    pub fn through(self, gate: Gated) -> Self {
        Self(Source::Gated(Box::new((self, gate))))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        match &mut self.get_mut().0 {
            Source::Http1(body) => Pin::new(body).poll_frame(cx).map_err(ClientBodyError::Http1),
            Source::Http2(body) => Pin::new(body).poll_frame(cx).map_err(ClientBodyError::Http2),
            Source::Whole { data, .. } if !data.is_empty() => Poll::Ready(Some(Ok(Frame::data(mem::take(data))))),
            Source::Whole { trailers, .. } => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Source::Gated(gated) => {
                let (body, gate) = &mut **gated;
                gate.poll_frame(cx, |cx| Pin::new(body).poll_frame(cx))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Http1(body) => body.is_end_stream(),
            Source::Http2(body) => body.is_end_stream(),
            Source::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Source::Gated(gated) => gated.1.held().is_none() && gated.0.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Http1(body) => body.size_hint(),
            Source::Http2(body) => body.size_hint(),
            // A length would exclude trailers.
            Source::Whole { trailers: Some(_), .. } => SizeHint::default(),
            Source::Whole { data, .. } => SizeHint::with_exact(data.len() as u64),
            Source::Gated(gated) => {
                let (rest, held) = (gated.0.size_hint(), gated.1.held().unwrap_or(0));
                rest.exact().map_or(rest, |rest| SizeHint::with_exact(rest + held))
            }
        }
    }
}
