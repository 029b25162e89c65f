//! A time limit that may move with each progress, for every request, and is almost never reached.
//!
//! Registering and removing a timer for each request would cost two system calls, because a timer that is earlier than all
//! others wakes the runtime. This timer stays registered while the limit moves ahead of it. If the timer fires before the limit,
//! it is set again.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Debug)]
pub struct Deadline {
    at: Instant,
    /// Fires at the limit or before it.
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    /// Must be created in a runtime with timers.
    pub fn at(at: Instant) -> Self {
        Self { at, timer: Box::pin(sleep_until(at)) }
    }

    pub fn now() -> Self {
        Self::at(Instant::now())
    }

    pub fn set(&mut self, limit: Duration) {
        self.set_at(Instant::now() + limit);
    }

    pub fn set_at(&mut self, at: Instant) {
        self.at = at;
        if self.at < self.timer.deadline() {
            self.timer.as_mut().reset(self.at);
        }
    }

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
    fn is_ready_when_the_last_limit_is_reached() {
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
