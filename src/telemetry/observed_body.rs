//! The body of a response, and with it the account that is closed when it has gone out.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::{Outcome, RequestRecord};
use crate::upstream::{BodyError, UpstreamBody};

/// Where a response's body comes from.
pub enum ResponseBody {
    /// From here.
    Own(Full<Bytes>),
    /// From an upstream.
    Upstream(UpstreamBody),
}

impl ResponseBody {
    /// Who sends it, for the log.
    fn server(&self) -> String {
        match self {
            Self::Own(_) => String::new(),
            Self::Upstream(body) => body.server(),
        }
    }
}

/// A response's body with the account that it closes.
pub struct ObservedBody {
    pub(super) content: ResponseBody,
    pub(super) record: RequestRecord,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Upstream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Upstream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Upstream(body) => body.size_hint(),
        }
    }
}

impl Body for ObservedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.content).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(entry) = &mut self.record.entry {
                    entry.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                if self.content.is_end_stream() {
                    self.record.outcome = self.record.expected;
                }
            }
            Poll::Ready(Some(Err(error))) => {
                // The client sees a body that breaks off; so does the account.
                let reason = error.reason();
                self.record.outcome = if reason.is_upstreams() { Outcome::Failed } else { Outcome::Abandoned };
                let server = self.content.server();
                self.record.fail(reason, &server, error);
            }
            Poll::Ready(None) => self.record.outcome = self.record.expected,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
