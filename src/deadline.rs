//! A time limit that is set for every request and almost never met.
//!
//! A timer for each request would be registered and taken back each time, and one that is earlier than all others wakes
//! the runtime up to be heeded: two system calls. This one stays where it is while the limit moves ahead of it, and moves
//! on only when it fires before the limit.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// See the head of this file.
#[derive(Debug)]
pub struct Deadline {
    at: Instant,
    /// Fires at the limit or before it.
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    /// A limit that is over now. It has to be made in a runtime with timers.
    pub fn now() -> Self {
        let at = Instant::now();
        Self { at, timer: Box::pin(sleep_until(at)) }
    }

    /// Sets the limit to so much time from now.
    pub fn set(&mut self, limit: Duration) {
        self.set_at(Instant::now() + limit);
    }

    /// Sets the limit to this moment.
    pub fn set_at(&mut self, at: Instant) {
        self.at = at;
        if self.at < self.timer.deadline() {
            self.timer.as_mut().reset(self.at);
        }
    }

    /// Ready once the limit is over.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if self.timer.deadline() >= self.at {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn is_over_when_the_last_limit_is() {
        run(async {
            let mut deadline = Deadline::now();
            for (first, then) in [(20, 60), (60_000, 30), (0, 40)] {
                deadline.set(Duration::from_millis(first));
                let _ = poll_fn(|cx| Poll::Ready(deadline.poll(cx))).await;
                let begun = Instant::now();
                deadline.set(Duration::from_millis(then));
                poll_fn(|cx| deadline.poll(cx)).await;
                let took = begun.elapsed().as_millis();
                assert!(took >= u128::from(then) && took < 10_000, "{then} ms took {took}");
            }
        });
    }
}
