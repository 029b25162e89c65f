//! A gate in the way of a body: each piece waits until the gate lets its bytes pass.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;

/// There is no room for more bytes, so the body breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// Ready when so many more bytes may pass, or never will. An asker that got `Pending` asks again for the same bytes.
type PollPass = dyn FnMut(&mut Context<'_>, usize) -> Poll<Result<(), Exhausted>>;

pub struct Gated {
    pass: Box<PollPass>,
    /// The piece that waits.
    held: Option<Frame<Bytes>>,
}

impl Gated {
    pub fn new(pass: Box<PollPass>) -> Self {
        Self { pass, held: None }
    }

    /// The next frame of the body that `next` polls, once it may pass.
    pub fn poll_frame<E: From<Exhausted>>(
        &mut self,
        cx: &mut Context<'_>,
        next: impl FnOnce(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        let frame = match self.held.take() {
            Some(frame) => frame,
            None => match ready!(next(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            },
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match (self.pass)(cx, bytes) {
            Poll::Ready(passes) => Poll::Ready(Some(passes.map(|()| frame).map_err(E::from))),
            Poll::Pending => {
                self.held = Some(frame);
                Poll::Pending
            }
        }
    }

    /// How many bytes wait; `None` if nothing does.
    pub fn held(&self) -> Option<u64> {
        self.held.as_ref().map(|frame| frame.data_ref().map_or(0, |data| data.len() as u64))
    }
}
