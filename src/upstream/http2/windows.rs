//! How much a server may send ahead of its clients: on each stream enough for a gigabit at 20 ms, and less if there are many.
//!
//! What comes for a client that does not read is kept in memory. The window of each stream is its share of a budget for all
//! streams to a server, which changes with their number. A window that is used up cannot be taken back, but it was given to a
//! stream when there were fewer. So streams that begin one after another and are never read take the budget once, and half of it
//! for each time that their number has doubled, and the smallest window each.
//!
//! The window of a connection is so large that all streams always fit into it, whatever the server knows of their
//! windows. So a stream whose client does not read never keeps others from receiving, although the library
//! grants the window of a stream and that of the connection only together. Pure.

/// How many streams of a connection are used at most, if the server allows as many.
pub(super) const MOST_STREAMS: u32 = 100;
/// The window of a stream while there are few: a gigabit per second carries 2.5 MB in 20 ms.
pub(super) const STREAM_WINDOW: u32 = 4 << 20;
/// The window of a stream never becomes smaller than this: what the protocol begins with.
const SMALLEST_WINDOW: u32 = 64 << 10;
/// What all streams together may send ahead, as long as that leaves each the smallest window.
const BUDGET: u32 = 32 << 20;
/// The window of a connection.
pub(super) const CONNECTION_WINDOW: u32 = MOST_STREAMS * STREAM_WINDOW;

/// The window of each stream if there are so many. It changes only when their number doubles or halves, since the server has
/// to be told.
pub(super) fn stream_window(streams: usize) -> u32 {
    let shares = u32::try_from(streams.max(1)).ok().and_then(u32::checked_next_power_of_two).unwrap_or(u32::MAX);
    (BUDGET / shares).clamp(SMALLEST_WINDOW, STREAM_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_streams_have_large_windows_and_many_share_the_budget() {
        for (streams, window) in [
            (0, STREAM_WINDOW),
            (1, STREAM_WINDOW),
            (8, STREAM_WINDOW),
            (9, 2 << 20),
            (16, 2 << 20),
            (17, 1 << 20),
            (100, 256 << 10),
            (512, 64 << 10),
            (5000, 64 << 10),
            (usize::MAX, 64 << 10),
        ] {
            assert_eq!(stream_window(streams), window, "{streams} streams");
        }
        const { assert!(STREAM_WINDOW >= 2_500_000) };
    }

    #[test]
    fn streams_that_begin_one_after_another_take_a_bounded_amount() {
        let mut all = 0;
        for streams in 1..=10_000_u32 {
            all += u64::from(stream_window(streams as usize));
            let doubled = u64::from((streams / 8).max(1).ilog2() + 1).min(7);
            let most = u64::from(BUDGET) + doubled * u64::from(BUDGET / 2) + u64::from(streams * SMALLEST_WINDOW);
            assert!(all <= most, "{streams} streams: {all} and not {most}");
        }
    }
}
