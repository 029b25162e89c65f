//! The windows of HTTP/2 (RFC 9113, section 5.2): how much may be sent on a stream, and how much the other side of a connection
//! may send ahead on each: enough for a fast network, and less if there are many streams.
//!
//! Unread bytes are kept in memory. So all streams share a budget, and a stream's window is its share. A used window cannot be
//! taken back: unread streams that begin one after another take the budget once, half of it for each time that their number has
//! doubled, and the smallest window each.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;

/// The windows of the streams of one side, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// The window of a stream while there are few.
    pub largest: u32,
    /// No stream has less.
    pub smallest: u32,
    /// What all streams together may send ahead, unless the smallest windows need more.
    pub budget: u32,
}

impl Windows {
    /// The window of each of `streams`. It changes only when their number doubles or halves, since the other side has to be told.
    pub fn of_stream(&self, streams: usize) -> u32 {
        let shares = u32::try_from(streams.max(1)).ok().and_then(u32::checked_next_power_of_two).unwrap_or(u32::MAX);
        (self.budget / shares).clamp(self.smallest, self.largest)
    }

    /// The window of a connection into which so many streams fit, and one more, whatever the other side knows of their windows.
    /// So a stream that nobody reads never blocks others, although h2 grants the windows of stream and connection only together.
    pub fn of_connection(&self, streams: usize) -> u32 {
        u32::try_from(streams).unwrap_or(u32::MAX).saturating_add(1).saturating_mul(self.largest)
    }
}

/// How many of the `wanted` bytes have window: at least one, unless none is wanted. `None` if the stream has ended. The library
/// would accept more and keep it, where nobody measures how long it waits. The error says why the stream has ended.
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

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { largest: 4 << 20, smallest: 64 << 10, budget: 32 << 20 };

    #[test]
    fn few_streams_have_large_windows_and_many_share_the_budget() {
        for (streams, window) in [
            (0, WINDOWS.largest),
            (1, WINDOWS.largest),
            (8, WINDOWS.largest),
            (9, 2 << 20),
            (16, 2 << 20),
            (17, 1 << 20),
            (100, 256 << 10),
            (512, 64 << 10),
            (5000, 64 << 10),
            (usize::MAX, 64 << 10),
        ] {
            assert_eq!(WINDOWS.of_stream(streams), window, "{streams} streams");
            assert!(WINDOWS.of_connection(streams) >= window);
        }
    }

    #[test]
    fn streams_that_begin_one_after_another_take_a_bounded_amount() {
        let mut all = 0;
        for streams in 1..=10_000_u32 {
            all += u64::from(WINDOWS.of_stream(streams as usize));
            let doubled = u64::from((streams / 8).max(1).ilog2() + 1).min(7);
            let budget = u64::from(WINDOWS.budget);
            let most = budget + doubled * budget / 2 + u64::from(streams * WINDOWS.smallest);
            assert!(all <= most, "{streams} streams: {all} and not {most}");
        }
    }
}
