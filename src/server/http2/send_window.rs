//! The window for sending on a stream of HTTP/2 (RFC 9113, section 5.2).

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;

/// How many of the `wanted` bytes have window: at least one, unless none is wanted. `None` if the stream has ended. The
/// library would accept more and keep it, where nobody measures how long it waits.
///
/// # Errors
/// Why the stream has ended.
pub fn poll_granted(
    sender: &mut SendStream<Bytes>,
    wanted: usize,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<usize, h2::Error>>> {
    sender.reserve_capacity(wanted);
    while sender.capacity() == 0 && wanted > 0 {
        match ready!(sender.poll_capacity(cx)) {
            Some(Ok(_)) => {}
            ended => return Poll::Ready(ended),
        }
    }
    Poll::Ready(Some(Ok(sender.capacity().min(wanted))))
}
