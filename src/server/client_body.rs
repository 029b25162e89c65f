//! The body of a request, independent of the protocol.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::http1::MessageBody;
use super::http2::StreamBody;
use crate::base::body_gate::{BodyGate, Exhausted, Gated};

#[derive(Debug)]
pub struct ClientBody {
    source: Source,
    gate: Option<Box<Gated>>,
}

#[derive(Debug)]
enum Source {
    Http1(MessageBody),
    Http2(StreamBody),
    Whole { data: Bytes, trailers: Option<HeaderMap> },
}

/// The client has broken off its body, or has sent an invalid one.
#[derive(Debug)]
pub enum ClientBodyError {
    Http1(hyper::Error),
    Http2(h2::Error),
    /// A limit has no room for more of it.
    Exhausted,
}

impl From<Exhausted> for ClientBodyError {
    fn from(_: Exhausted) -> Self {
        Self::Exhausted
    }
}

impl From<Source> for ClientBody {
    fn from(source: Source) -> Self {
        Self { source, gate: None }
    }
}

impl From<MessageBody> for ClientBody {
    fn from(body: MessageBody) -> Self {
        Source::Http1(body).into()
    }
}

impl From<StreamBody> for ClientBody {
    fn from(body: StreamBody) -> Self {
        Source::Http2(body).into()
    }
}

impl ClientBody {
    pub fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Source::Whole { data, trailers }.into()
    }

    fn held(&self) -> Option<u64> {
        self.gate.as_ref().and_then(|gate| gate.held())
    }

    /// Each piece waits until the gate lets it pass.
    pub fn pass_through(&mut self, gate: impl BodyGate + 'static) {
        self.gate = Some(Box::new(Gated::new(gate)));
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let Self { source, gate } = self.get_mut();
        match gate {
            None => Pin::new(source).poll_frame(cx),
            Some(gate) => gate.poll_frame(cx, |cx| Pin::new(source).poll_frame(cx)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held().is_none() && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, held) = (self.source.size_hint(), self.held().unwrap_or(0));
        rest.exact().map_or(rest, |rest| SizeHint::with_exact(rest + held))
    }
}

impl Body for Source {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(ClientBodyError::Http1),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(ClientBodyError::Http2),
            Self::Whole { data, .. } if !data.is_empty() => Poll::Ready(Some(Ok(Frame::data(mem::take(data))))),
            Self::Whole { trailers, .. } => Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            // A length would exclude trailers.
            Self::Whole { trailers: Some(_), .. } => SizeHint::default(),
            Self::Whole { data, .. } => SizeHint::with_exact(data.len() as u64),
        }
    }
}

impl fmt::Display for ClientBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(error) => error.fmt(f),
            Self::Http2(error) => error.fmt(f),
            Self::Exhausted => f.write_str("a limit has no room for more bytes"),
        }
    }
}
