//! How much a server may send ahead of its clients: on each stream enough for a gigabit at 20 ms, and on the whole connection
//! no more than a budget, however many streams there are.
//!
//! What comes for a client that does not read is kept in memory. All streams together always fit into the window of the
//! connection, so a stream whose client does not read never keeps others from receiving. Therefore the window of each
//! stream becomes smaller when there are many. Pure.

/// The window of a stream while there are few: a gigabit per second carries 2.5 MB in 20 ms.
pub(super) const STREAM_WINDOW: u32 = 4 << 20;
/// The window of a stream never becomes smaller than this: what the protocol begins with.
const SMALLEST_WINDOW: u32 = 64 << 10;
/// What all streams together may send ahead, as long as that leaves each the smallest window.
const BUDGET: u32 = 32 << 20;
/// The window of a connection: the budget, and what comes before the server knows of smaller windows.
pub(super) const CONNECTION_WINDOW: u32 = 2 * BUDGET;

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
        for streams in 1..=1024 {
            let all = u64::try_from(streams).unwrap() * u64::from(stream_window(streams));
            assert!(all <= u64::from(CONNECTION_WINDOW), "{streams} streams");
        }
    }
}
