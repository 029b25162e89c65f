//! How long an exchange may make no progress. The client and the upstream have different limits. The exchange waits for the
//! client while its body is incomplete and everything that has come of it is sent. Otherwise it waits for the upstream. Once
//! the response has begun, neither side has to send while the other does. If the client's silence is not limited, and both
//! sides are silent, the upstream's limit applies.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::base::deadline::Deadline;

/// The position of an exchange that waits. If it has changed, the exchange has made progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) for_client: bool,
    /// Bytes from the client.
    pub(super) taken: u64,
    /// Bytes that wait to be sent to the upstream.
    pub(super) unsent: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stalled {
    Client(Duration),
    Upstream(Duration),
}

#[derive(Debug)]
pub(super) struct StallTimer {
    deadline: Deadline,
    /// `None` is no limit.
    client: Option<Duration>,
    /// `None` is no limit.
    upstream: Option<Duration>,
    /// The position at which the current wait began.
    waiting: Option<Position>,
    has_response: bool,
}

impl StallTimer {
    /// Must be called in a runtime with timers.
    pub(super) fn new() -> Self {
        Self { deadline: Deadline::now(), client: None, upstream: None, waiting: None, has_response: false }
    }

    /// Begins an exchange. The limits apply until the response begins.
    pub(super) fn begin(&mut self, client: Option<Duration>, upstream: Option<Duration>) {
        (self.client, self.upstream, self.waiting, self.has_response) = (client, upstream, None, false);
    }

    /// The response has begun, during which the upstream has this limit.
    pub(super) fn has_begun(&mut self, upstream: Option<Duration>) {
        (self.upstream, self.waiting, self.has_response) = (upstream, None, true);
    }

    /// The next wait is a new one.
    pub(super) fn upstream_sent(&mut self) {
        self.waiting = None;
    }

    /// Ready when the exchange has waited at this position until the limit.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, position: Position) -> Poll<Stalled> {
        let for_client = position.for_client && (self.client.is_some() || !self.has_response);
        let limit = if for_client { self.client } else { self.upstream };
        let Some(limit) = limit else { return Poll::Pending };
        if self.waiting != Some(position) {
            self.waiting = Some(position);
            self.deadline.set(limit);
        }
        ready!(self.deadline.poll(cx));
        Poll::Ready(if for_client { Stalled::Client(limit) } else { Stalled::Upstream(limit) })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(3600);

    fn at(for_client: bool, taken: u64, unsent: usize) -> Position {
        Position { for_client, taken, unsent }
    }

    async fn stalls(timer: &mut StallTimer, position: Position) -> Stalled {
        poll_fn(|cx| timer.poll(cx, position)).await
    }

    async fn is_pending(timer: &mut StallTimer, position: Position) -> bool {
        poll_fn(|cx| Poll::Ready(timer.poll(cx, position).is_pending())).await
    }

    #[tokio::test]
    async fn each_side_has_its_limit() {
        let mut timer = StallTimer::new();
        timer.begin(Some(SHORT), Some(LONG));
        assert!(is_pending(&mut timer, at(false, 0, 0)).await);
        assert_eq!(stalls(&mut timer, at(true, 0, 0)).await, Stalled::Client(SHORT));
        timer.begin(Some(LONG), Some(SHORT));
        assert!(is_pending(&mut timer, at(true, 0, 0)).await);
        assert_eq!(stalls(&mut timer, at(false, 0, 5)).await, Stalled::Upstream(SHORT));
        timer.begin(Some(SHORT), None);
        tokio::time::sleep(2 * SHORT).await;
        assert!(is_pending(&mut timer, at(false, 0, 0)).await, "there is no limit");
    }

    #[tokio::test]
    async fn any_progress_begins_a_new_wait() {
        // Longer than the pauses by more than a busy machine may add to one of them.
        const LIMIT: Duration = Duration::from_millis(1_500);
        const PAUSE: Duration = Duration::from_millis(400);
        let mut timer = StallTimer::new();
        timer.begin(Some(LIMIT), Some(LIMIT));
        let begun = Instant::now();
        for (taken, unsent) in [(0, 9), (0, 4), (7, 4), (7, 0)] {
            assert!(is_pending(&mut timer, at(false, taken, unsent)).await);
            tokio::time::sleep(PAUSE).await;
        }
        assert!(is_pending(&mut timer, at(true, 7, 0)).await);
        assert_eq!(stalls(&mut timer, at(true, 7, 0)).await, Stalled::Client(LIMIT));
        assert!(begun.elapsed() >= 4 * PAUSE + LIMIT);
        assert_eq!(stalls(&mut timer, at(false, 7, 1)).await, Stalled::Upstream(LIMIT));
        for position in [at(false, 7, 1), at(true, 7, 0)] {
            timer.upstream_sent();
            assert!(is_pending(&mut timer, position).await, "a new wait, also at the same position");
        }
    }

    #[tokio::test]
    async fn a_client_without_a_limit_leaves_the_silence_to_the_upstream() {
        let mut timer = StallTimer::new();
        timer.begin(None, Some(SHORT));
        assert!(is_pending(&mut timer, at(true, 0, 0)).await);
        tokio::time::sleep(2 * SHORT).await;
        assert!(is_pending(&mut timer, at(true, 0, 0)).await, "no response is due before the body is complete");
        timer.has_begun(Some(SHORT));
        assert_eq!(stalls(&mut timer, at(true, 0, 0)).await, Stalled::Upstream(SHORT));
        timer.begin(Some(SHORT), Some(LONG));
        timer.has_begun(Some(LONG));
        assert_eq!(stalls(&mut timer, at(true, 0, 0)).await, Stalled::Client(SHORT));
    }
}
