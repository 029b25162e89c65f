//! Drives the HTTP library of a connection until the library ends by itself, or the lifecycle says that the connection ends.
//! Received bytes are read and pending bytes are sent before the lifecycle is asked.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::connection_state::ConnectionState;
use super::lifecycle::{CloseReason, Event, Step};

#[derive(Debug)]
pub(super) enum Ended<E> {
    Closed,
    Failed(E),
    /// The gateway ends it.
    Cut(CloseReason),
    /// It stays open: no request is in flight, and none has come for a while.
    Rests,
}

/// `poll` drives the library. Its argument is true once: when the library has to end after what has come. `is_unread` says
/// whether bytes have come that the library has not read although it was just polled.
pub(super) async fn drive<E>(
    state: &ConnectionState,
    is_unread: impl Fn() -> bool,
    mut poll: impl FnMut(&mut Context<'_>, bool) -> Poll<Result<(), E>>,
) -> Ended<E> {
    let mut is_told = false;
    poll_fn(|cx| {
        let mut has_looked = false;
        loop {
            // The library reads and sends what it can before the connection may end.
            let finishes = match state.step(cx, || !has_looked || is_unread()) {
                Step::Close(reason) => return Poll::Ready(Ended::Cut(reason)),
                Step::Rest => return Poll::Ready(Ended::Rests),
                Step::Finish => !std::mem::replace(&mut is_told, true),
                Step::GoOn => false,
            };
            if has_looked && !finishes {
                return Poll::Pending;
            }
            match poll(cx, finishes) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ended::Closed),
                Poll::Ready(Err(error)) => {
                    state.record(Event::Broken);
                    return Poll::Ready(Ended::Failed(error));
                }
                Poll::Pending => {
                    has_looked = true;
                    state.has_sent();
                }
            }
        }
    })
    .await
}
