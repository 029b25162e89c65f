//! Drives the HTTP library of a connection until that ends by itself, or until the rule says that the connection ends. Only here it is
//! known whether the library was told so.
//!
//! Before the rule is asked, what has come is looked at, and what can be sent is sent.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::connection_state::ConnectionState;
use super::lifecycle::{CloseReason, Event, Step};

/// How the work on a connection ended.
#[derive(Debug)]
pub(super) enum Ended<E> {
    /// The HTTP library has closed it.
    Closed,
    /// The HTTP library has returned an error.
    Failed(E),
    /// The gateway ends it.
    Cut(CloseReason),
    /// It stays open and rests: no request is in flight, and none has come for a while.
    Rests,
}

/// Lets `poll` drive the library. It is told once if the library has to end after what has come. `is_unread` says whether bytes
/// have come that the library has not seen although it has just been asked to look.
pub(super) async fn drive<E>(
    state: &ConnectionState,
    is_unread: impl Fn() -> bool,
    mut poll: impl FnMut(&mut Context<'_>, bool) -> Poll<Result<(), E>>,
) -> Ended<E> {
    let mut is_told = false;
    poll_fn(|cx| {
        let mut has_looked = false;
        loop {
            // What has come and what can be sent is looked at before the connection may end.
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
