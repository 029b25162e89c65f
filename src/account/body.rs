//! The body of a response, and with it the account that is closed when it has gone out.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::{Account, Outcome};
use crate::forward::{BodyError, UpstreamBody};
use crate::reason::Reason;

/// Where a response's body comes from.
pub enum Content {
    /// From here.
    Own(Full<Bytes>),
    /// From an upstream.
    Upstream(UpstreamBody),
}

impl Content {
    /// Who sends it, for the log.
    fn server(&self) -> String {
        match self {
            Self::Own(_) => String::new(),
            Self::Upstream(body) => body.server(),
        }
    }
}

/// A response's body with the account that it closes.
pub struct Settled {
    pub(super) content: Content,
    pub(super) account: Account,
}

impl Settled {
    /// The client has taken nothing of it for too long, and gets no more.
    pub fn stalled(&mut self) {
        self.account.outcome = Outcome::Abandoned;
        self.account.reason = Some(Reason::BodyTimeout);
    }
}

impl Body for Content {
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

impl Body for Settled {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.content).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(line) = &mut self.account.line {
                    line.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                if self.content.is_end_stream() {
                    self.account.outcome = self.account.expected;
                }
            }
            Poll::Ready(Some(Err(error))) => {
                // The client sees a body that breaks off; so does the account.
                let reason = error.reason();
                self.account.outcome = if reason.is_upstreams() { Outcome::Failed } else { Outcome::Abandoned };
                let server = self.content.server();
                self.account.fail(reason, &server, error);
            }
            Poll::Ready(None) => self.account.outcome = self.account.expected,
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
